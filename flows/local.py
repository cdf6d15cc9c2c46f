"""A night from the command line: against the server that PREFECT_API_URL names, or against an embedded one.

Everything that can be done before Prefect is: bad input is refused, the first stage starts, and a night that has
nothing to do is over before Prefect is imported.
"""

from __future__ import annotations

import os

from flows.embedded import QUIET, embedded_server
from tasks.night import Night
from tokenmill.invocations import Outcome
from tokenmill.protocol import StageName
from tokenmill.runs import finished_run, has_finished

FLUSH_SECONDS = 5.0


def spend_night(night: Night) -> Outcome:
    """Run the flow `retrain` on an open night."""
    if os.environ.get("PREFECT_API_URL"):
        os.environ.update(QUIET)
        _start_first_stage(night)
        _run_flow(night)
    elif not _nothing_to_do(night):
        with embedded_server(night.workspace.root / "prefect") as server:
            _start_first_stage(night)
            os.environ.update(server.client_environment())
            import flows.retrain  # noqa: F401 - takes seconds, in which the server comes up

            server.wait_until_healthy()
            _run_flow(night)
    return night.invocation.outcome


def _start_first_stage(night: Night) -> None:
    night.start_early(StageName.TRAIN if night.run is not None else StageName.PREPARE)


def _run_flow(night: Night) -> None:
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    from flows.retrain import retrain, use

    with use(night):
        retrain(pipeline=night.name, overrides=night.invocation.overrides, return_state=True)
    # What is still under way to the server would otherwise meet a closed port, and hold up the end of this process.
    APILogWorker.drain_all(timeout=FLUSH_SECONDS)
    EventsWorker.drain_all(timeout=FLUSH_SECONDS)


def _nothing_to_do(night: Night) -> bool:
    """Whether today's snapshot is trained already. Looked at only where that is likely: an earlier run has finished."""
    if night.run is not None or not has_finished(night.workspace, night.name, night.pipeline):
        return False
    night.attempt(StageName.PREPARE)
    snapshot = night.outputs.get(StageName.PREPARE, {}).get("snapshot")
    run = finished_run(night.workspace, night.name, night.pipeline, snapshot) if snapshot else None
    if run is None:
        return False
    night.end_as_trained(run)
    night.attempt(StageName.REPORT)
    night.end(night.invocation.outcome, night.invocation.message)
    return True
