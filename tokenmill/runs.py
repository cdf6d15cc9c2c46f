"""Runs: what each one is, what it froze at its first attempt, and which one a pipeline has not finished.

A *run* is one logical training, whatever number of attempts it takes. Its id hashes the pipeline's identity fields, the
snapshot and the starting model, so the same question always has the same answer. `runs/<id>/run.json` holds the rest:

    {"id": "3f9a...", "pipeline": "demo", "status": "open", "snapshot": "77c1...", "attempts": 2, "frozen": {...}, ...}

| status | means | a new start of the pipeline |
|---|---|---|
| `open` | interrupted, crashed, or running now | goes on with it, and does not look at the corpus |
| `completed` | trained to its length, or to a stop condition | ends at once while the snapshot stays the same |
| `stopped` | out of budget or time before that | looks at the corpus; the same snapshot goes on with it |
| `cancelled` | a person stopped it | likewise |
| `failed` | crashed too often without a newly committed step | likewise |
| `abandoned` | given up by `--fresh` | likewise |
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tokenmill.canonical import fingerprint
from tokenmill.errors import UserError
from tokenmill.locks import locked
from tokenmill.pipelines import Pipeline
from tokenmill.workspace import Workspace, read_json, write_json

RUN_FILE = "run.json"
RUN_ID_LENGTH = 12


class RunStatus(StrEnum):
    OPEN = "open"
    COMPLETED = "completed"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    FAILED = "failed"
    ABANDONED = "abandoned"


class Run(BaseModel):
    """One run.json. Times are Unix seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    pipeline: str
    status: RunStatus = RunStatus.OPEN
    message: str = ""
    """One sentence about the status, for people."""
    created: float
    identity: dict[str, Any]
    """The identity fields of the pipeline, nested as in the file."""
    snapshot: str
    starting_model: str | None = None
    """`pipeline/number` of a promoted model, never `latest`; none means random weights."""
    validation: str | None = None
    """Folder of the verdict that let the run start, relative to the workspace."""
    attempts: int = 0
    """Train attempts so far; the number of the last one's ledger."""
    crashes_without_progress: int = 0
    """Crashes in a row since the last newly committed step."""
    committed_step: int = 0
    """The newest committed step that the supervisor has seen."""
    frozen: dict[str, Any] = Field(default_factory=dict)
    """Whatever is `auto` in the pipeline, as the first attempt resolved it."""
    numerics: dict[str, Any] = Field(default_factory=dict)
    """What rounding depends on, at the last attempt (see `numeric_environment`)."""

    @property
    def identity_fingerprint(self) -> str:
        return fingerprint(self.identity)


def run_id(identity: Mapping[str, Any], snapshot: str, starting_model: str | None) -> str:
    """The id of the run that trains these identity fields on `snapshot`, starting from `starting_model`."""
    question = {"identity": identity, "snapshot": snapshot, "starting_model": starting_model}
    return fingerprint(question, length=RUN_ID_LENGTH)


def open_run(
    workspace: Workspace, pipeline_name: str, pipeline: Pipeline, snapshot: str, validation: str | None
) -> Run:
    """The run of this pipeline on `snapshot`: made if it is new, and opened again if it ended short of its length."""
    starting_model = resolve_starting_model(workspace, pipeline.training.init_from)
    identity = pipeline.identity()
    name = run_id(identity, snapshot, starting_model)
    workspace.run(name).mkdir(parents=True, exist_ok=True)
    with locked(_lock(workspace, name)):
        found = _read(_path(workspace, name))
        if found is None:
            run = Run(
                id=name,
                pipeline=pipeline_name,
                created=time.time(),
                identity=identity,
                snapshot=snapshot,
                starting_model=starting_model,
                validation=validation,
            )
        elif found.status in (RunStatus.OPEN, RunStatus.COMPLETED):
            return found
        else:
            changes = {"status": RunStatus.OPEN, "message": "", "validation": validation, "crashes_without_progress": 0}
            run = found.model_copy(update=changes)
        _write(workspace, run)
    return run


def read_run(workspace: Workspace, name: str) -> Run:
    """Raises `UserError` if there is no such run."""
    run = _read(_path(workspace, name))
    if run is None:
        known = ", ".join(run.id for run in list_runs(workspace)[-5:]) or "none"
        raise UserError(f"run '{name}' is not in {workspace.root}; newest runs: {known}")
    return run


def update_run(workspace: Workspace, name: str, **changes: Any) -> Run:
    """Put `changes` into run.json and return the whole; other processes' updates are not lost.

    `ValueError` if a field does not exist or has the wrong type.
    """
    read_run(workspace, name)
    with locked(_lock(workspace, name)):
        before = read_run(workspace, name)
        run = Run.model_validate({**before.model_dump(), **changes})
        _write(workspace, run)
    return run


def freeze(workspace: Workspace, name: str, choices: Mapping[str, Any]) -> dict[str, Any]:
    """The run's frozen choices; those of `choices` that no earlier attempt made are added first."""
    read_run(workspace, name)
    with locked(_lock(workspace, name)):
        before = read_run(workspace, name)
        run = before.model_copy(update={"frozen": {**choices, **before.frozen}})
        if run != before:
            _write(workspace, run)
    return run.frozen


def list_runs(workspace: Workspace) -> list[Run]:
    """Every run of the workspace, oldest first."""
    found = (_read(path) for path in (workspace.root / "runs").glob(f"*/{RUN_FILE}"))
    return sorted((run for run in found if run is not None), key=lambda run: (run.created, run.id))


def unfinished_run(workspace: Workspace, pipeline_name: str, pipeline: Pipeline) -> Run | None:
    """The newest open run of this pipeline with the same identity fields."""
    return _newest(workspace, pipeline_name, pipeline, RunStatus.OPEN, snapshot=None)


def finished_run(workspace: Workspace, pipeline_name: str, pipeline: Pipeline, snapshot: str) -> Run | None:
    """The newest completed run of this pipeline with the same identity fields that trained on `snapshot`."""
    return _newest(workspace, pipeline_name, pipeline, RunStatus.COMPLETED, snapshot)


def has_finished(workspace: Workspace, pipeline_name: str, pipeline: Pipeline) -> bool:
    """Whether a run of this pipeline with the same identity fields has completed, on whatever snapshot."""
    return _newest(workspace, pipeline_name, pipeline, RunStatus.COMPLETED, snapshot=None) is not None


def abandon_unfinished(workspace: Workspace, pipeline_name: str) -> list[Run]:
    """Close every open run of the pipeline as abandoned: what `--fresh` does first."""
    opened = [run for run in list_runs(workspace) if run.pipeline == pipeline_name and run.status is RunStatus.OPEN]
    return [
        update_run(workspace, run.id, status=RunStatus.ABANDONED, message="given up by a fresh start") for run in opened
    ]


def committed_step(workspace: Workspace, name: str) -> int:
    """The newest step of the run whose checkpoint is committed; 0 if there is none."""
    commits = (workspace.run(name) / "checkpoints").glob("step-*/COMMIT")
    return max((int(path.parent.name.removeprefix("step-")) for path in commits), default=0)


def resolve_starting_model(workspace: Workspace, init_from: str | None) -> str | None:
    """`pipeline/number` for `training.init_from`, with `latest` looked up; `UserError` if there is no such model."""
    if init_from is None:
        return None
    pipeline, _, number = init_from.partition("/")
    if number == "latest":
        pointer = workspace.model(pipeline, "latest")
        number = pointer.read_text(encoding="utf-8").strip() if pointer.is_file() else ""
    if not number or not workspace.model(pipeline, number).is_dir():
        raise UserError(
            f"training.init_from: there is no model '{init_from}' in {workspace.root / 'models'}; "
            "`tokenmill ls` names the promoted ones"
        )
    return f"{pipeline}/{number}"


def numeric_environment(pipeline: Pipeline) -> dict[str, Any]:
    """What rounding depends on besides the identity fields: numeric config, library versions, instruction set.

    Bit-identity over attempts is promised while this stays equal.
    """
    versions = {}
    for package in ("tensorflow", "tensorflow-cpu", "keras", "numpy"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "config": pipeline.numeric_fields(),
        "versions": versions,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "instructions": _instruction_sets(),
    }


def changed_numerics(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What differs between two `numeric_environment`s, as `dotted.name: before → after`."""
    changes: list[str] = []
    for name in sorted(set(before) | set(after)):
        left, right = before.get(name), after.get(name)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            changes += changed_numerics(left, right, f"{prefix}{name}.")
        elif left != right:
            changes.append(f"{prefix}{name}: {left} → {right}")
    return changes


def _newest(
    workspace: Workspace, pipeline_name: str, pipeline: Pipeline, status: RunStatus, snapshot: str | None
) -> Run | None:
    wanted = pipeline.identity_fingerprint()
    for run in reversed(list_runs(workspace)):
        same = run.pipeline == pipeline_name and run.status is status and snapshot in (None, run.snapshot)
        if same and run.identity_fingerprint == wanted:
            return run
    return None


def _path(workspace: Workspace, name: str) -> Path:
    return workspace.run(name) / RUN_FILE


def _read(path: Path) -> Run | None:
    try:
        return Run.model_validate(read_json(path))
    except FileNotFoundError:
        return None
    except (ValidationError, ValueError) as error:
        raise UserError(f"{path} is not a run.json that this version understands: {error}") from None


def _write(workspace: Workspace, run: Run) -> None:
    write_json(_path(workspace, run.id), run.model_dump(mode="json"))


def _lock(workspace: Workspace, name: str) -> Path:
    return workspace.run(name) / ".run.lock"


def _instruction_sets() -> list[str]:
    """The vector and matrix extensions of this CPU, on Linux; elsewhere only the architecture is known."""
    wanted = ("sse4_1", "sse4_2", "avx", "avx2", "fma", "avx512", "avx_vnni", "amx", "neon", "asimd", "sve", "bf16")
    if sys.platform != "linux":
        return []
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(("flags", "Features")):
            return sorted(flag for flag in line.split(":", 1)[1].split() if flag.startswith(wanted))
    return []
