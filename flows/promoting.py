"""`tokenmill promote`: a run's model becomes the pipeline's next one, which other runs may start from."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from rich.console import Console

from flows.places import find_run
from tokenmill.errors import UserError
from tokenmill.locks import locked
from tokenmill.pipelines import PipelineFile
from tokenmill.runs import Run
from tokenmill.workspace import Workspace, publish_folder, read_json, write_atomic, write_json

MODEL_FILE = "model.json"


def promote(console: Console, file: PipelineFile, wanted: str) -> None:
    """Copy the model of a run (or of a pipeline's newest run) to `models/<pipeline>/<number>` and name it `latest`."""
    workspace, run = find_run(file, wanted)
    name = promote_run(workspace, run)
    console.print(f"{name} is the model of run {run.id}, and latest", highlight=False)


def promote_run(workspace: Workspace, run: Run) -> str:
    """`pipeline/number` of the model; a run that was promoted before keeps its number. Raises `UserError`."""
    source = workspace.run(run.id) / "model"
    if not (workspace.run(run.id) / "summary.json").exists() or not source.is_dir():
        raise UserError(f"run {run.id} ({run.status}) has no model yet; train it to its end first")
    folder = workspace.root / "models" / run.pipeline
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock"):
        numbers = sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
        number = next((n for n in numbers if _run_of(folder / str(n)) == run.id), None)
        if number is None:
            number = max(numbers, default=0) + 1
            with publish_folder(folder / str(number)) as beside:
                shutil.copytree(source, beside, dirs_exist_ok=True)
                write_json(beside / MODEL_FILE, {"run": run.id, "snapshot": run.snapshot, "promoted": time.time()})
        write_atomic(folder / "latest", f"{number}\n".encode())
    return f"{run.pipeline}/{number}"


def _run_of(model: Path) -> str | None:
    try:
        return str(read_json(model / MODEL_FILE)["run"])
    except (OSError, ValueError, KeyError):
        return None
