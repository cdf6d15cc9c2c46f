"""Several attempts → one account: what was kept, what was lost and why, what it cost, all adding up.

An attempt's work after its last committed checkpoint is lost work once the attempt is over without having finished,
or a later attempt went on from an earlier step. Time between attempts had no machine: `waiting`, shown, not billed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property

from tokenmill.cost.accounting import AttemptAccount, TokenCount
from tokenmill.cost.money import split_rounded, usd_of

WORK_PHASES = frozenset({"step", "input_wait", "evaluate", "checkpoint_save", "profile", "export"})
"""Phases that are lost with what they made; the others (start, compile, restore) are overhead in any case."""


@dataclass(frozen=True)
class Cell:
    """The finest part of a bill."""

    attempt: int
    """Index into the account's attempts."""
    phase: str
    lost: bool


@dataclass(frozen=True)
class Kept:
    """What became of a train attempt's work. Steps and tokens count since the run's start."""

    begin: TokenCount
    end: TokenCount
    """The last state that stayed in the model."""
    reached: TokenCount
    lost_after_us: int | None
    """Offset in the attempt from which work was lost; None: nothing was."""


@dataclass(frozen=True)
class Account:
    """Attempts of all stages, in order of their start, with the train ones judged."""

    attempts: tuple[AttemptAccount, ...]
    kept: dict[int, Kept]
    """By index of the train attempt."""

    @cached_property
    def cell_us(self) -> dict[Cell, int]:
        """Billed microseconds by cell; they sum to `billed_us`."""
        sums: dict[Cell, int] = {}
        for index, attempt in enumerate(self.attempts):
            cut = self.kept[index].lost_after_us if index in self.kept else None
            for part in attempt.slices:
                lost = 0
                if cut is not None and part.phase in WORK_PHASES:
                    lost = max(0, part.end_us - max(part.begin_us, cut))
                for cell, duration in (
                    (Cell(index, part.phase, True), lost),
                    (Cell(index, part.phase, False), part.duration_us - lost),
                ):
                    if duration:
                        sums[cell] = sums.get(cell, 0) + duration
        return sums

    @cached_property
    def cell_usd(self) -> dict[Cell, Decimal] | None:
        """Dollars by cell, rounded so that they sum to the rounded total; None when an attempt has no price."""
        exact = self._exact_usd
        return None if exact is None else split_rounded(exact)

    @cached_property
    def _exact_usd(self) -> dict[Cell, Fraction] | None:
        prices = [attempt.usd_per_hour for attempt in self.attempts]
        exact: dict[Cell, Fraction] = {}
        for cell, duration in self.cell_us.items():
            price = prices[cell.attempt]
            if price is None:
                return None
            exact[cell] = usd_of(duration, price)
        return exact

    @property
    def billed_us(self) -> int:
        return sum(attempt.billed_us for attempt in self.attempts)

    @property
    def usd(self) -> Decimal | None:
        return None if self.cell_usd is None else sum(self.cell_usd.values(), Decimal(0))

    def us_where(self, chosen: Callable[[Cell], bool]) -> int:
        return sum(duration for cell, duration in self.cell_us.items() if chosen(cell))

    def usd_where(self, chosen: Callable[[Cell], bool]) -> Decimal | None:
        if self.cell_usd is None:
            return None
        return sum((usd for cell, usd in self.cell_usd.items() if chosen(cell)), Decimal(0))

    def is_train(self, cell: Cell) -> bool:
        return cell.attempt in self.kept

    @cached_property
    def waiting(self) -> tuple[tuple[float, float], ...]:
        """Stretches between the end of an attempt and the start of the next one, in Unix seconds; not billed."""
        gaps = []
        latest = None
        for attempt in self.attempts:
            if latest is not None and attempt.started > latest:
                gaps.append((latest, attempt.started))
            latest = attempt.ended if latest is None else max(latest, attempt.ended)
        return tuple(gaps)

    @property
    def estimated_attempts(self) -> list[AttemptAccount]:
        return [attempt for attempt in self.attempts if attempt.estimated]

    @property
    def retained(self) -> TokenCount:
        """What stayed in the model, since the run's start."""
        parts = self.kept.values()
        last = max((part.end for part in parts), key=lambda count: count.step, default=TokenCount())
        return TokenCount(
            last.step,
            sum(part.end.processed_tokens - part.begin.processed_tokens for part in parts),
            sum(part.end.nonpadding_tokens - part.begin.nonpadding_tokens for part in parts),
        )

    @property
    def done(self) -> TokenCount:
        """All that was computed, also what was lost again; `step` counts updates, replayed ones twice."""
        parts = self.kept.values()
        return TokenCount(
            sum(part.reached.step - part.begin.step for part in parts),
            sum(part.reached.processed_tokens - part.begin.processed_tokens for part in parts),
            sum(part.reached.nonpadding_tokens - part.begin.nonpadding_tokens for part in parts),
        )


def build_account(others: Sequence[AttemptAccount], train: Sequence[AttemptAccount]) -> Account:
    """`train` are the attempts of one run in their order; `others` those of the stages around them."""
    judged = dict(zip(map(id, train), judge(train), strict=True))
    attempts = sorted([*others, *train], key=lambda attempt: attempt.started)
    order = {id(attempt): index for index, attempt in enumerate(attempts)}
    return Account(tuple(attempts), {order[key]: kept for key, kept in judged.items()})


def judge(train: Sequence[AttemptAccount]) -> list[Kept]:
    """What of each attempt of one run stayed in the model."""
    committed = _committed(train)
    begins = _begins(train, committed)
    judged = []
    for index, attempt in enumerate(train):
        begin = begins[index]
        last_commit = max([begin.step, *committed[index]])
        reached = _at(max([last_commit, *(count.step for count in attempt.counts)]), begin, attempt.counts)
        keep = reached.step if attempt.finished else last_commit
        later = min((count.step for count in begins[index + 1 :]), default=keep)
        keep = max(min(keep, later), begin.step)
        end = _at(keep, begin, attempt.counts)
        lost = keep < reached.step or not attempt.finished
        cut = max((commit.offset_us for commit in attempt.commits if commit.step <= keep), default=0) if lost else None
        judged.append(Kept(begin, end, reached, cut))
    return judged


def _committed(train: Sequence[AttemptAccount]) -> list[set[int]]:
    """Steps that each attempt committed: those that it wrote down, and those that a later attempt found although the
    line about them was torn."""
    known = [{commit.step for commit in attempt.commits} for attempt in train]
    for index, attempt in enumerate(train):
        step = attempt.restored_step
        if index and step and not any(step in steps for steps in known[:index]):
            makers = (i for i in reversed(range(index)) if any(count.step >= step for count in train[i].counts))
            known[next(makers, index - 1)].add(step)
        if attempt.finished and attempt.counts:
            known[index].add(max(count.step for count in attempt.counts))
    return known


def _begins(train: Sequence[AttemptAccount], committed: Sequence[set[int]]) -> list[TokenCount]:
    """The state each attempt went on from: what it says, else the newest checkpoint that it can have found."""
    begins: list[TokenCount] = []
    states: dict[int, TokenCount] = {0: TokenCount()}
    found = {0}
    for attempt, made in zip(train, committed, strict=True):
        first = min((count.step for count in attempt.counts), default=None)
        step = attempt.restored_step
        if step is None:
            step = max(known for known in found if first is None or known <= first)
        begins.append(_at(step, TokenCount(), states.values()))
        states |= {count.step: count for count in attempt.counts}
        found |= made
    return begins


def _at(step: int, floor: TokenCount, counts: Iterable[TokenCount]) -> TokenCount:
    """The counts at `step`, from its own record or the last one before it (they come every second and with commits)."""
    best = max([floor, *(count for count in counts if count.step <= step)], key=lambda count: count.step)
    return TokenCount(step, best.processed_tokens, best.nonpadding_tokens)
