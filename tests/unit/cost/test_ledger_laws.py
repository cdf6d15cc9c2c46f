"""Law 6 over random ledgers, judged by the clock of an outsider: crashes, clock steps, torn lines, dead supervisors."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.cost.ledgers import FakeAttempt
from tokenmill.cost.accounting import AttemptAccount, read_attempt
from tokenmill.cost.money import MICRO, QUANTUM_USD, round_usd, split_rounded, usd_of
from tokenmill.cost.run_account import Account, build_account

PHASES = ["compile", "step", "input_wait", "evaluate", "checkpoint_save", "export"]


@dataclass
class Life:
    """One attempt as it was lived: what an outsider saw."""

    boot: float
    work: list[tuple[str, float, bool]]
    """Phase, seconds, and whether a checkpoint commits after it."""
    silence: float
    """Between the stage's last record and its end."""
    end: str
    pause: float
    """Until the next attempt."""
    usd_per_hour: str
    torn: int
    """Bytes cut off the last line."""
    clock_step: float
    seconds: float = field(default=0.0)


lives = st.builds(
    Life,
    boot=st.floats(0, 5),
    work=st.lists(st.tuples(st.sampled_from(PHASES), st.floats(0.001, 7), st.booleans()), max_size=6),
    silence=st.floats(0, 0.9),
    end=st.sampled_from(["completed", "interrupted", "killed", "supervisor died"]),
    pause=st.floats(0, 100),
    usd_per_hour=st.decimals("0.001", "99", places=3).map(str),
    torn=st.integers(0, 30),
    clock_step=st.floats(-500, 500),
)


def live(life: Life, path: Path, at: float, step: int) -> int:
    """Write the ledger of a life; returns the step that is committed at its end."""
    fake = FakeAttempt(path, "train", at=at, usd_per_hour=life.usd_per_hour)
    committed = step
    fake.boot(life.boot)
    if step:
        fake.write("event", name="restored", step=step)
    for phase, seconds, commits in life.work:
        fake.work(phase, seconds)
        if phase == "step":
            step += max(1, round(seconds))
            fake.steps(step)
        if commits and step > committed:
            fake.commit(step)
            committed = step
    fake.now += life.silence
    code = {"completed": 0, "interrupted": 75, "killed": 137}.get(life.end)
    if code is not None:
        fake.write("reaped", time_step=life.clock_step, exit_code=code, reason=life.end)
    elif life.torn:
        whole = path.read_bytes()
        path.write_bytes(whole[: max(len(whole) - life.torn, whole.index(b"\n", 2) + 1)])
    life.seconds = fake.now - at
    return step if code == 0 else committed


def account_of(told: list[Life]) -> tuple[Account, list[AttemptAccount]]:
    with TemporaryDirectory() as folder:
        at, step, attempts = 1_000_000.0, 0, []
        for number, life in enumerate(told, 1):
            path = Path(folder) / f"{number:04d}.jsonl"
            step = live(life, path, at, step)
            at += life.seconds + life.pause
            attempt = read_attempt(path)
            assert attempt is not None
            attempts.append(attempt)
    return build_account([], attempts), attempts


@settings(max_examples=150, deadline=None)
@given(st.lists(lives, min_size=1, max_size=5))
def test_phases_tile_billed_time_and_billed_time_is_what_an_outsider_saw(told: list[Life]) -> None:
    account, attempts = account_of(told)
    for life, attempt in zip(told, attempts, strict=True):
        edges = [0, *(part.end_us for part in attempt.slices)]
        assert [part.begin_us for part in attempt.slices] == edges[:-1]
        assert edges[-1] == attempt.billed_us
        assert all(before.phase != after.phase for before, after in pairwise(attempt.slices))
        if life.end == "supervisor died":
            assert attempt.estimated
            # A record of up to one second may be torn, and the silence after the last one is unknown: one interval.
            assert abs(attempt.billed_us / MICRO - life.seconds) <= 2.0 + 1e-3
        else:
            assert abs(attempt.billed_us - life.seconds * MICRO) <= 2
            recorded = sum(seconds for _, seconds, _ in life.work)
            named = attempt.billed_us - attempt.phase_us.get("start", 0)
            assert named >= (recorded - 1.0) * MICRO - 10
    assert sum(account.cell_us.values()) == account.billed_us == sum(attempt.billed_us for attempt in attempts)


@settings(max_examples=100, deadline=None)
@given(st.lists(lives, min_size=1, max_size=5))
def test_dollars_add_up_to_the_rounded_exact_sum(told: list[Life]) -> None:
    account, attempts = account_of(told)
    exact = sum((usd_of(a.billed_us, a.usd_per_hour or Decimal(0)) for a in attempts), Fraction())
    assert account.usd == round_usd(exact)
    assert account.cell_usd is not None
    by_phase: dict[Any, Decimal] = {}
    for cell, usd in account.cell_usd.items():
        by_phase[cell.phase] = by_phase.get(cell.phase, Decimal(0)) + usd
    assert sum(by_phase.values(), Decimal(0)) == account.usd


@settings(max_examples=100, deadline=None)
@given(st.lists(lives, min_size=1, max_size=5))
def test_what_is_kept_is_what_the_last_checkpoint_holds(told: list[Life]) -> None:
    account, attempts = account_of(told)
    kept = [account.kept[index] for index in sorted(account.kept)]
    assert all(before.end.step >= after.begin.step for before, after in pairwise(kept))
    assert account.retained.processed_tokens == 100 * account.retained.step
    assert account.done.processed_tokens >= account.retained.processed_tokens
    assert account.retained.nonpadding_tokens * 100 == account.retained.processed_tokens * 80
    lost_us = account.us_where(lambda cell: cell.lost)
    if all(attempt.finished for attempt in attempts):
        assert lost_us == 0
    assert lost_us <= account.billed_us


@given(st.dictionaries(st.integers(), st.fractions(0, 10_000, max_denominator=10**9), max_size=20))
def test_rounded_parts_sum_to_the_rounded_sum_and_none_is_off_by_a_whole_unit(parts: dict[int, Fraction]) -> None:
    rounded = split_rounded(parts)
    assert sum(rounded.values(), Decimal(0)) == round_usd(sum(parts.values(), Fraction()))
    assert all(abs(Fraction(rounded[key]) - part) < Fraction(QUANTUM_USD) for key, part in parts.items())
