"""`tokenmill stop`: ask the process that works on a run to save and end; close the run if no process does."""

from __future__ import annotations

from flows.places import find_run, loadable
from tokenmill.errors import UserError
from tokenmill.invocations import ask_to_stop, running_invocation
from tokenmill.pipelines import Pipeline, PipelineFile
from tokenmill.runs import RunStatus, update_run
from tokenmill.workspace import Workspace


def stop_run(file: PipelineFile, wanted: str) -> str:
    """Returns one sentence about what has been done. Raises `UserError` if there is nothing to stop."""
    pipeline = loadable(file).get(wanted)
    if isinstance(pipeline, Pipeline):
        workspace = Workspace(pipeline.local_workspace)
        running = running_invocation(workspace, wanted)
        if running is not None:
            ask_to_stop(workspace, running)
            return f"asked {running} to save and end"
    workspace, run = find_run(file, wanted)
    running = running_invocation(workspace, run.pipeline)
    if running is not None:
        ask_to_stop(workspace, running)
        return f"asked {running} to save and end"
    if run.status is not RunStatus.OPEN:
        raise UserError(f"run {run.id} does not run: it is {run.status}")
    update_run(workspace, run.id, status=RunStatus.CANCELLED, message="stopped by hand between two starts")
    return f"run {run.id} is not running now; it is marked as cancelled and does not go on by itself"
