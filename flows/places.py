"""Which workspaces a pipelines.yaml names, and what lies in them: for `stop`, `show` and `ls`. Nothing is created."""

from __future__ import annotations

from pathlib import Path

from tokenmill.errors import UserError
from tokenmill.pipelines import Pipeline, PipelineFile
from tokenmill.runs import Run, list_runs
from tokenmill.workspace import Workspace


def loadable(file: PipelineFile) -> dict[str, Pipeline | UserError]:
    """Every pipeline of the file, or why it cannot be loaded here (an environment variable that is not set, say)."""
    found: dict[str, Pipeline | UserError] = {}
    for name in file.pipelines:
        try:
            found[name] = file.load(name)
        except UserError as error:
            found[name] = error
    return found


def workspaces(file: PipelineFile) -> list[Workspace]:
    """The workspaces of the file's pipelines that exist on this machine."""
    locations = {item.workspace for item in loadable(file).values() if isinstance(item, Pipeline)}
    return [Workspace(Path(location)) for location in sorted(locations) if Path(location).is_dir()]


def find_run(file: PipelineFile, wanted: str) -> tuple[Workspace, Run]:
    """The run whose id begins with `wanted`, or the newest run of the pipeline called so."""
    candidates = [(workspace, run) for workspace in workspaces(file) for run in list_runs(workspace)]
    of_pipeline = [item for item in candidates if item[1].pipeline == wanted]
    if of_pipeline:
        return of_pipeline[-1]
    matches = [item for item in candidates if item[1].id.startswith(wanted)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UserError(f"run '{wanted}' is ambiguous: {', '.join(run.id for _, run in matches)}; give more of the id")
    known = ", ".join(run.id for _, run in candidates[-5:]) or "none"
    raise UserError(f"there is no run or pipeline with runs called '{wanted}'; newest runs: {known}")
