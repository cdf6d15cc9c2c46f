"""Nights on fake stages: a pipeline over one small text file, in a folder of the test's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks.night import Night, open_night
from tasks.runtime import ProcessRuntime
from tokenmill.pipelines import Pipeline
from tokenmill.protocol import LogLine, ProgressLine

ROOT = Path(__file__).parents[2]


class Quiet:
    """A listener that calls back at a word and otherwise keeps silent."""

    def __init__(self, **on: Any) -> None:
        self.on = on

    def log(self, line: LogLine) -> None:
        if line.message in self.on:
            self.on[line.message]()

    def progress(self, line: ProgressLine) -> None:
        pass


def pipeline(folder: Path, **training: Any) -> Pipeline:
    notes = folder / "notes"
    if not notes.exists():
        notes.mkdir(parents=True)
        (notes / "a.txt").write_text("hello")
    return Pipeline.model_validate(
        {
            "workspace": str(folder / "workspace"),
            "corpus": {"sources": [{"name": "notes", "root": str(notes)}]},
            "tokenizer": {"vocab_size": 300},
            "training": {"length": {"steps": 10}, **training},
            "cost": {"usd_per_hour": 1},
            "runtime": {"grace_seconds": 5},
        }
    )


def order(folder: Path, stage: str, *lines: str, workspace: Path | None = None) -> None:
    """What the next starts of `stage` shall do, one a line."""
    script = (workspace or folder / "workspace") / "script" / stage
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text("\n".join(lines))


@contextmanager
def fake_night(
    folder: Path,
    *,
    fresh: bool = False,
    name: str = "small",
    machines: int = 1,
    changes: dict[str, Any] | None = None,
    **training: Any,
) -> Iterator[Night]:
    """`changes` replace keys of the pipeline."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ROOT)
    try:
        runtime = ProcessRuntime("tests.orchestration.fake_stages")
        made = pipeline(folder, **training).model_copy(update=changes or {})
        many = made.runtime.model_copy(update={"prepare_machines": machines})
        with open_night(name, made.model_copy(update={"runtime": many}), fresh=fresh, runtime=runtime) as night:
            yield night
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
