"""A night from the command line: against the server that PREFECT_API_URL names, or against an embedded one.

Everything that can be done before Prefect is: bad input is refused, the first stage starts, and a night that has
nothing to do is over before Prefect is imported.
"""

from __future__ import annotations

import os

from flows.embedded import CLIENT, embedded_server
from tasks.again import until_done
from tasks.night import Night, NightOver, finish
from tokenmill.invocations import Outcome
from tokenmill.protocol import StageName
from tokenmill.runs import has_finished

FLUSH_SECONDS = 5.0


def spend_night(night: Night) -> Outcome:
    """Run the flow `retrain` on an open night."""
    first = StageName.TRAIN if night.run is not None else StageName.PREPARE
    if os.environ.get("PREFECT_API_URL"):
        os.environ.update(CLIENT)
        night.start_early(first)
        _run_flow(night)
    elif not _nothing_to_do(night):
        home = night.workspace.root / "prefect"
        patience = "" if (home / "prefect.db").exists() else " (about 20 seconds, the first time)"
        with embedded_server(home) as server:
            night.start_early(first)
            night.say(f"starting Prefect's server{patience}")
            os.environ.update(server.client_environment())
            import flows.retrain  # noqa: F401 - takes seconds, in which the server comes up

            if server.wait_until_healthy(unless=night.must_end_early):
                try:
                    _run_flow(night)
                except Exception:
                    # The night has its outcome and report by then (flows.retrain.spend); Prefect cannot be told.
                    if not server.has_died:
                        raise
            else:
                _end_early(night, first)
    return night.invocation.outcome


def _run_flow(night: Night) -> None:
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    from flows.retrain import retrain, use

    with use(night):
        retrain(pipeline=night.name, settings=night.invocation.overrides, return_state=True)
    # What is still under way to the server would otherwise meet a closed port, and hold up the end of this process.
    APILogWorker.drain_all(timeout=FLUSH_SECONDS)
    EventsWorker.drain_all(timeout=FLUSH_SECONDS)


def _nothing_to_do(night: Night) -> bool:
    """Whether today's snapshot is trained already. Looked at only where that is likely: an earlier run has finished."""
    if night.run is not None or not has_finished(night.workspace, night.name, night.pipeline):
        return False
    night.attempt(StageName.PREPARE)
    try:
        if StageName.PREPARE in night.outputs:
            night.end_if_trained(night.outputs[StageName.PREPARE].get("snapshot", ""))
    except NightOver as over:
        _finish(night, over)
        return True
    return False


def _end_early(night: Night, first: StageName) -> None:
    """The first stage met a mistake, or a person a second thought, before the server was up: no flow run is needed."""
    try:
        until_done(night, first, lambda: night.attempt(first))
        raise NightOver("interrupted", f"interrupted after {first} ({night.stop.reason}); start again to go on")
    except NightOver as over:
        _finish(night, over)


def _finish(night: Night, over: NightOver) -> None:
    finish(night, over.outcome, str(over), lambda: night.attempt(StageName.REPORT))
