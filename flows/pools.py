"""Work pools: the same deployments, run by Prefect workers on other machines instead of by `serve`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectNotFound

from flows.embedded import HEARTBEATS, QUIET
from tokenmill.errors import UserError
from tokenmill.pipelines import PipelineFile

KINDS = ("process", "docker", "kubernetes")


@dataclass(frozen=True)
class Pool:
    name: str
    kind: str
    image: str | None
    """What docker and kubernetes workers run: the orchestrator image."""

    def job_variables(self, file: PipelineFile) -> dict[str, Any]:
        variables: dict[str, Any] = {"env": {**QUIET, **HEARTBEATS}}
        if self.kind == "process":
            variables["working_dir"] = str(file.path.parent)
        return variables


def ensure_pool(pool: Pool) -> None:
    """Create the pool, with its kind's own job template, if the server has none of this name. Raises `UserError`."""
    if pool.kind not in KINDS:
        raise UserError(f"--pool-kind: '{pool.kind}' is not known; choose one of {', '.join(KINDS)}")
    if (pool.image is None) != (pool.kind == "process"):
        wanted = "takes no --image" if pool.kind == "process" else "needs --image, the orchestrator image to run"
        raise UserError(f"--pool-kind: {pool.kind} {wanted}")
    with get_client(sync_client=True) as client:
        try:
            found = client.read_work_pool(pool.name)
        except ObjectNotFound:
            template = _job_template(client, pool.kind)
            client.create_work_pool(WorkPoolCreate(name=pool.name, type=pool.kind, base_job_template=template))
            return
    if found.type != pool.kind:
        raise UserError(
            f"--pool: '{pool.name}' is a {found.type} pool on the server, not {pool.kind}; name another one"
        )


def _job_template(client: SyncPrefectClient, kind: str) -> dict[str, Any]:
    collections = client.request(
        "GET", "/collections/views/{view}", path_params={"view": "aggregate-worker-metadata"}
    ).json()
    for workers in collections.values():
        if kind in workers:
            template: dict[str, Any] = workers[kind]["default_base_job_configuration"]
            return template
    raise UserError(f"--pool-kind: this Prefect server knows no {kind} workers; create the pool on it by hand")
