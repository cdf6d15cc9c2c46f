"""Alarms: what a person should hear while the money is still being spent, each with its cause and what to do.

Only seconds in which the trainer does nothing but steps are judged: compilation, checkpoints, evaluation and the like
are meant to leave the devices alone. Without GPUs the processor is judged, and only in seconds in which other processes
leave it to the trainer: a crowded machine is not the trainer's fault. Each kind is said once, and again only after it
was over.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tokenmill.telemetry.settings import TelemetrySettings
from tokenmill.telemetry.watch import Second

Kind = Literal["low_utilisation", "thermal_throttling", "memory", "step_drift", "slow_worker", "ecc_errors"]
Cause = Literal["input_bound", "small_kernels", "communication", "idle"]

CROWDED_PCT = 15.0
"""Of the machine's processor in other hands: a second that says nothing about the trainer."""
OVER_PCT = 5.0
"""By which utilisation must be back above its threshold before the alarm is over."""
BUSY_HOST_PCT = 70.0
"""Of one core: from here on the thread that launches kernels has no time to spare."""
HOT_SECONDS = 10
FULL_SECONDS = 5
DRIFT_WINDOWS = 2
"""Of `low_utilisation_seconds` each, in a row, before a drift is believed."""

REMEDIES: dict[Cause, str] = {
    "input_bound": "the trainer waits for input: keep the snapshot on a local disk, or give the machine more cores",
    "small_kernels": "the work comes in pieces too small for it: raise micro_batch_size or global_batch_size, "
    "or try xla: on",
    "communication": "devices wait for each other: raise global_batch_size, use fewer workers, or a faster network",
    "idle": "neither devices nor host nor input are at work: take a profile (kill -USR1) and look for locks and sleeps",
}


@dataclass(frozen=True)
class Alarm:
    kind: Kind
    sentence: str
    cause: Cause | None = None
    usd_per_hour_wasted: float | None = None
    """What the idle part of the machine costs; None for an unpriced pipeline."""


class Alarms:
    """The judge over one attempt. `several` tells whether several devices or workers train together."""

    def __init__(
        self,
        settings: TelemetrySettings,
        *,
        usd_per_hour: float | None,
        several: bool = False,
        crowded_pct: float = CROWDED_PCT,
    ) -> None:
        self._settings = settings
        self._usd_per_hour = usd_per_hour
        self._several = several
        self._crowded_pct = crowded_pct
        self._window: deque[Second] = deque()
        self._drift = _Drift(settings)
        self._ecc_errors: int | None = None
        self._lasting: dict[Kind, int] = {}
        self._raised: set[Kind] = set()
        self._before: Second | None = None

    def see(self, second: Second) -> Iterator[Alarm]:
        yield from self._thermal(second)
        yield from self._memory(second)
        yield from self._ecc(second)
        # The trainer reports a phase's time when it is over: a second counts if its neighbour is clean as well.
        clean = second.stepping and self._before is not None and self._before.stepping
        self._before = second
        crowded = second.sample.device_pct is None and second.sample.others_cpu_pct > self._crowded_pct
        if clean and not crowded:
            yield from self._utilisation(second)
            yield from self._step_time(second)

    def _utilisation(self, second: Second) -> Iterator[Alarm]:
        settings, window = self._settings, self._window
        window.append(second)
        while sum(item.seconds for item in window) - window[0].seconds >= settings.low_utilisation_seconds:
            window.popleft()
        if sum(item.seconds for item in window) < settings.low_utilisation_seconds:
            return
        half = len(window) // 2
        busy = _mean([item.sample.busy_pct for item in window])
        halves = [_mean([i.sample.busy_pct for i in part]) for part in (list(window)[:half], list(window)[half:])]
        if busy > settings.low_utilisation_pct + OVER_PCT:
            self._raised.discard("low_utilisation")
        if max(busy, *halves) >= settings.low_utilisation_pct or "low_utilisation" in self._raised:
            return
        self._raised.add("low_utilisation")
        yield self._low(busy, list(window))

    def _low(self, busy_pct: float, window: list[Second]) -> Alarm:
        cause = self._cause(busy_pct, window)
        what = "GPU" if window[-1].sample.device_pct is not None else "processor"
        share = 100 * _mean([item.input_share for item in window])
        waited = f", {share:.0f} % of the time spent waiting for input" if cause == "input_bound" else ""
        wasted = None if self._usd_per_hour is None else self._usd_per_hour * (1 - busy_pct / 100)
        dollars = "" if wasted is None else f" (about ${wasted:.2f} an hour are wasted)"
        return Alarm(
            "low_utilisation",
            f"{what} utilisation was {busy_pct:.0f} % over {sum(i.seconds for i in window):.0f} s of training, under "
            f"{self._settings.low_utilisation_pct:g} %{waited}{dollars}: {cause.replace('_', '-')}; {REMEDIES[cause]}",
            cause,
            wasted,
        )

    def _cause(self, busy_pct: float, window: list[Second]) -> Cause:
        gap = 1 - busy_pct / 100
        if _mean([item.input_share for item in window]) >= 0.4 * gap:
            return "input_bound"
        if self._several:
            return "communication"
        if _mean([item.sample.process_cpu_pct for item in window]) >= BUSY_HOST_PCT:
            return "small_kernels"
        return "idle"

    def _step_time(self, second: Second) -> Iterator[Alarm]:
        found = self._drift.add(second)
        if found == "over":
            self._raised.discard("step_drift")
        elif found and "step_drift" not in self._raised:
            self._raised.add("step_drift")
            yield Alarm("step_drift", found)

    def _thermal(self, second: Second) -> Iterator[Alarm]:
        hot = second.sample.device_throttled or 0
        if self._lasts("thermal_throttling", hot > 0, HOT_SECONDS):
            at = second.sample.device_temperature_celsius
            degrees = "" if at is None else f" at {at:.0f} °C"
            yield Alarm(
                "thermal_throttling",
                f"{hot} GPU{'s run' if hot > 1 else ' runs'} at a lower clock{degrees}, held down for heat or by the "
                "hardware: look at the machine's cooling and power, or move to another one",
            )

    def _memory(self, second: Second) -> Iterator[Alarm]:
        sample, limit = second.sample, self._settings.memory_limit_pct
        uses = {
            "the machine's memory": sample.memory_used_pct,
            "the container's memory limit": sample.group_memory_pct or 0.0,
            "a GPU's memory": sample.device_memory_pct or 0.0,
        }
        where, used = max(uses.items(), key=lambda item: item[1])
        if self._lasts("memory", used >= limit, FULL_SECONDS):
            yield Alarm(
                "memory",
                f"{used:.0f} % of {where} is used, over {limit:g} %: the run may be killed for it; "
                "lower training.micro_batch_size, or give it more memory",
            )

    def _ecc(self, second: Second) -> Iterator[Alarm]:
        errors = second.sample.device_ecc_errors
        before, self._ecc_errors = self._ecc_errors, errors
        if errors is not None and before is not None and errors > before:
            yield Alarm(
                "ecc_errors",
                f"{errors - before} uncorrected memory error(s) on a GPU: its numbers cannot be trusted; drain the "
                "machine and go on from the last checkpoint on another one",
            )

    def _lasts(self, kind: Kind, wrong: bool, samples: int) -> bool:
        """True once, when `wrong` has held for so many samples in a row."""
        self._lasting[kind] = self._lasting.get(kind, 0) + 1 if wrong else 0
        return self._lasting[kind] == samples


class _Drift:
    """Step time now, beside the best that this attempt has shown, window by window of training seconds."""

    def __init__(self, settings: TelemetrySettings) -> None:
        self._limit = 1 + settings.step_drift_pct / 100
        self._window_seconds = settings.low_utilisation_seconds
        self._seconds = 0.0
        self._steps = 0
        self._best: float | None = None
        self._slow: deque[bool] = deque(maxlen=DRIFT_WINDOWS)

    def add(self, second: Second) -> str:
        """A sentence when steps have drifted, `over` when they are fast again, else nothing."""
        self._seconds += second.seconds
        self._steps += second.steps
        if self._seconds < self._window_seconds or not self._steps:
            return ""
        each = self._seconds / self._steps
        self._seconds, self._steps = 0.0, 0
        self._best = each if self._best is None else min(self._best, each)
        self._slow.append(each > self._limit * self._best)
        if not self._slow[-1]:
            return "over"
        if not all(self._slow) or len(self._slow) < DRIFT_WINDOWS:
            return ""
        return (
            f"a step takes {each:.3g} s, {100 * (each / self._best - 1):.0f} % longer than at its best "
            f"({self._best:.3g} s): look for throttling, a full cache, a neighbour on the machine, a growing input"
        )


@dataclass(frozen=True)
class Pulse:
    """What each worker tells about itself: the newest minute."""

    worker: int
    input_share: float
    busy_pct: float


SLOW_INPUT_SHARE = 0.15
SLOW_BUSY_PCT = 25.0


def slow_worker(pulses: list[Pulse]) -> Alarm | None:
    """The one worker that the others wait for, if there is one.

    Workers step together, so the slow one is not seen in step times: it is the one that waits for its own input while
    the others wait for it, or the only one that is busy all the time.
    """
    if len(pulses) < 2:
        return None
    by_input = sorted(pulses, key=lambda pulse: pulse.input_share)
    if by_input[-1].input_share - statistics.median(p.input_share for p in by_input[:-1]) > SLOW_INPUT_SHARE:
        slow, why = by_input[-1], f"it waits {100 * by_input[-1].input_share:.0f} % of the time for its own input"
    else:
        by_work = sorted(pulses, key=lambda pulse: pulse.busy_pct)
        if by_work[-1].busy_pct - by_work[-2].busy_pct <= SLOW_BUSY_PCT:
            return None
        slow, why = (
            by_work[-1],
            f"it is busy {by_work[-1].busy_pct:.0f} % of the time, the next one {by_work[-2].busy_pct:.0f} %",
        )
    return Alarm(
        "slow_worker",
        f"worker {slow.worker} of {len(pulses)} is slow, and the others wait for it: {why}; look at its disk, its "
        "cores and its neighbours, or replace its machine",
        "communication",
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
