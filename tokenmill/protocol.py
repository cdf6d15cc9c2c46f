"""What a stage and its supervisor say to each other.

A stage is started as ``python -m tokenmill.stages.<stage> SPEC.json --root NAME=PATH ...``. The spec holds names,
fingerprints and counts, never data and never absolute paths: those come in as roots, since a container sees other paths
than its host. The stage's standard input is its *lifeline*: end of file means that the supervisor is gone. On standard
output it prints one JSON object a line (`log`, `progress`), and writes RESULT.json beside the spec at its end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

WORKSPACE_ROOT = "workspace"
CORPUS_ROOT_PREFIX = "corpus."
SPEC_NAME = "SPEC.json"
RESULT_NAME = "RESULT.json"
STACKS_NAME = "stacks.txt"
"""Beside the spec: where a stage writes the stacks of its threads at SIGUSR2."""


def worker_index(environment: Mapping[str, str]) -> int:
    """This process's number among the workers that train together, from TF_CONFIG; 0 is the chief, or the only one."""
    config = environment.get("TF_CONFIG")
    return 0 if config is None else int(json.loads(config)["task"]["index"])


def of_worker(name: str, worker: int) -> str:
    """The name of a worker's own file: the chief's is `name` itself, so that nobody reads another's by mistake."""
    stem, dot, suffix = name.partition(".")
    return f"{stem}-worker-{worker}{dot}{suffix}" if worker else name


class ExitCode(IntEnum):
    DONE = 0
    CRASHED = 1
    USER_ERROR = 2
    """The user must mend something: no retry."""
    INTERRUPTED = 75
    """Safe to start again: everything is committed. (EX_TEMPFAIL of sysexits.h.)"""


class StageName(StrEnum):
    PREPARE = "prepare"
    VALIDATE = "validate"
    TRAIN = "train"
    REPORT = "report"
    TRIAL = "trial"


class StageSpec(BaseModel):
    """All that a stage is told. `pipeline` is the resolved pipeline of pipelines.yaml, as plain JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: StageName
    pipeline_name: str
    pipeline: dict[str, Any]
    invocation_id: str
    ledger: str
    """This attempt's ledger file, relative to the workspace."""
    inputs: dict[str, Any] = Field(default_factory=dict)
    """Per stage: what earlier stages made (snapshot id, validation, run id, ...)."""


class StageResult(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    status: Literal["completed", "stopped_by_budget", "stopped_by_condition", "interrupted", "failed"]
    outputs: dict[str, Any] = Field(default_factory=dict)
    """Per stage: names, fingerprints, counts."""
    message: str = ""
    """One sentence for people."""


class LogLine(BaseModel):
    type: Literal["log"] = "log"
    level: str
    message: str
    time: float
    """Unix seconds."""
    event: dict[str, Any] | None = None
    """For machines: `name` (such as alarm) and what belongs to it, where the line is an event's."""


class ProgressLine(BaseModel):
    type: Literal["progress"] = "progress"
    label: str
    done: int
    total: int | None
    unit: str
    detail: str = ""
