"""The flow `tune`: prepare, then trials of many configurations, the better half of them longer, then a table.

A tuning is known by its snapshot, model, machine and grid: started again, it goes on where it was.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State, StateType
from pydantic import Field

from tasks.night import Night, NightOver, open_night
from tasks.prepare import prepare
from tasks.timeline import PrefectListener, artifact_key
from tasks.trial import measure, sweep
from tokenmill.canonical import fingerprint
from tokenmill.cost.prices import resolve_price
from tokenmill.cost.tuning import Knobs, Trial, grid
from tokenmill.cost.tuning_page import first_line, markdown, page, rows
from tokenmill.errors import UserError
from tokenmill.pipelines import Pipeline, read_pipeline_file
from tokenmill.training import hardware
from tokenmill.workspace import write_atomic


@flow(name="tune", flow_run_name="tune {pipeline}", persist_result=False)
def tune(
    pipeline: str,
    overrides: list[str] | None = None,
    budget_usd: Annotated[float | None, Field(gt=0)] = None,
    max_minutes: Annotated[float, Field(gt=0)] = 30,
    sequence_lengths: list[int] | None = None,
    batch_sizes: list[int] | None = None,
    accumulations: list[int] | None = None,
    precisions: list[str] | None = None,
    xla: list[str] | None = None,
    file: str = "pipelines.yaml",
) -> State:
    """Measure batch size, sequence length, precision, XLA and accumulation in short trials.

    Args:
        pipeline: A pipeline of the file.
        overrides: Keys of the pipeline to overrule, each as `dotted.key=value`.
        budget_usd: What the trials may cost in all.
        max_minutes: How long the trials may take in all.
        sequence_lengths: Tokens a row; default: the pipeline's, and half of it.
        batch_sizes: Sequences in an update; default: the pipeline's, and twice that.
        accumulations: Passes that a device's update is made of; default: 1 and 2.
        precisions: Default: float32 and bfloat16.
        xla: off, on or fuse; default: off and on.
        file: The file of named pipelines, on the machine that runs the flow.
    """
    try:
        loaded = read_pipeline_file(Path(file)).load(pipeline, list(overrides or []))
        if budget_usd is not None and loaded.cost == "unpriced":
            raise UserError("budget_usd: the pipeline is unpriced; limit the tuning with max_minutes instead")
        now = as_it_is(loaded)
        candidates = grid(
            now,
            sequence_lengths=sequence_lengths or [now.sequence_length, now.sequence_length // 2],
            batch_sizes=batch_sizes or [now.global_batch_size, 2 * now.global_batch_size],
            accumulations=accumulations or [1, 2],
            precisions=precisions or ["float32", "bfloat16"],
            xla=xla or ["off", "on"],
        )
        with open_night(pipeline, loaded, list(overrides or [])) as night:
            night.run = None  # trials belong to no run
            return _spend(night, now, candidates, budget_usd, max_minutes)
    except UserError as error:
        return State(type=StateType.FAILED, name="UserError", message=str(error))


def as_it_is(pipeline: Pipeline) -> Knobs:
    """The pipeline's own configuration; `auto` as a first trial would meet it on this machine's CPU, or on one GPU."""
    training = pipeline.training
    devices = 1 if training.devices == "auto" else training.devices
    micro = training.micro_batch_size
    on_new_gpu = training.precision == "auto" and training.device_kind == "gpu"
    return Knobs(
        sequence_length=pipeline.tokens.sequence_length,
        global_batch_size=training.global_batch_size,
        micro_batch_size=training.global_batch_size // devices if micro == "auto" else micro,
        precision="bfloat16" if on_new_gpu else hardware.choose_precision(training, hardware.cpu_flags(), [])[0],
        xla=hardware.choose_xla(training)[0],
    )


def _spend(night: Night, now: Knobs, candidates: list[Knobs], budget_usd: float | None, max_minutes: float) -> State:
    with night.stop.on_signals():
        try:
            snapshot = prepare(night)
        except NightOver as over:
            night.end("cancelled" if over.outcome == "interrupted" else over.outcome, str(over))
            return State(type=StateType.FAILED, name="Failed", message=str(over))
        about = [snapshot, night.pipeline.model.model_dump(mode="json"), [knobs.key for knobs in candidates]]
        machine = None if night.pipeline.cost == "unpriced" else night.pipeline.cost.machine_type
        folder = night.workspace.root / "tunes" / f"{night.name}-{fingerprint([*about, machine])[:10]}"
        with _limit(night, budget_usd, max_minutes) as may_begin:
            trials, whole = sweep(
                night,
                folder,
                candidates,
                lambda knobs, rung: trial_task.with_options(name=f"trial {knobs.key}")(night, snapshot, knobs, rung),
                may_begin,
            )
    ending = f"All {len(candidates)} configurations were looked at."
    if not whole:
        why = night.stop.reason or "the budget or the time of the tuning is used up"
        ending = f"Ended early ({why}); the same command goes on where it was."
    _publish(night, folder, trials, now, ending)
    sentence = first_line(trials, now)
    night.end("finished" if whole else "cancelled", f"tuning: {sentence} {ending}")
    return State(type=StateType.COMPLETED, name="Completed" if whole else "EndedEarly", message=sentence)


@contextmanager
def _limit(night: Night, budget_usd: float | None, max_minutes: float) -> Iterator[Any]:
    """Yields whether one more trial may begin; a trial that is under way at the limit is ended."""
    price = resolve_price(night.pipeline.cost)
    seconds = 60 * max_minutes
    if budget_usd is not None and price is not None and price.usd_per_hour > 0:
        seconds = min(seconds, float(Decimal(repr(budget_usd)) / price.usd_per_hour * 3600))
    end = time.monotonic() + seconds
    timer = threading.Timer(seconds, night.stop.interrupt, ["the budget or the time of the tuning is used up"])
    timer.daemon = True
    timer.start()

    def may_begin(trials: list[Trial]) -> bool:
        longest = max((trial.billed_seconds for trial in trials), default=0.0)
        return not night.stop and time.monotonic() + longest < end

    try:
        yield may_begin
    finally:
        timer.cancel()


@task(cache_policy=NO_CACHE, persist_result=False)
def trial_task(night: Night, snapshot: str, knobs: Knobs, rung: int) -> Trial | None:
    return measure(night, snapshot, knobs, rung, PrefectListener("", night.name))


def _publish(night: Night, folder: Path, trials: list[Trial], now: Knobs, ending: str) -> None:
    text = markdown(trials, now, ending)
    write_atomic(folder / "tune.md", text.encode())
    write_atomic(folder / "tune.html", page(trials, now, ending, f"tuning of {night.name}").encode())
    create_markdown_artifact(text, key=artifact_key("tune", night.name))
    create_table_artifact(rows(trials), key=artifact_key("tune-trials", night.name))
    night.say(f"the tuning's page: {folder / 'tune.html'}")
    print(text.split("![", maxsplit=1)[0])
    print(f"page  {folder / 'tune.html'}")
