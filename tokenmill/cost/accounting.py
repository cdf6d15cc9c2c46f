"""One attempt's ledger → an account in which every billed microsecond has a name (law 6).

Billed time runs from `spawned` to `reaped` on the supervisor's monotonic clock, so a stepping wall clock does not
matter. The stage's phases tile its own life; around them lie `start` (until its clock began: process, imports) and a
tail (after its last record) that belongs to the phase it was in. A supervisor that died leaves no `reaped`: then the
end is the last sign of life (its heartbeats, or what the stage still recorded after them) plus one interval, and is
marked `estimated`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenmill.cost.ledger import read_records
from tokenmill.cost.money import to_microseconds

HEARTBEAT_SECONDS = 1.0
"""Heartbeats are at most this far apart, so an estimated end is wrong by no more than this."""
SUPERVISOR_DIED = "supervisor_died"
STILL_OPEN = "running"


@dataclass(frozen=True)
class Slice:
    """A stretch of an attempt's billed time in one phase; offsets count from `spawned`."""

    phase: str
    begin_us: int
    end_us: int

    @property
    def duration_us(self) -> int:
        return self.end_us - self.begin_us


@dataclass(frozen=True)
class TokenCount:
    """Counts at a step, cumulative since the run's start."""

    step: int = 0
    processed_tokens: int = 0
    nonpadding_tokens: int = 0


@dataclass(frozen=True)
class Commit:
    """A checkpoint that became valid."""

    step: int
    offset_us: int


@dataclass(frozen=True)
class AttemptAccount:
    """One attempt, accounted. `slices` tile `billed_us` without gap or overlap."""

    attempt_id: str
    stage: str
    spawned: dict[str, Any]
    started: float
    """Unix seconds, the supervisor's wall clock."""
    billed_us: int
    estimated: bool
    """The end is estimated from heartbeats, to within `HEARTBEAT_SECONDS`."""
    exit_code: int | None
    reason: str
    slices: tuple[Slice, ...]
    overrun_us: int
    """What the stage recorded beyond the billed time (rounding, or a clock that lies); cut off at the end."""
    counts: tuple[TokenCount, ...]
    commits: tuple[Commit, ...]
    restored_step: int | None
    events: tuple[dict[str, Any], ...]

    @property
    def usd_per_hour(self) -> Decimal | None:
        price = self.spawned.get("usd_per_hour")
        return None if price is None else Decimal(price)

    @property
    def ended(self) -> float:
        return self.started + self.billed_us / 1e6

    @property
    def finished(self) -> bool:
        """The stage reached its own end, so its last state is kept."""
        return self.exit_code == 0

    @cached_property
    def phase_us(self) -> dict[str, int]:
        sums: dict[str, int] = {}
        for part in self.slices:
            sums[part.phase] = sums.get(part.phase, 0) + part.duration_us
        return sums


def read_attempt(path: Path) -> AttemptAccount | None:
    """The account of one ledger file; None while nothing was spawned."""
    return account_for(read_records(path))


def account_for(records: Iterable[dict[str, Any]]) -> AttemptAccount | None:
    rows = list(records)
    spawned = next((row for row in rows if row["kind"] == "spawned"), None)
    if spawned is None:
        return None
    reaped = next((row for row in reversed(rows) if row["kind"] == "reaped"), None)
    phases = [row for row in rows if row["kind"] == "phases"]
    billed_us = _billed_us(rows, spawned, reaped)
    pulled, own = _split_pull(phases)
    clock_start = _stage_clock_start(own)
    slices, overrun_us, stage_begin_us = _tile(billed_us, spawned["monotonic"], pulled, own, clock_start)

    def offset(row: dict[str, Any]) -> int:
        since = 0.0 if clock_start is None else row["monotonic"] - clock_start
        return min(max(stage_begin_us + to_microseconds(since), 0), billed_us)

    events = tuple(row for row in rows if row["kind"] == "event")
    return AttemptAccount(
        attempt_id=str(spawned.get("attempt_id", "")),
        stage=str(spawned["stage"]),
        spawned=spawned,
        started=spawned["time"],
        billed_us=billed_us,
        estimated=reaped is None,
        exit_code=None if reaped is None else reaped.get("exit_code"),
        reason=SUPERVISOR_DIED if reaped is None else str(reaped.get("reason", "")),
        slices=slices,
        overrun_us=overrun_us,
        counts=tuple(_counts(rows)),
        commits=tuple(Commit(int(row["step"]), offset(row)) for row in rows if row["kind"] == "checkpoint"),
        restored_step=next(
            (int(row["step"]) for row in events if row.get("name") == "restored" and "step" in row), None
        ),
        events=events,
    )


def _billed_us(rows: list[dict[str, Any]], spawned: dict[str, Any], reaped: dict[str, Any] | None) -> int:
    if reaped is not None:
        return max(0, to_microseconds(reaped["monotonic"] - spawned["monotonic"]))
    last = max(index for index, row in enumerate(rows) if row["kind"] in {"spawned", "heartbeat"})
    beat = rows[last]["monotonic"]
    later = [row for row in rows[last + 1 :] if row["kind"] == "phases"]
    outlived_us = 0
    if later:
        # What the stage recorded after the last heartbeat; its first record may reach back to before it.
        recorded_us = sum(map(_total, later))
        by_clock_us = to_microseconds(later[-1]["monotonic"] - beat)
        outlived_us = by_clock_us if 0 <= by_clock_us <= recorded_us else recorded_us
    seen_us = max(0, to_microseconds(beat - spawned["monotonic"]))
    return seen_us + outlived_us + to_microseconds(HEARTBEAT_SECONDS)


def _total(row: dict[str, Any]) -> int:
    return sum(to_microseconds(seconds) for seconds in row["seconds"].values())


def _split_pull(phases: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The supervisor's own records (pulling the image, before the stage lives), and the stage's."""
    count = 0
    while count < len(phases) and set(phases[count]["seconds"]) == {"pull"}:
        count += 1
    return phases[:count], phases[count:]


def _stage_clock_start(own: list[dict[str, Any]]) -> float | None:
    """When the stage's phase clock began, on the stage's monotonic clock.

    A record is stamped a little after its phases were read, never before, so the earliest bound is the best.
    """
    start: float | None = None
    passed = 0.0
    for row in own:
        passed += sum(row["seconds"].values())
        bound = row["monotonic"] - passed
        start = bound if start is None else min(start, bound)
    return start


def _tile(
    billed_us: int,
    spawned_monotonic: float,
    pulled: list[dict[str, Any]],
    own: list[dict[str, Any]],
    clock_start: float | None,
) -> tuple[tuple[Slice, ...], int, int]:
    """Slices that tile the billed time, what had to be cut off, and where the stage's own time begins."""
    pull_us = min(billed_us, sum(map(_total, pulled)))
    recorded_us = sum(map(_total, own))
    latest = max(pull_us, billed_us - recorded_us)
    begin_us = latest
    if clock_start is not None:
        guess = to_microseconds(clock_start - spawned_monotonic)
        # On another machine than its supervisor's, the stage's clock says nothing here: then it ended at the end.
        if 0 <= guess <= billed_us:
            begin_us = min(max(guess, pull_us), latest)
    parts: list[tuple[str, int]] = [("pull", pull_us), ("start", begin_us - pull_us)]
    for row in own:
        parts += [(phase, to_microseconds(seconds)) for phase, seconds in row["seconds"].items()]
    tail_us = billed_us - begin_us - recorded_us
    parts.append((str(own[-1]["current"]) if own else "start", max(0, tail_us)))
    return tuple(_stack(parts, billed_us)), max(0, -tail_us), begin_us


def _stack(parts: list[tuple[str, int]], limit_us: int) -> Iterator[Slice]:
    begin = 0
    phase_now, phase_begin = "start", 0
    for phase, duration in parts:
        end = min(begin + duration, limit_us)
        if end > begin:
            if phase != phase_now:
                if begin > phase_begin:
                    yield Slice(phase_now, phase_begin, begin)
                phase_now, phase_begin = phase, begin
            begin = end
    if begin > phase_begin:
        yield Slice(phase_now, phase_begin, begin)


def _counts(rows: list[dict[str, Any]]) -> Iterator[TokenCount]:
    for row in rows:
        if row["kind"] == "steps":
            yield TokenCount(int(row["step"]), int(row["processed_tokens"]), int(row["nonpadding_tokens"]))
