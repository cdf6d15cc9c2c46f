"""Which workspaces a pipelines.yaml names, and what lies in them: for `stop`, `show` and `ls`. Nothing is created."""

from __future__ import annotations

from tokenmill.errors import UserError
from tokenmill.invocations import running_invocation
from tokenmill.pipelines import Pipeline, PipelineFile
from tokenmill.runs import Run, list_runs
from tokenmill.workspace import Workspace

LOOK_SECONDS = 5.0
"""How long a command that only looks waits for a store that is away."""


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
    """The workspaces of the file's pipelines that exist on this machine, or on an object store."""
    found = {name: item for name, item in loadable(file).items() if isinstance(item, Pipeline)}
    for item in {item.workspace: item for item in found.values() if item.is_remote}.values():
        workspace = Workspace(item.local_workspace)
        # While a night works here, the stage folder is ahead of the store.
        if not any(running_invocation(workspace, name) for name in found):
            from tokenmill.mirror import Mirror
            from tokenmill.store import Store

            Mirror(workspace.root, Store(item.workspace, patience_seconds=LOOK_SECONDS)).pull_small()
    roots = {item.local_workspace for item in found.values()}
    return [Workspace(root) for root in sorted(roots) if root.is_dir()]


def refuse_remote(file: PipelineFile, command: str) -> None:
    """For commands that remove from a workspace: one on an object store would keep what they remove here."""
    for name, item in loadable(file).items():
        if isinstance(item, Pipeline) and item.is_remote:
            raise UserError(
                f"{command}: the workspace of pipeline '{name}' is on an object store, where this "
                "command cannot remove anything yet; leave out --yes, and remove objects with the store's own tools"
            )


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
