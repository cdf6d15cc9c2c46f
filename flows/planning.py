"""`tokenmill plan`: what a start would do. Looks at the workspace and at the names of the corpus's files only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tokenmill.cost.money import format_rate
from tokenmill.cost.prices import resolve_price
from tokenmill.invocations import running_invocation
from tokenmill.pipelines import Pipeline
from tokenmill.runs import Run, list_runs, unfinished_run
from tokenmill.stages.forecast import forecast
from tokenmill.workspace import Workspace


def plan_lines(name: str, pipeline: Pipeline) -> Iterator[str]:
    workspace = Workspace(Path(pipeline.workspace))
    yield f"pipeline   {name} (identity {pipeline.identity_fingerprint()})"
    yield f"workspace  {workspace.root}"
    running = running_invocation(workspace, name)
    if running is not None:
        yield f"running    {running}: a start now would be refused"
    run = unfinished_run(workspace, name, pipeline)
    if run is not None:
        yield f"train      would go on with run {run.id} from step {run.committed_step:,}, on snapshot {run.snapshot}"
        yield "prepare    nothing: the corpus is not looked at while a run is unfinished (--fresh gives it up)"
    else:
        yield from _prepare_lines(pipeline)
        yield from _train_lines(name, pipeline, workspace)
    yield f"price      {_price(pipeline)}"
    yield from _estimate_lines(workspace, pipeline, run)


def _prepare_lines(pipeline: Pipeline) -> Iterator[str]:
    for source in pipeline.corpus.sources:
        yield f"prepare    source {source.name}: {', '.join(source.include)} under {source.root}"


def _train_lines(name: str, pipeline: Pipeline, workspace: Workspace) -> Iterator[str]:
    wanted = pipeline.identity_fingerprint()
    earlier = [run for run in list_runs(workspace) if run.pipeline == name and run.identity_fingerprint == wanted]
    if not earlier:
        yield "train      a new run: this pipeline has none of the same identity"
    for run in earlier[-3:]:
        yield f"train      {_about(run)}"


def _about(run: Run) -> str:
    if run.status == "completed":
        return f"nothing, if the corpus still gives snapshot {run.snapshot}: run {run.id} has trained it"
    return f"would go on with run {run.id} ({run.status}), if the corpus still gives snapshot {run.snapshot}"


def _estimate_lines(workspace: Workspace, pipeline: Pipeline, run: Run | None) -> Iterator[str]:
    made = forecast(workspace, pipeline, resolve_price(pipeline.cost), run)
    if made is None:
        yield "estimate   none: how many steps there are is known once a snapshot is prepared"
        return
    for sentence in made.sentences:
        yield f"estimate   {sentence}"
    if pipeline.cost != "unpriced" and pipeline.cost.budget_usd is not None and made.usd is not None:
        fits = "within" if made.usd[1] <= pipeline.cost.budget_usd else "OVER"
        yield f"budget     {fits} ${pipeline.cost.budget_usd}"


def _price(pipeline: Pipeline) -> str:
    price = resolve_price(pipeline.cost)
    if price is None:
        return "unpriced: reports show seconds and tokens, no dollars"
    note = f" ({price.note})" if price.note else ""
    return (
        f"{format_rate(price.usd_per_hour)} an hour for {price.machine_type}, {price.market}, from {price.source}{note}"
    )
