"""Stages in containers of the pinned image: not root, read-only, no capabilities, no network where none is needed.

The container's standard input is attached by this process alone: when this process ends, however it ends, the engine
closes it, and the stage saves and exits (see `tokenmill.stages.harness`). At the next start what is left of a dead
supervisor is waited for, then removed: no run ever has two writers.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tasks.engine import connect, engine_errors, ensure_image, probe
from tasks.image_lock import ImageLock, read_lock
from tasks.runtime import StageCommand, StageProcess
from tasks.stage_container import StageContainer
from tokenmill.errors import UserError
from tokenmill.pipelines import Pipeline
from tokenmill.protocol import CORPUS_ROOT_PREFIX, WORKSPACE_ROOT, StageName

WORKSPACE = "/workspace"
LABEL = "org.tokenmill."


class DockerRuntime:
    """Made once a night: it checks engine, image and workspace, and ends what a dead night left behind."""

    def __init__(self, pipeline: Pipeline, name: str, package: str = "tokenmill.stages") -> None:
        self._pipeline = pipeline
        self._name = name
        self._package = package
        self._settings = pipeline.runtime.docker
        self._workspace = pipeline.local_workspace.resolve()
        self._lock = read_lock(Path(pipeline.image.lock))
        self.image: str | None = self._lock.image
        self._client = connect()
        weakref.finalize(self, self._client.close)
        found = ensure_image(self._client, self._lock.image, pipeline.image.registry)
        if found.id != self._lock.image_id:
            raise UserError(
                f"image: {self._lock.image} is {found.id[:19]} here, image.lock pins {self._lock.image_id[:19]}; "
                "somebody changed one of them: look, then run `tokenmill image lock`"
            )
        self._image_id = found.id
        self._prove()

    def start(self, command: StageCommand) -> StageProcess:
        if command.workers > 1:
            raise UserError(
                f"training.workers: {command.workers} workers in containers are not supported so far; "
                "set it to 1, or runtime.kind to process"
            )
        spec = json.loads(command.spec.read_bytes())
        with engine_errors():
            container = self._client.containers.create(
                self._image_id,
                entrypoint=["python", "-m"],
                command=self._arguments(command),
                labels=self._labels(spec),
                environment=self._environment(command),
                network_mode=self._network(command.stage),
                **self._confinement(command.roots),
                device_requests=self._devices(command.stage),
            )
            try:
                return self._started(container)
            except BaseException:
                container.remove(force=True)
                raise

    def _started(self, container: Any) -> StageProcess:
        stage = StageContainer(self._client, container)
        container.reload()
        if container.attrs["Image"] != self._lock.image_id:
            stage.kill()
            stage.close()
            raise UserError(f"image: a container of {container.attrs['Image'][:19]} was started, not of the pinned one")
        return stage

    def _arguments(self, command: StageCommand) -> list[str]:
        spec = f"{WORKSPACE}/{command.spec.resolve().relative_to(self._workspace).as_posix()}"
        arguments = [f"{self._package}.{command.stage}", spec]
        for name, path in sorted(command.roots.items()):
            arguments += ["--root", f"{name}={_inside(name, path)}"]
        return arguments

    def _labels(self, spec: Mapping[str, Any]) -> dict[str, str]:
        inputs = spec.get("inputs", {})
        labels = {
            "workspace": self._workspace_label(),
            "pipeline": self._name,
            "invocation": spec["invocation_id"],
            "stage": spec["stage"],
            "run": inputs.get("run_id") or "",
            "attempt": str(inputs.get("attempt") or ""),
        }
        return {LABEL + key: value for key, value in labels.items()}

    def _workspace_label(self) -> str:
        return hashlib.sha256(self._host_workspace().encode()).hexdigest()[:16]

    def _host_workspace(self) -> str:
        return self._settings.host_workspace or str(self._workspace)

    def _environment(self, command: StageCommand) -> dict[str, str]:
        environment = {
            **command.environment,
            "HOME": "/tmp",
            "MPLCONFIGDIR": "/tmp/matplotlib",
            "XDG_CACHE_HOME": "/tmp/cache",
        }
        if self._settings.cpus is not None and self._pipeline.training.threads == "auto":
            count = str(max(1, int(self._settings.cpus)))
            threads = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
            environment |= dict.fromkeys(threads, count)
        return environment

    def _network(self, stage: StageName) -> str:
        """None, but for a corpus or a tokenizer that is elsewhere."""
        pipeline = self._pipeline
        sources = [source.root for source in pipeline.corpus.sources] if stage is StageName.PREPARE else []
        tokenizer = pipeline.tokenizer.source
        hub = stage is StageName.PREPARE and tokenizer is not None and not Path(tokenizer).is_dir()
        remote = any("://" in place for place in sources)
        return "bridge" if remote or hub else "none"

    def _confinement(self, roots: Mapping[str, str]) -> dict[str, Any]:
        owner = self._workspace.stat()
        if owner.st_uid == 0:
            raise UserError(
                f"workspace: '{self._workspace}' belongs to root, and containers run as its owner, never as root; "
                "give it to a user: chown -R USER:GROUP"
            )
        settings = self._settings
        return {
            "user": f"{owner.st_uid}:{owner.st_gid}",
            "volumes": self._volumes(roots),
            "working_dir": "/tmp",
            "read_only": True,
            "tmpfs": {"/tmp": f"rw,nosuid,nodev,size={settings.tmp},mode=1777"},
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true"],
            "pids_limit": settings.pids,
            "mem_limit": settings.memory,
            "memswap_limit": settings.memory,
            "nano_cpus": None if settings.cpus is None else int(settings.cpus * 1e9),
            "shm_size": settings.shm,
            "init": True,
            "stdin_open": True,
            "log_config": {"type": "none"},
        }

    def _volumes(self, roots: Mapping[str, str]) -> dict[str, dict[str, str]]:
        volumes = {self._host_workspace(): {"bind": WORKSPACE, "mode": "rw"}}
        for name, path in roots.items():
            if name == WORKSPACE_ROOT or "://" in path:
                continue
            source = name.removeprefix(CORPUS_ROOT_PREFIX)
            volumes[self._settings.host_sources.get(source, path)] = {"bind": _inside(name, path), "mode": "ro"}
        for extra in (self._pipeline.tokenizer.source, self._pipeline.checks.suite):
            if extra is not None and Path(extra).is_absolute() and Path(extra).exists():
                volumes[extra] = {"bind": extra, "mode": "ro"}
        return volumes

    def _devices(self, stage: StageName) -> list[Any] | None:
        if stage is not StageName.TRAIN or self._pipeline.training.device_kind != "gpu":
            return None
        from docker.types import DeviceRequest

        return [DeviceRequest(count=-1, capabilities=[["gpu"]])]

    def _prove(self) -> None:
        """A probe container reads back a nonce of the workspace and says what is inside the image."""
        self._workspace.mkdir(parents=True, exist_ok=True)
        confinement = self._confinement({})
        nonce, path = secrets.token_hex(16), self._workspace / f".nonce-{os.getpid()}-{secrets.token_hex(4)}"
        path.write_text(nonce)
        try:
            options = {key: confinement[key] for key in ("user", "volumes", "tmpfs")}
            found = probe(self._client, self._image_id, f"{WORKSPACE}/{path.name}", **options)
        finally:
            path.unlink()
        if found["nonce"] != nonce:
            raise UserError(
                f"runtime.docker.host_workspace: the engine's '{self._host_workspace()}' is not the workspace "
                f"'{self._workspace}' of this process; write the workspace's path on the engine's host"
            )
        check_inside(self._lock, found["lock_sha256"])

    def end_orphans(self) -> list[str]:
        """End and remove what a dead supervisor of this pipeline left: to be called while holding the pipeline's lock.

        Their lifeline is closed, so they are saving already; who has not ended after the grace is killed.
        """
        labels = [f"{LABEL}workspace={self._workspace_label()}", f"{LABEL}pipeline={self._name}"]
        with engine_errors():
            found = self._client.containers.list(all=True, filters={"label": labels})
        deadline = time.monotonic() + self._pipeline.runtime.grace_seconds
        for container in found:
            with suppress(Exception):  # gone between two calls, or stubborn: `remove` below decides
                container.kill(signal="SIGTERM")
        for container in found:
            with suppress(Exception):
                container.wait(timeout=max(0.1, deadline - time.monotonic()))
            with engine_errors(), suppress(_not_found()):
                container.remove(force=True)
        return [str(container.labels.get(LABEL + "invocation", container.short_id)) for container in found]


def check_inside(lock: ImageLock, sha256: str) -> None:
    if sha256 != lock.lock_sha256:
        raise UserError(
            f"image: the requirements inside {lock.image} have the hash {sha256[:12]}, image.lock pins "
            f"{lock.lock_sha256[:12]}; run `tokenmill image lock` if you mean the image that is there"
        )


def _not_found() -> type[Exception]:
    import docker.errors

    found: type[Exception] = docker.errors.NotFound
    return found


def _inside(name: str, path: str) -> str:
    """Where a root lies in the container."""
    if name == WORKSPACE_ROOT:
        return WORKSPACE
    return path if "://" in path else f"/roots/{name}"
