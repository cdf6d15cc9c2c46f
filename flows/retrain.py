"""The retrain flow, as a table of contents: prepare → validate → train → report.

Every end of a night leaves a report, because money was spent: finished, refused, interrupted, crashed, out of budget.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas import State, StateType
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from pydantic import Field

from flows.form import Overrides, Setting
from tasks.again import place
from tasks.deaths import refuse_endless_deaths
from tasks.night import Night, NightOver, finish, open_night
from tasks.prepare import prepare
from tasks.report import report
from tasks.train import train
from tasks.validate import validate
from tokenmill.errors import UserError
from tokenmill.invocations import AlreadyRunningError, Outcome, running_invocation
from tokenmill.pipelines import Pipeline, read_pipeline_file
from tokenmill.protocol import StageName
from tokenmill.runs import finished_run
from tokenmill.workspace import Workspace

WAIT_SECONDS = 5.0
TRAINED: tuple[Outcome, ...] = ("finished", "stopped_by_condition", "stopped_by_budget")

_opened: ContextVar[Night | None] = ContextVar("night opened by the command line", default=None)

STATES: dict[Outcome, tuple[StateType, str]] = {
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
    """The pipeline and the night, so that a list of flow runs can be read; the run follows (`name_run`)."""
    night = _opened.get()
    started = datetime.fromtimestamp(night.invocation.started, UTC) if night else datetime.now(UTC)
    return f"{flow_run.parameters['pipeline']} {started:%Y-%m-%d %H:%M}"


def name_run(night: Night) -> None:
    """Once the night has a run, the flow run's name says which."""
    if night.run is not None and flow_run.id is not None:
        started = datetime.fromtimestamp(night.invocation.started, UTC)
        with get_client(sync_client=True) as client:
            client.update_flow_run(
                UUID(str(flow_run.id)), name=f"{night.name} {started:%Y-%m-%d %H:%M} run {night.run.id}"
            )


@flow(name="retrain", flow_run_name=_flow_run_name, persist_result=False)
def retrain(
    pipeline: str,
    overrides: Overrides | None = None,
    settings: list[Setting] | None = None,
    fresh: bool = False,
    budget_usd: Annotated[float | None, Field(gt=0, title="Budget in US dollars")] = None,
    market: Literal["on_demand", "spot"] | None = None,
    file: str = "pipelines.yaml",
) -> State:
    """Retrain a pipeline and say what each token cost.

    Args:
        pipeline: A pipeline of the file.
        overrides: Other values for this night.
        settings: Any other keys of the pipeline to overrule, each as `dotted.key=value`.
        fresh: Give up the unfinished run, if there is one.
        budget_usd: Stops the run before it has cost more.
        market: The price list to bill by, and to rent from.
        file: The file of named pipelines, on the machine that runs the flow.
    """
    night = _opened.get()
    if night is not None:
        return spend(night)
    changes = [*(overrides.settings() if overrides else []), *(settings or [])]
    changes += [f"cost.budget_usd={budget_usd}"] if budget_usd is not None else []
    changes += [f"cost.market={market}"] if market is not None else []
    try:
        loaded = read_pipeline_file(Path(file)).load(pipeline, changes)
        while True:
            wait_for_turn(pipeline, loaded)
            try:
                with open_night(pipeline, loaded, changes, fresh=fresh) as night:
                    return spend(night)
            except AlreadyRunningError as error:
                if loaded.schedule.when_running == "skip":
                    return State(type=StateType.COMPLETED, name="Skipped", message=str(error))
    except UserError as error:
        return State(type=StateType.FAILED, name="UserError", message=str(error))


def wait_for_turn(name: str, pipeline: Pipeline) -> None:
    """With `schedule.when_running: wait`, until no other start of the pipeline runs."""
    said = False
    while pipeline.schedule.when_running == "wait" and (
        running := running_invocation(Workspace(pipeline.local_workspace), name)
    ):
        if not said:
            get_run_logger().info("pipeline '%s' is running already (%s): waiting for its end", name, running)
            said = True
        time.sleep(WAIT_SECONDS)


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
        loud = data_refused(night) if outcome in TRAINED else ""
        message = loud + message
        finish(night, outcome, message, partial(report, night))
    state, name = STATES[outcome]
    name = f"{name}OnLastGood" if loud else name
    return State(type=state, name=name, message=message)


def work(night: Night) -> tuple[Outcome, str]:
    """Everything but the report: the outcome, and one sentence about it."""
    try:
        refuse_endless_deaths(night)
        if night.run is None:
            snapshot = prepare(night)
            night.end_if_trained(snapshot)
            verdict = validate(night)
            refuse_if_nothing_good_is_new(night, verdict)
            night.end_if_trained(verdict["snapshot"])
            night.open_run(verdict["snapshot"], verdict["validation"])
        name_run(night)
        result = train(night)
    except NightOver as over:
        if over.outcome == "interrupted" and cancelled_at_server():
            return (
                "cancelled",
                f"cancelled {place(night, night.invocation.stages[-1].stage)}; it does not go on by itself",
            )
        return over.outcome, str(over)
    if result.status == "completed":
        return "finished", result.message
    assert result.status in ("stopped_by_budget", "stopped_by_condition")
    return result.status, result.message


def refuse_if_nothing_good_is_new(night: Night, verdict: dict[str, Any]) -> None:
    """With `checks.on_fail: train_on_last_good`: refused data, and a last good snapshot that is trained already."""
    refused = verdict.get("refused")
    if refused and finished_run(night.workspace, night.name, night.pipeline, verdict["snapshot"]):
        raise NightOver(
            "refused_by_validation",
            f"no training, data refused: {refused['sentence']} "
            f"The last good snapshot, {verdict['snapshot']}, is trained already",
        )


def data_refused(night: Night) -> str:
    """The beginning of the outcome's sentence where the run trains the last good snapshot for want of good data."""
    refused = night.outputs_of(StageName.VALIDATE).get("refused")
    if not refused:
        return ""
    return f"DATA REFUSED, the last good snapshot was trained on instead: {refused['sentence']} "


def cancelled_at_server() -> bool:
    """Whether a person has cancelled this flow run: a dying `serve` sends the same signal, and no such state."""
    if flow_run.id is None:
        return False
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(str(flow_run.id))).state
    return state is not None and state.type in (StateType.CANCELLING, StateType.CANCELLED)


@contextmanager
def use(night: Night) -> Iterator[None]:
    """In this block `retrain` works on a night that is open already."""
    token = _opened.set(night)
    try:
        yield
    finally:
        _opened.reset(token)
