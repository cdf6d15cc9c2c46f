"""Seconds as the watcher sees them: a sample, joined with what the trainer's ledger says of the same second."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tokenmill.telemetry.samples import Sample

STEPPING = ("step", "input_wait")
"""Phases in which the machine is meant to be busy."""


@dataclass(frozen=True)
class Second:
    sample: Sample
    seconds: float
    """Since the second before."""
    stepping: bool
    """Nothing but training steps and waits for their input, as far as the trainer said."""
    input_share: float
    """Of the time, spent waiting for input."""
    steps: int
    """Completed in it."""


class Joiner:
    """Joins samples with ledger records. The trainer reports its phases once a second, a little after they were."""

    def __init__(self) -> None:
        self.step: int | None = None
        self._last: float | None = None

    def join(self, sample: Sample, records: Iterable[dict[str, Any]]) -> Second:
        phases: dict[str, float] = {}
        step = self.step
        for record in records:
            if record["kind"] == "phases":
                for name, seconds in record["seconds"].items():
                    phases[name] = phases.get(name, 0.0) + seconds
                phases.setdefault(record["current"], 0.0)
            elif record["kind"] == "steps":
                step = record["step"]
        steps = 0 if step is None or self.step is None else max(0, step - self.step)
        seconds = 0.0 if self._last is None else sample.time - self._last
        self.step, self._last = step, sample.time
        whole = sum(phases.values())
        return Second(
            sample=sample,
            seconds=seconds,
            stepping=whole > 0 and set(phases) <= set(STEPPING),
            input_share=phases.get("input_wait", 0.0) / whole if whole else 0.0,
            steps=steps,
        )
