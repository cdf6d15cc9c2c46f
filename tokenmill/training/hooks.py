"""What happens between calls of the compiled updates: metrics, evaluation, checkpoints, stop conditions."""

from __future__ import annotations

import datetime
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenmill.errors import UserError
from tokenmill.training.loop import Ending, Hook, StepInfo
from tokenmill.training.progress import Progress
from tokenmill.training.settings import TrainingSettings

LEDGER_SECONDS = 0.5


class JsonLines:
    """A file of JSON objects, one a line, opened for each. NaN and infinities become null."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, **fields: Any) -> None:
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in fields.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain) + "\n")


class LedgerHook(Hook):
    """Writes the run's counts into the ledger, about twice a second."""

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = write
        self._last = -math.inf

    def after(self, info: StepInfo) -> None:
        now = time.monotonic()
        if now - self._last >= LEDGER_SECONDS:
            self._last = now
            write_counts(self._write, info.progress)


def write_counts(write: Callable[..., None], progress: Progress) -> None:
    write(
        "steps",
        step=progress.step,
        cursor=progress.cursor,
        processed_tokens=progress.processed_tokens,
        nonpadding_tokens=progress.nonpadding_tokens,
    )


class MetricsHook(Hook):
    """A line in metrics.jsonl and in TensorBoard each `every_seconds`, and progress for people after each call."""

    def __init__(
        self,
        folder: Path,
        *,
        every_seconds: float,
        attempt: int,
        total_steps: int,
        flops_per_token: int,
        peak_flops_per_second: float | None,
        show: Callable[[int, int, str], None],
        scalars: Callable[[int, dict[str, float]], None],
    ) -> None:
        self._lines = JsonLines(folder / "metrics.jsonl")
        self._every = every_seconds
        self._attempt = attempt
        self._total = total_steps
        self._flops_per_token = flops_per_token
        self._peak = peak_flops_per_second
        self._show, self._scalars = show, scalars
        self._last = time.monotonic()
        self._tokens = self._processed = 0
        self._seconds = 0.0

    def after(self, info: StepInfo) -> None:
        self._tokens += info.nonpadding_tokens
        self._processed += info.processed_tokens
        self._seconds += info.seconds
        rate = self._tokens / self._seconds
        self._show(info.step, self._total, f"loss {info.loss:.3f}, {rate:,.0f} tokens/s")
        now = time.monotonic()
        if now - self._last < self._every and info.step < self._total:
            return
        metrics = {
            "loss": info.loss,
            "learning_rate": info.learning_rate,
            "gradient_norm": info.gradient_norm,
            "tokens_per_second": rate,
            "model_flops_per_second": self._flops_per_token * self._processed / self._seconds,
        }
        if self._peak is not None:
            metrics["mfu"] = metrics["model_flops_per_second"] / self._peak
        progress = info.progress
        self._lines.write(
            step=info.step,
            cursor=progress.cursor,
            time=time.time(),
            **metrics,
            nonpadding_tokens=progress.nonpadding_tokens,
            processed_tokens=progress.processed_tokens,
            attempt=self._attempt,
        )
        self._scalars(info.step, metrics)
        self._last, self._tokens, self._processed, self._seconds = now, 0, 0, 0.0


class EvaluationHook(Hook):
    """Evaluates every `every_steps` steps (not at the last step, where the run does so itself)."""

    def __init__(self, every_steps: int, evaluate: Callable[[], Ending | None]) -> None:
        self._every = every_steps
        self._evaluate = evaluate

    def steps_until_due(self, step: int) -> int:
        return self._every - step % self._every

    def after(self, info: StepInfo) -> Ending | None:
        if info.step and info.step % self._every == 0 and info.progress.evaluated_step != info.step:
            return self._evaluate()
        return None


class CheckpointHook(Hook):
    """Saves when `interval()` seconds have passed since the last save began."""

    def __init__(self, interval: Callable[[], float], save: Callable[[], None]) -> None:
        self._interval, self._save = interval, save
        self._last = time.monotonic()

    def after(self, info: StepInfo) -> None:
        if time.monotonic() - self._last >= self._interval():
            self._last = time.monotonic()
            self._save()


class StopConditions(Hook):
    """Time limits end a run as stopped by its budget, a target loss as stopped by a condition."""

    def __init__(
        self, training: TrainingSettings, now: Callable[[], datetime.datetime] = datetime.datetime.now
    ) -> None:
        self._training = training
        self._now = now
        self._deadline = None if training.done_by is None else next_time_of_day(training.done_by, now())

    def at_start(self, progress: Progress) -> Ending | None:
        """A run that has ended by a condition before, and is started again under the same one, ends again at once."""
        if progress.eval_loss is not None and progress.evaluated_step == progress.step:
            return self._time_is_up(progress) or self.after_evaluation(progress)
        return self._time_is_up(progress)

    def after(self, info: StepInfo) -> Ending | None:
        return self._time_is_up(info.progress)

    def _time_is_up(self, progress: Progress) -> Ending | None:
        limit = self._training.max_seconds
        if limit is not None and progress.training_seconds >= limit:
            return Ending("stopped_by_budget", f"trained for max_seconds, {limit:g} s, at step {progress.step:,}")
        if self._deadline is not None and self._now() >= self._deadline:
            return Ending("stopped_by_budget", f"it is {self._training.done_by} (done_by), at step {progress.step:,}")
        return None

    def after_evaluation(self, progress: Progress) -> Ending | None:
        """`UserError` if the loss is not a number: such a model is of no use to anybody."""
        loss, step = progress.eval_loss, progress.step
        assert loss is not None
        if not math.isfinite(loss):
            raise UserError(
                f"training: the eval loss at step {step:,} is {loss}; choose a lower optimizer.learning_rate "
                "(or another precision)"
            )
        target, patience = self._training.target_loss, self._training.stop_after_evaluations
        if patience is not None and progress.evaluations_without_improvement >= patience:
            return Ending(
                "stopped_by_condition",
                f"no lower eval loss in {patience} evaluations up to step {step:,} (stop_after_evaluations); "
                f"the lowest was {progress.best_eval_loss:.4f} at step {progress.best_step:,}",
            )
        if target is not None and loss <= target:
            return Ending(
                "stopped_by_condition", f"eval loss {loss:.4f} reached target_loss {target:g} at step {step:,}"
            )
        return None


def next_time_of_day(clock: str, now: datetime.datetime) -> datetime.datetime:
    """The next time that a clock shows `clock` ("HH:MM") after `now`."""
    hour, minute = map(int, clock.split(":"))
    then = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    return then if then > now else then + datetime.timedelta(days=1)
