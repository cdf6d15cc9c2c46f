"""Ledgers as a supervisor and a stage would write them, on a clock that the test moves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SPAWNED = {
    "host": "node-1",
    "machine_type": "example-2-core",
    "market": "on_demand",
    "usd_per_hour": "3.60",
    "currency": "USD",
    "price_source": "cost.usd_per_hour",
    "price_as_of": None,
    "price_note": "example, edit me",
    "pid": 1,
    "image": None,
}


class FakeAttempt:
    """Writes one ledger file. `work` moves the clock; heartbeats and phases come once a second as in life."""

    def __init__(self, path: Path, stage: str, *, at: float, monotonic: float | None = None, **spawned: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.now = path, at
        self.offset = (at - 1_000.0 if monotonic is None else monotonic) - at
        self.current = "start"
        self.next_beat = at + 1.0
        self.pending: dict[str, float] = {}
        self.write(
            "spawned",
            attempt_id=path.stem,
            stage=stage,
            **{"invocation_id": "i1", "run_id": None, **SPAWNED, **spawned},
        )

    def write(self, kind: str, *, time_step: float = 0.0, **fields: Any) -> None:
        record = {"kind": kind, "time": self.now + time_step, "monotonic": self.now + self.offset, **fields}
        with self.path.open("ab") as sink:
            sink.write(b"\n" + json.dumps(record).encode() + b"\n")

    def boot(self, seconds: float) -> None:
        """Until the stage's phase clock begins."""
        self._pass(seconds)

    def work(self, phase: str, seconds: float) -> None:
        self.current = phase
        while seconds > 1e-9:
            piece = min(1.0 - sum(self.pending.values()), seconds)
            self._pass(piece)
            self.pending[phase] = self.pending.get(phase, 0.0) + piece
            seconds -= piece
            if sum(self.pending.values()) >= 1.0 - 1e-9:
                self.flush()

    def flush(self) -> None:
        self.write("phases", seconds=self.pending, current=self.current)
        self.pending = {}

    def steps(self, step: int, *, row_tokens: int = 100, fill: int = 80) -> None:
        self.write("steps", step=step, cursor=step, processed_tokens=step * row_tokens, nonpadding_tokens=step * fill)

    def commit(self, step: int) -> None:
        self.steps(step)
        self.write("checkpoint", step=step)

    def end(self, exit_code: int, reason: str) -> None:
        if exit_code in {0, 2, 75}:
            self.current = "idle"
            self.flush()
        self.write("reaped", exit_code=exit_code, reason=reason)

    def _pass(self, seconds: float) -> None:
        end = self.now + seconds
        while end >= self.next_beat:
            self.now = self.next_beat
            self.write("heartbeat")
            self.next_beat += 1.0
        self.now = end
