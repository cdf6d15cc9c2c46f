"""The retrain flow, as a table of contents: prepare → validate → train → report.

Every end of a night leaves a report, because money was spent: finished, refused, interrupted, crashed, out of budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path

from prefect import flow
from prefect.client.schemas import State, StateType
from prefect.runtime import flow_run

from tasks.night import Night, NightOver, finish, open_night
from tasks.prepare import prepare
from tasks.report import report
from tasks.train import train
from tasks.validate import validate
from tokenmill.invocations import Outcome
from tokenmill.pipelines import read_pipeline_file
from tokenmill.protocol import StageName

_opened: ContextVar[Night | None] = ContextVar("night opened by the command line", default=None)

_STATES: dict[Outcome, tuple[StateType, str]] = {
    "finished": (StateType.COMPLETED, "Completed"),
    "already_trained": (StateType.COMPLETED, "AlreadyTrained"),
    "stopped_by_condition": (StateType.COMPLETED, "StoppedByCondition"),
    "stopped_by_budget": (StateType.COMPLETED, "StoppedByBudget"),
    "refused_by_validation": (StateType.FAILED, "Refused"),
    "user_error": (StateType.FAILED, "UserError"),
    "crashed": (StateType.FAILED, "Failed"),
    "interrupted": (StateType.CRASHED, "Interrupted"),
    "cancelled": (StateType.CANCELLED, "Cancelled"),
}


def _flow_run_name() -> str:
    night = _opened.get()
    pipeline = str(flow_run.parameters["pipeline"])
    return f"{pipeline} {night.invocation.id.partition('-')[0]}" if night else pipeline


@flow(name="retrain", flow_run_name=_flow_run_name, persist_result=False)
def retrain(
    pipeline: str, overrides: Sequence[str] = (), fresh: bool = False, file: Path = Path("pipelines.yaml")
) -> State:
    """Retrain `pipeline` and say what each token cost."""
    night = _opened.get()
    if night is not None:
        return spend(night)
    with open_night(pipeline, read_pipeline_file(file).load(pipeline, overrides), overrides, fresh=fresh) as night:
        return spend(night)


def spend(night: Night) -> State:
    """The night, from its first stage to its report."""
    # Prefect's own SIGTERM handler, installed when the flow began, would raise in the middle of anything.
    with night.stop.on_signals():
        try:
            outcome, message = work(night)
        except BaseException as error:
            night.end("crashed", f"the flow itself crashed: {type(error).__name__}: {error}")
            night.attempt(StageName.REPORT)
            raise
        finish(night, outcome, message, partial(report, night))
    state, name = _STATES[outcome]
    return State(type=state, name=name, message=message)


def work(night: Night) -> tuple[Outcome, str]:
    """Everything but the report: the outcome, and one sentence about it."""
    try:
        if night.run is None:
            snapshot = prepare(night)
            night.end_if_trained(snapshot)
            verdict = validate(night)
            night.end_if_trained(verdict["snapshot"])
            night.open_run(verdict["snapshot"], verdict["validation"])
        result = train(night)
    except NightOver as over:
        return over.outcome, str(over)
    if result.status == "completed":
        return "finished", result.message
    assert result.status in ("stopped_by_budget", "stopped_by_condition")
    return result.status, result.message


@contextmanager
def use(night: Night) -> Iterator[None]:
    """In this block `retrain` works on a night that is open already."""
    token = _opened.set(night)
    try:
        yield
    finally:
        _opened.reset(token)
