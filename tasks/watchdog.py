"""The watchdog: whether training still takes steps, seen from outside the trainer, by its ledger alone.

It looks twice a second, and only while the trainer says that it is in a step or waits for one's input: start,
compilation, restore, evaluation, checkpoint and export may take as long as they take, and so may the first steps, of
which no median is known yet. A stage that hangs is asked for the stacks of all its threads, then killed: it counts as
crashed, not interrupted.
"""

from __future__ import annotations

import signal
import statistics
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tasks.runtime import StageProcess
from tokenmill.cost.ledger import LedgerTail
from tokenmill.protocol import STACKS_NAME
from tokenmill.telemetry.settings import TelemetrySettings

STEPPING = {"step", "input_wait"}
INTERVALS = 200
"""Of the newest step records, for the median."""
ENOUGH_INTERVALS = 3
LONGEST_LOOK_SECONDS = 1.0
"""More than that between two looks was not the stage's time: this process itself stood still."""
STACK_SECONDS = 3.0
"""For the stage to write its stacks."""


class Watchdog:
    """Over one attempt of the train stage. `tick` is to be called about twice a second."""

    def __init__(
        self, ledger: Path, spec: Path, settings: TelemetrySettings, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._tail = LedgerTail(ledger)
        self._stacks = spec.with_name(STACKS_NAME)
        self._settings = settings
        self._now = now
        self._phase = "start"
        self._cursor = -1
        self._step = 0
        self._advanced: float | None = None
        self._seconds_a_step: deque[float] = deque(maxlen=INTERVALS)
        self._quiet_seconds = 0.0
        self._looked = now()
        self._kill_at: float | None = None
        self.hang = ""
        """One sentence, once the stage hangs."""

    def tick(self, process: StageProcess, write: Callable[..., None], say: Callable[..., None]) -> None:
        """Look, and do what follows: `write` is the ledger's, `say` tells people, and Prefect
        if it gets an event besides the sentence."""
        if not self.hang:
            self.hang = self.look()
            if self.hang:
                event = {"name": "hang", "sentence": self.hang, "step": self._step}
                say(self.hang, event)
                with suppress(OSError):
                    write("event", sync=True, **event)
                process.send(signal.SIGUSR2)
                self._kill_at = self._now() + STACK_SECONDS
        elif self._kill_at is not None and self._now() >= self._kill_at:
            self._kill_at = None
            say(self._stack_words())
            process.kill()

    def look(self) -> str:
        """What is wrong, in one sentence; empty while nothing is."""
        now = self._now()
        elapsed = min(now - self._looked, LONGEST_LOOK_SECONDS)
        self._looked = now
        for record in self._tail.read():
            self._note(record)
        if self._phase not in STEPPING:
            return ""
        self._quiet_seconds += elapsed
        if len(self._seconds_a_step) < ENOUGH_INTERVALS:
            return ""
        median = statistics.median(self._seconds_a_step)
        if self._quiet_seconds < max(self._settings.hang_seconds, self._settings.hang_factor * median):
            return ""
        where = "the input of a step" if self._phase == "input_wait" else "a step"
        return (
            f"training hangs in {where}: none has ended for {self._quiet_seconds:,.0f} s after step {self._step:,}, "
            f"where the median is {median:.3g} s; the stage is ended, and counts as crashed"
        )

    def _note(self, record: dict[str, Any]) -> None:
        if record["kind"] == "phases":
            self._phase = record["current"]
            if set(record["seconds"]) - STEPPING:
                # Whatever came in between was progress of another kind, and its time is no step's.
                self._quiet_seconds, self._advanced = 0.0, None
        elif record["kind"] == "steps" and record["cursor"] > self._cursor:
            if self._advanced is not None and record["step"] > self._step:
                self._seconds_a_step.append((record["monotonic"] - self._advanced) / (record["step"] - self._step))
            self._advanced, self._quiet_seconds = record["monotonic"], 0.0
            self._cursor, self._step = record["cursor"], record["step"]

    def _stack_words(self) -> str:
        with suppress(OSError):
            if text := self._stacks.read_text(encoding="utf-8", errors="replace").strip():
                return f"the stacks of its threads:\n{text}"
        return "it gave no stacks of its threads"
