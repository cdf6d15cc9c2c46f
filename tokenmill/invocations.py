"""Invocations: each start of a pipeline, opened before anything else, so that a night that fails early has a bill too.

`invocations/<id>/invocation.json` is written by the flow's process alone; `pipelines/<name>/lock` is held by that
process for as long as it lives, so that two starts of one pipeline cannot meet, and `stop` knows whom to ask.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from tokenmill.errors import UserError
from tokenmill.locks import Taken, owned, owner_of
from tokenmill.protocol import StageName
from tokenmill.workspace import Workspace, read_json, write_json

Outcome = Literal[
    "running",
    "finished",
    "already_trained",
    "refused_by_validation",
    "interrupted",
    "cancelled",
    "stopped_by_budget",
    "stopped_by_condition",
    "user_error",
    "crashed",
]

INVOCATION_FILE = "invocation.json"
STOP_FILE = "STOP"
DIED = "the process ended without a word (killed, or its machine went away)"


class AlreadyRunningError(UserError):
    """Another process works on this pipeline."""


class StageRecord(BaseModel):
    """One supervised stage process. Times are Unix seconds."""

    stage: StageName
    status: str = "running"
    """As in RESULT.json; `crashed` where there was none."""
    message: str = ""
    outputs: dict[str, Any] = Field(default_factory=dict)
    ledger: str
    """Relative to the workspace."""
    exit_code: int | None = None
    started: float
    ended: float | None = None


class Invocation(BaseModel):
    """One invocation.json. Times are Unix seconds."""

    id: str
    pipeline: str
    overrides: list[str] = Field(default_factory=list)
    started: float
    ended: float | None = None
    run_id: str | None = None
    step: int = 0
    """The run's committed step when this began."""
    outcome: Outcome = "running"
    message: str = ""
    """One sentence about the outcome, for people."""
    host: str = Field(default_factory=socket.gethostname)
    pid: int = Field(default_factory=os.getpid)
    stages: list[StageRecord] = Field(default_factory=list)

    @classmethod
    def begin(cls, pipeline: str, overrides: list[str]) -> Invocation:
        now = time.time()
        stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%S")
        return cls(id=f"{stamp}-{pipeline}-{secrets.token_hex(2)}", pipeline=pipeline, overrides=overrides, started=now)

    def save(self, workspace: Workspace) -> None:
        write_json(workspace.invocation(self.id) / INVOCATION_FILE, self.model_dump(mode="json"))


def list_invocations(workspace: Workspace) -> list[Invocation]:
    """Every invocation of the workspace, oldest first. Raises `UserError` naming a file that cannot be understood."""
    return [_read(path) for path in sorted((workspace.root / "invocations").glob(f"*/{INVOCATION_FILE}"))]


def newest_outputs(workspace: Workspace, run_id: str, stage: StageName) -> dict[str, Any]:
    """What `stage` made for this run, in the newest invocation where it made something; empty if it never did."""
    for invocation in reversed(list_invocations(workspace)):
        for record in reversed(invocation.stages):
            if invocation.run_id == run_id and record.stage is stage and record.outputs:
                return record.outputs
    return {}


def _read(path: Path) -> Invocation:
    try:
        return Invocation.model_validate(read_json(path))
    except ValueError as error:
        raise UserError(
            f"{path} is not an invocation.json that this version understands ({' '.join(str(error).split())}); "
            "restore it, or move its folder out of the workspace"
        ) from None


@contextmanager
def only_invocation(workspace: Workspace, invocation: Invocation) -> Iterator[None]:
    """Hold the pipeline's lock; raise `AlreadyRunningError` if another process holds it. A dead holder's is free."""
    pipeline = invocation.pipeline
    with ExitStack() as stack:
        try:
            stack.enter_context(owned(_lock(workspace, pipeline), {"invocation": invocation.id, "pid": os.getpid()}))
        except Taken as taken:
            raise AlreadyRunningError(
                f"pipeline '{pipeline}' is running already ({taken.owner.get('invocation', 'since just now')}); "
                f"wait for it, or stop it with `tokenmill stop {pipeline}`"
            ) from None
        yield


def running_invocation(workspace: Workspace, pipeline: str) -> str | None:
    """The id of the invocation of this pipeline that runs now, if one does and has said so."""
    owner = owner_of(_lock(workspace, pipeline))
    return None if owner is None else owner.get("invocation")


def _lock(workspace: Workspace, pipeline: str) -> Path:
    return workspace.pipeline(pipeline) / "lock"


def left_unfinished(workspace: Workspace, pipeline: str) -> Invocation | None:
    """The pipeline's newest invocation, if it was interrupted, or its process ended without a word."""
    if running_invocation(workspace, pipeline) is not None:
        return None
    own = [item for item in list_invocations(workspace) if item.pipeline == pipeline]
    return own[-1] if own and own[-1].outcome in ("running", "interrupted") else None


def close_dead_invocations(workspace: Workspace, pipeline: str) -> list[Invocation]:
    """Mark invocations of this pipeline whose process is gone as crashed. Call it while holding the pipeline's lock."""
    dead = [item for item in list_invocations(workspace) if item.pipeline == pipeline and item.outcome == "running"]
    for invocation in dead:
        invocation.outcome = "crashed"
        invocation.message = DIED
        invocation.ended = max([invocation.started, *(s.ended or s.started for s in invocation.stages)])
        for stage in invocation.stages:
            if stage.status == "running":
                stage.status = "crashed"
        invocation.save(workspace)
    return dead


def ask_to_stop(workspace: Workspace, invocation_id: str) -> None:
    """Ask the process of a running invocation to save, end, and leave its run cancelled."""
    write_json(workspace.invocation(invocation_id) / STOP_FILE, {"time": time.time(), "host": socket.gethostname()})


def asked_to_stop(workspace: Workspace, invocation_id: str) -> bool:
    return (workspace.invocation(invocation_id) / STOP_FILE).exists()
