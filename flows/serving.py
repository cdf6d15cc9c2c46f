"""`tokenmill serve` and `tokenmill deploy`: nightly and on demand, without anyone watching.

`serve` is all that one machine needs: it runs scheduled and on-demand nights as child processes, and at its start goes
on with what an earlier `serve` left unfinished. Without PREFECT_API_URL it brings a server with the UI along.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from rich.console import Console

from flows.embedded import HEARTBEATS, QUIET, EmbeddedServer
from flows.files import served_files
from flows.places import loadable
from tasks.links import FILES_URL
from tokenmill.errors import UserError
from tokenmill.invocations import Invocation, left_unfinished
from tokenmill.pipelines import Pipeline, PipelineFile
from tokenmill.workspace import Workspace

SOON = timedelta(minutes=1)


def serve_pipelines(console: Console, file: PipelineFile, port: int, files_port: int | None = None) -> None:
    """Until SIGINT or SIGTERM. Files that the UI links to are on `files_port`; none means the port after the UI's."""
    roots = {name: found.local_workspace for name, found in loadable(file).items() if isinstance(found, Pipeline)}
    with served_files(roots, port + 1 if files_port is None else files_port) as url:
        os.environ[FILES_URL] = url
        console.print(f"reports, Data Docs, TensorBoard: {url}", highlight=False)
        _serve_flows(console, file, port)


def _serve_flows(console: Console, file: PipelineFile, port: int) -> None:
    os.environ.update({**QUIET, **HEARTBEATS})
    server = None
    if not os.environ.get("PREFECT_API_URL"):
        server = EmbeddedServer(_home(file), ui_port=port)
        os.environ.update(server.serving_environment())
    try:
        from prefect import serve

        from flows.deployments import ON_DEMAND_NAME, deploy, make_deployments

        if server is not None:
            server.wait_until_healthy()
            console.print(f"Prefect UI: http://127.0.0.1:{port}", highlight=False)
        ids = deploy(file)
        for line in resume_unfinished(file, ids[ON_DEMAND_NAME]):
            console.print(line, highlight=False)
        # A schedule that goes to sleep with this process would not wake up when it is started again.
        serve(*make_deployments(file), pause_on_shutdown=False, print_starting_message=False)
    finally:
        if server is not None:
            server.close()


def deploy_pipelines(
    console: Console, file: PipelineFile, pool: str | None = None, kind: str = "process", image: str | None = None
) -> None:
    """Create or update deployments and automations on the server that PREFECT_API_URL names; with `pool`, for it."""
    if not os.environ.get("PREFECT_API_URL"):
        raise UserError("PREFECT_API_URL names no Prefect server; set it, or use `tokenmill serve`, which brings one")
    os.environ.update({**QUIET, **HEARTBEATS})
    from flows.deployments import deploy
    from flows.pools import Pool

    for name, found in deploy(file, Pool(pool, kind, image) if pool else None).items():
        console.print(f"{name}  {found}", highlight=False)


def resume_unfinished(file: PipelineFile, on_demand: UUID) -> list[str]:
    """Start again what an earlier process left; a pipeline that has a flow run waiting or running is left alone."""
    from prefect.client.orchestration import get_client

    said = []
    with get_client(sync_client=True) as client:
        busy = _pipelines_with_flow_runs(client)
        for name, pipeline in loadable(file).items():
            left = (
                left_unfinished(Workspace(pipeline.local_workspace), name) if isinstance(pipeline, Pipeline) else None
            )
            if left is None or name in busy:
                continue
            client.create_flow_run_from_deployment(on_demand, parameters=_parameters(file, left))
            said.append(f"{name} goes on: {left.message or 'its process ended without a word'}")
    return said


def _parameters(file: PipelineFile, left: Invocation) -> dict[str, Any]:
    return {"pipeline": left.pipeline, "settings": left.overrides, "file": str(file.path)}


def _pipelines_with_flow_runs(client: Any) -> set[str]:
    from prefect.client.schemas import StateType
    from prefect.client.schemas.filters import (
        FlowFilter,
        FlowFilterName,
        FlowRunFilter,
        FlowRunFilterExpectedStartTime,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )

    waiting = FlowRunFilterStateType(any_=[StateType.SCHEDULED, StateType.PENDING])
    runs = client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=["retrain"])),
        flow_run_filter=FlowRunFilter(
            state=FlowRunFilterState(type=waiting),
            # Not the nights of a schedule that are still to come.
            expected_start_time=FlowRunFilterExpectedStartTime(before_=datetime.now(UTC) + SOON),
        ),
    )
    return {str(run.parameters.get("pipeline")) for run in runs}


def _home(file: PipelineFile) -> Path:
    """The database of the server that `serve` brings lies beside the first pipeline's workspace."""
    for pipeline in loadable(file).values():
        if isinstance(pipeline, Pipeline):
            return pipeline.local_workspace / "prefect"
    raise UserError(f"{file.path.name} has no pipeline that can be loaded here; `tokenmill ls` says why")
