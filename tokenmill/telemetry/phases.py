"""Where a stage's time goes: a clock that is always in exactly one named phase.

Switching is cheap (a clock read and an addition), so the trainer switches twice an update. Because the phases tile the
time from the clock's start without gap or overlap, they always sum to the elapsed time (law 6).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

Phase = Literal[
    "start",
    "pull",
    "prepare",
    "validate",
    "compile",
    "step",
    "input_wait",
    "checkpoint_save",
    "checkpoint_restore",
    "evaluate",
    "profile",
    "export",
    "report",
    "idle",
]
PHASES: tuple[str, ...] = get_args(Phase)


class PhaseClock:
    """Accumulates seconds by phase. Thread-safe: one thread switches, another may `drain`."""

    def __init__(self, initial: Phase = "start", now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._current: Phase = initial
        self._since = now()
        self._undrained: dict[str, float] = {}
        self._total: dict[str, float] = {}

    @property
    def current(self) -> Phase:
        return self._current

    def switch(self, phase: Phase) -> Phase:
        """Enter `phase`; return the one that ends."""
        with self._lock:
            self._accumulate()
            ended, self._current = self._current, phase
        return ended

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Be in `phase` for the block, then go back to where the clock was."""
        before = self.switch(phase)
        try:
            yield
        finally:
            self.switch(before)

    def totals(self) -> dict[str, float]:
        """Seconds by phase since the clock's start."""
        with self._lock:
            self._accumulate()
            return dict(self._total)

    def drain(self) -> dict[str, float]:
        """Seconds by phase since the last `drain`."""
        with self._lock:
            self._accumulate()
            drained, self._undrained = self._undrained, {}
        return drained

    def _accumulate(self) -> None:
        now = self._now()
        elapsed = now - self._since
        self._since = now
        for tally in (self._undrained, self._total):
            tally[self._current] = tally.get(self._current, 0.0) + elapsed
