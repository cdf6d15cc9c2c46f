"""Prepare: documents in, a snapshot of packed token shards out.

Skipped when the pipeline has an unfinished run: that goes on with its own snapshot. Otherwise it always runs, and
returns in moments when nothing in the corpus changed.

With `runtime.prepare_machines` over one it is plan → build → commit: what is missing is cut into batches of a minute or
more of work, and each is a mapped task. A batch that fails is tried once more, then left to the commit, which builds
what is still missing: no batch can fail the night.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import BoundedSemaphore

from prefect import task, unmapped
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State

from tasks.again import until_done
from tasks.night import Night
from tasks.timeline import on_timeline, part_on_timeline
from tokenmill.protocol import StageName

BATCH_ATTEMPTS = 2


def prepare(night: Night) -> str:
    """The id of the snapshot of today's corpus."""
    if night.prepare_inputs:
        planned = until_done(night, StageName.PREPARE, partial(plan_task, night, return_state=True)).outputs
        night.prepare_inputs = {}
        if planned["batches"]:
            build = partial(build_batch, night, str(planned["plan"]))
            map_batches(build, int(planned["batches"]), night.pipeline.runtime.prepare_machines)
    result = until_done(night, StageName.PREPARE, partial(prepare_task, night, return_state=True))
    return str(result.outputs["snapshot"])


@task(name="prepare", cache_policy=NO_CACHE, persist_result=False)
def prepare_task(night: Night) -> State:
    return on_timeline(night, StageName.PREPARE)


@task(name="plan", cache_policy=NO_CACHE, persist_result=False)
def plan_task(night: Night) -> State:
    return on_timeline(night, StageName.PREPARE)


def map_batches(build: Callable[[int], State], batches: int, machines: int) -> list[State]:
    """Build all batches, `machines` at a time: a task each."""
    turn = BoundedSemaphore(machines)
    futures = build_task.map(unmapped(build), list(range(batches)), unmapped(turn), return_state=False)
    for future in futures:
        future.wait()
    return [future.state for future in futures]


@task(name="build", task_run_name="build batch {batch}", cache_policy=NO_CACHE, persist_result=False)
def build_task(build: Callable[[int], State], batch: int, turn: BoundedSemaphore) -> State:
    with turn:
        return build(batch)


def build_batch(night: Night, plan: str, batch: int) -> State:
    """One batch, in a stage of its own."""
    inputs = {"part": "build", "plan": plan, "batch": batch}
    for _ in range(BATCH_ATTEMPTS):
        state = part_on_timeline(night, StageName.PREPARE, inputs)
        if state.is_completed() or night.stop:
            break
    return state
