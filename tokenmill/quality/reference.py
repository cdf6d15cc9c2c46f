"""What drift is measured against, and the pointer that remembers it: ``pipelines/<name>/last_good.json``.

The pointer moves only after a verdict of pass or warn. It also names the reference that its own snapshot was measured
against, so that the same snapshot, validated again, meets the same reference and finds its finished verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokenmill.errors import UserError
from tokenmill.quality.verdict import VERDICT_NAME, read_verdict
from tokenmill.tokens.pinning import what_was_asked_for
from tokenmill.workspace import Workspace, read_json, write_json

LAST_GOOD_NAME = "last_good.json"


@dataclass(frozen=True)
class LastGood:
    """The last snapshot of a pipeline that may be trained on."""

    snapshot: str
    validation: str
    """Its validation's folder, relative to the workspace."""
    reference: str | None
    """The validation's folder that it was compared with; none for a pipeline's first."""
    tokenizer_settings: str | None = None
    """`tokenmill.tokens.pinning.what_was_asked_for` of that night."""


def read_last_good(workspace: Workspace, pipeline: str) -> LastGood | None:
    """None if no snapshot of the pipeline passed yet, or if the one that did was deleted."""
    path = workspace.pipeline(pipeline) / LAST_GOOD_NAME
    if not path.exists():
        return None
    raw = read_json(path)
    last = LastGood(**raw)
    return last if (workspace.root / last.validation / VERDICT_NAME).exists() else None


def write_last_good(workspace: Workspace, pipeline: str, last: LastGood) -> None:
    write_json(workspace.pipeline(pipeline) / LAST_GOOD_NAME, dict(last.__dict__))


def tokenizer_change_is_meant(workspace: Workspace, pipeline: str) -> bool:
    """Whether pipelines.yaml, or `--retrain-tokenizer`, asked for another tokenizer since the last good snapshot."""
    last = read_last_good(workspace, pipeline)
    return last is not None and last.tokenizer_settings not in {None, what_was_asked_for(workspace, pipeline)}


def choose_reference(workspace: Workspace, pipeline: str, snapshot: str, wanted: str) -> str | None:
    """The folder (relative) of the validation to compare `snapshot` with; `wanted` is `checks.drift.reference`."""
    if wanted == "none":
        return None
    last = read_last_good(workspace, pipeline)
    if wanted == "last_good":
        if last is None:
            return None
        return last.reference if last.snapshot == snapshot else last.validation
    folders = sorted((workspace.root / "validations" / wanted).glob(f"*/{VERDICT_NAME}"))
    good = [path.parent for path in folders if read_verdict(path.parent).verdict != "fail"]
    if not good:
        raise UserError(
            f"checks.drift.reference: there is no passing validation of a snapshot '{wanted}' in this workspace; "
            "name another one, 'last_good' or 'none'"
        )
    return workspace.relative(good[-1])


@dataclass(frozen=True)
class ReferenceStatistics:
    """What the comparison needs of an earlier validation."""

    snapshot: str
    summary: dict[str, Any]
    """Its summary.json."""
    token_counts_V: NDArray[np.int64]

    @classmethod
    def read(cls, folder: Path) -> ReferenceStatistics:
        summary = read_json(folder / "summary.json")
        counts = pq.read_table(folder / "statistics" / "tokens.parquet")["train"].to_numpy()
        return cls(str(summary["snapshot"]), summary, counts.astype(np.int64))
