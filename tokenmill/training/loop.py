"""The outer loop: draws batches, calls the compiled updates, and lets hooks do everything else in between.

A call runs several updates, as many as fit into `CALL_SECONDS`, so that the way between Python and the devices costs
nothing, and a stop is seen soon. How updates are cut into calls never shows in the numbers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import monotonic
from typing import Literal, Protocol

from tokenmill.errors import UserError
from tokenmill.telemetry.phases import PhaseClock
from tokenmill.training.batches import BatchReader, Draw
from tokenmill.training.progress import Progress
from tokenmill.training.settings import LossSpikeSettings
from tokenmill.training.update import Updater, UpdateResults

CALL_SECONDS = 0.5
MAX_UPDATES_PER_CALL = 64
MAX_CONSECUTIVE_SKIPS = 50
"""A dynamic loss scale needs up to 40 halvings to find its place; more in a row means that training is broken."""


RECENT_LOSSES, ENOUGH_LOSSES = 64, 16
"""For the median that a spike is measured by."""


class StopSignal(Protocol):
    """The harness's stop flag."""

    reason: str

    def __bool__(self) -> bool: ...

    def check(self) -> None: ...

    def listen_again(self) -> None: ...

    def nothing_to_save(self) -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class StepInfo:
    """What hooks see after each call of the compiled updates."""

    progress: Progress
    loss: float
    """Of the last update, nats a token."""
    gradient_norm: float
    """Of the last update, before clipping."""
    learning_rate: float
    """Of the last update."""
    updates: int
    nonpadding_tokens: int
    """In this call, as `processed_tokens`."""
    processed_tokens: int
    seconds: float
    """Of the call and the wait for its input."""

    @property
    def step(self) -> int:
        return self.progress.step


Status = Literal["completed", "stopped_by_budget", "stopped_by_condition", "interrupted"]


@dataclass(frozen=True)
class Ending:
    """Why the loop ended."""

    status: Status
    message: str


@dataclass(frozen=True)
class Decision:
    """What is to happen next: an ending, else a stop, else so many updates in one call."""

    stop: bool
    updates: int
    ending: Ending | None


class LossSpike(Exception):  # noqa: N818 - an outcome, not a fault
    """The loss of the batch drawn from `cursor` on is far above those before it. Nothing has been noted of its call."""

    def __init__(self, loss: float, median: float, cursor: int) -> None:
        super().__init__(f"the loss spiked to {loss:.4g}, where the median was {median:.4g}")
        self.cursor = cursor


class Hook:
    """Something done between calls."""

    def steps_until_due(self, step: int) -> int | None:
        """How many steps after `step` the hook wants to be called at the latest; none: any time will do."""
        return None

    def after(self, info: StepInfo) -> Ending | None:
        """Called after each call of updates, in the order of the hooks. The first ending ends the loop."""
        return None


@dataclass
class Loop:
    updater: Updater
    reader: BatchReader
    progress: Progress
    learning_rate: Callable[[int], float]
    """Rate of the update after `step` completed ones."""
    total_steps: int
    hooks: Sequence[Hook]
    phases: PhaseClock
    stop: StopSignal
    agree: Callable[[Decision], Decision] = lambda mine: mine
    """Makes one decision of the workers' own."""
    spikes: LossSpikeSettings | None = None
    _seconds_per_update: float = 0.0

    def run(self, ending: Ending | None = None) -> Ending:
        """Until an ending; one that is there beforehand is told to the other workers."""
        while self.progress.step < self.total_steps:
            decision = self.agree(Decision(bool(self.stop), self._updates_in_next_call(), ending))
            if decision.ending is not None:
                return decision.ending
            if decision.stop:
                return Ending("interrupted", self.stop.reason or "another worker was asked to stop")
            ending = self._after(self._call(decision.updates))
        return ending or Ending("completed", f"trained to its length, {self.total_steps:,} steps")

    def _after(self, info: StepInfo) -> Ending | None:
        return next((ending for hook in self.hooks if (ending := hook.after(info))), None)

    def _updates_in_next_call(self) -> int:
        step = self.progress.step
        due = [d for hook in self.hooks if (d := hook.steps_until_due(step)) is not None]
        fitting = int(CALL_SECONDS / self._seconds_per_update) if self._seconds_per_update else 1
        return max(1, min(fitting, MAX_UPDATES_PER_CALL, self.total_steps - step, *due))

    def _next_draw(self) -> Draw:
        """The next draw that is to be trained on; those before it that are not go into the receipt."""
        progress = self.progress
        while progress.is_skipped((draw := self.reader.next()).cursor):
            progress.receipt.add(draw.cursor, draw.row_numbers, skipped=True)
            progress.cursor = draw.cursor + len(draw.row_numbers)
        return draw

    def _look_for_spike(self, draws: Sequence[Draw], results: UpdateResults) -> None:
        """`LossSpike` at the first; else the losses are remembered."""
        if self.spikes is None:
            return
        recent = self.progress.recent_losses
        for draw, loss in zip(draws, results.loss.tolist(), strict=True):
            median = statistics.median(recent) if len(recent) >= ENOUGH_LOSSES else math.inf
            if loss > self.spikes.factor * median:
                raise LossSpike(loss, median, draw.cursor)
            if math.isfinite(loss):
                recent.append(loss)
                del recent[:-RECENT_LOSSES]

    def _call(self, updates: int) -> StepInfo:
        progress = self.progress
        started = monotonic()
        self.phases.switch("input_wait")
        draws = [self._next_draw() for _ in range(updates)]
        computing = monotonic()
        self.phases.switch("step")
        rates = [self.learning_rate(progress.step + i) for i in range(updates)]
        results = self.updater.run([draw.batch for draw in draws], rates)
        ended = monotonic()
        self._look_for_spike(draws, results)
        nonpadding = processed = 0
        for draw, applied in zip(draws, results.applied.tolist(), strict=True):
            progress.receipt.add(draw.cursor, draw.row_numbers, skipped=not applied)
            progress.cursor = draw.cursor + len(draw.row_numbers)
            nonpadding += draw.nonpadding_tokens
            processed += draw.processed_tokens
            progress.step += applied
            progress.skipped_updates += not applied
            progress.consecutive_skips = 0 if applied else progress.consecutive_skips + 1
        if progress.consecutive_skips >= MAX_CONSECUTIVE_SKIPS:
            raise UserError(
                f"training: the gradient was not finite in {progress.consecutive_skips} updates in a row up to "
                f"step {progress.step}; choose a lower optimizer.learning_rate (or another precision)"
            )
        progress.nonpadding_tokens += nonpadding
        progress.processed_tokens += processed
        progress.training_seconds += ended - started
        if results.applied.any():
            progress.train_loss = float(results.loss[results.applied][-1])
        each = (ended - computing) / updates
        self._seconds_per_update = each if not self._seconds_per_update else 0.5 * (self._seconds_per_update + each)
        return StepInfo(
            progress=progress,
            loss=float(results.loss[-1]),
            gradient_norm=float(results.gradient_norm[-1]),
            learning_rate=rates[max(0, int(results.applied.sum()) - 1)],
            updates=updates,
            nonpadding_tokens=nonpadding,
            processed_tokens=processed,
            seconds=ended - started,
        )
