"""Train: as many attempts as it takes, on the same run. What the model writes is an artifact, night by night."""

from __future__ import annotations

from functools import partial
from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State

from tasks.again import until_done
from tasks.night import Night, NightOver
from tasks.timeline import artifact_key, on_timeline
from tokenmill.cost.estimate import check_budget
from tokenmill.cost.prices import resolve_price
from tokenmill.errors import UserError
from tokenmill.protocol import StageName, StageResult
from tokenmill.stages.forecast import forecast
from tokenmill.workspace import read_json


def train(night: Night) -> StageResult:
    refuse_over_budget(night)
    return until_done(night, StageName.TRAIN, partial(train_task, night, return_state=True))


def refuse_over_budget(night: Night) -> None:
    """A run that is estimated over `cost.budget_usd` is not begun; one that is under way is held by its guard."""
    cost = night.pipeline.cost
    if cost == "unpriced" or cost.budget_usd is None or night.run is None or night.run.attempts:
        return
    made = forecast(night.workspace, night.pipeline, resolve_price(cost), night.run)
    try:
        if made is not None:
            check_budget(made, cost.budget_usd)
    except UserError as error:
        raise NightOver("user_error", str(error)) from None


def _attempt_name() -> str:
    from prefect.runtime import task_run

    night = task_run.parameters["night"]
    return f"train, attempt {night.run.attempts + 1 if night.run else 1}"


@task(name="train", task_run_name=_attempt_name, cache_policy=NO_CACHE, persist_result=False)
def train_task(night: Night) -> State:
    state = on_timeline(night, StageName.TRAIN)
    samples = read_samples(night)
    if state.is_completed() and samples:
        create_markdown_artifact(samples_markdown(samples), key=artifact_key("samples", night.name))
    return state


def read_samples(night: Night) -> list[dict[str, Any]]:
    """What the trained model wrote: `prompt` and `text`. Empty if the run has none."""
    if night.run is None:
        return []
    try:
        samples: list[dict[str, Any]] = read_json(night.workspace.run(night.run.id) / "samples.json")
    except FileNotFoundError:
        return []
    return samples


def samples_markdown(samples: list[dict[str, Any]]) -> str:
    """Each sample in a code block that its own text cannot end."""
    blocks = (f"**{sample['prompt']}**\n\n````text\n{sample['text']}\n````" for sample in samples)
    return "# What the model writes\n\n" + "\n\n".join(blocks)
