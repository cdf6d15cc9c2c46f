from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from tests.unit.cost.ledgers import FakeAttempt
from tokenmill.cost.accounting import SUPERVISOR_DIED, read_attempt
from tokenmill.cost.run_account import Cell, build_account

S = 1_000_000


def test_phases_tile_the_billed_time(tmp_path: Path) -> None:
    fake = FakeAttempt(tmp_path / "0001.jsonl", "train", at=5_000.0)
    fake.boot(2.5)
    fake.work("compile", 3.0)
    fake.work("step", 10.25)
    fake.now += 0.5  # a crash between two records belongs to the phase it happened in
    fake.end(137, "killed")
    account = read_attempt(fake.path)
    assert account is not None
    assert account.billed_us == 16.25 * S
    assert account.phase_us == {"start": 2.5 * S, "compile": 3 * S, "step": 10.75 * S}
    assert (account.overrun_us, account.estimated, account.reason) == (0, False, "killed")


def test_nothing_spawned_is_no_attempt(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"kind": "spaw')
    assert read_attempt(tmp_path / "x.jsonl") is None


def test_a_dead_supervisor_ends_one_interval_after_its_last_heartbeat(tmp_path: Path) -> None:
    fake = FakeAttempt(tmp_path / "0001.jsonl", "train", at=5_000.0)
    fake.boot(4.0)
    fake.work("step", 3.0)
    account = read_attempt(fake.path)
    assert account is not None
    assert account.billed_us == 8 * S
    assert (account.estimated, account.reason, account.exit_code) == (True, SUPERVISOR_DIED, None)
    assert sum(account.phase_us.values()) == account.billed_us


def test_a_stage_that_outlives_its_supervisor_is_billed_on(tmp_path: Path) -> None:
    fake = FakeAttempt(tmp_path / "0001.jsonl", "train", at=5_000.0)
    fake.work("step", 3.0)
    for _ in range(4):  # saving, with nobody left to write heartbeats
        fake.now += 1.0
        fake.write("phases", seconds={"checkpoint_save": 1.0}, current="checkpoint_save")
    account = read_attempt(fake.path)
    assert account is not None
    assert account.phase_us == {"step": 3 * S, "checkpoint_save": 5 * S}  # and one interval, whose end nobody saw


@pytest.mark.parametrize("step", [-3600.0, 86_400.0])
def test_a_stepping_wall_clock_changes_nothing(tmp_path: Path, step: float) -> None:
    fake = FakeAttempt(tmp_path / "0001.jsonl", "train", at=5_000.0)
    fake.work("step", 3.0)
    fake.write("reaped", time_step=step, exit_code=0, reason="completed")
    account = read_attempt(fake.path)
    assert account is not None
    assert account.billed_us == 3 * S


def test_a_pull_comes_before_the_stage_starts(tmp_path: Path) -> None:
    fake = FakeAttempt(tmp_path / "0001.jsonl", "train", at=5_000.0)
    fake.now += 12.0
    fake.write("phases", seconds={"pull": 12.0}, current="pull")
    fake.boot(2.0)
    fake.work("step", 5.0)
    fake.end(0, "completed")
    account = read_attempt(fake.path)
    assert account is not None
    assert account.phase_us == {"pull": 12 * S, "start": 2 * S, "step": 5 * S}


def test_a_stage_on_another_machine_has_another_monotonic_clock(tmp_path: Path) -> None:
    fake = FakeAttempt(tmp_path / "0001.jsonl", "train", at=5_000.0)
    fake.now += 2.0
    supervisor, fake.offset = fake.offset, 1e7
    for _ in range(5):
        fake.now += 1.0
        fake.write("phases", seconds={"step": 1.0}, current="step")
    fake.offset = supervisor
    fake.write("reaped", exit_code=0, reason="completed")
    account = read_attempt(fake.path)
    assert account is not None
    assert account.phase_us == {"start": 2 * S, "step": 5 * S}


def crashed_then_finished(folder: Path) -> tuple[FakeAttempt, FakeAttempt]:
    first = FakeAttempt(folder / "0001.jsonl", "train", at=5_000.0, market="spot")
    first.boot(2.0)
    first.work("compile", 4.0)
    first.steps(0)
    first.work("step", 10.0)
    first.commit(10)
    first.work("step", 6.0)
    first.steps(16)
    first.end(137, "killed")
    second = FakeAttempt(folder / "0002.jsonl", "train", at=first.now + 30.0)
    second.boot(2.0)
    second.work("checkpoint_restore", 1.0)
    second.write("event", name="restored", step=10)
    second.steps(10)
    second.work("step", 10.0)
    second.commit(20)
    second.end(0, "completed")
    return first, second


def test_work_after_the_last_commit_is_lost(tmp_path: Path) -> None:
    train = [read_attempt(fake.path) for fake in crashed_then_finished(tmp_path)]
    account = build_account([], train)  # type: ignore[arg-type]
    assert account.cell_us == {
        Cell(0, "start", False): 2 * S,
        Cell(0, "compile", False): 4 * S,
        Cell(0, "step", False): 10 * S,
        Cell(0, "step", True): 6 * S,
        Cell(1, "start", False): 2 * S,
        Cell(1, "checkpoint_restore", False): 1 * S,
        Cell(1, "step", False): 10 * S,
    }
    assert account.usd == Decimal("0.035")  # 35 s at $3.60 an hour
    assert account.usd_where(lambda cell: cell.lost) == Decimal("0.006")
    assert (account.retained.step, account.retained.processed_tokens, account.retained.nonpadding_tokens) == (
        20,
        2000,
        1600,
    )
    assert (account.done.step, account.done.processed_tokens) == (26, 2600)
    assert account.waiting == ((5_022.0, 5_052.0),)


def test_a_broken_checkpoint_loses_what_was_committed_after_the_one_before(tmp_path: Path) -> None:
    first = FakeAttempt(tmp_path / "0001.jsonl", "train", at=5_000.0)
    for step in (10, 20, 30):
        first.work("step", 10.0)
        first.commit(step)
    first.end(75, "interrupted")
    second = FakeAttempt(tmp_path / "0002.jsonl", "train", at=first.now)
    second.write("event", name="restored", step=10)
    second.work("step", 20.0)
    second.commit(30)
    second.end(0, "completed")
    account = build_account([], [read_attempt(first.path), read_attempt(second.path)])  # type: ignore[list-item]
    assert account.us_where(lambda cell: cell.lost) == 20 * S
    assert (account.retained.processed_tokens, account.done.processed_tokens) == (3000, 5000)


def test_without_a_word_the_newest_checkpoint_that_fits_is_taken_as_the_start(tmp_path: Path) -> None:
    first = FakeAttempt(tmp_path / "0001.jsonl", "train", at=5_000.0)
    for step in (10, 20):
        first.work("step", 10.0)
        first.commit(step)
    first.end(137, "killed")
    second = FakeAttempt(tmp_path / "0002.jsonl", "train", at=first.now)
    second.work("step", 1.0)
    second.steps(11)  # below 20: so it went on from 10
    second.end(137, "killed")
    account = build_account([], [read_attempt(first.path), read_attempt(second.path)])  # type: ignore[list-item]
    assert account.kept[1].begin.step == 10
    assert account.retained.step == 10


def test_an_attempt_without_a_price_has_no_dollars(tmp_path: Path) -> None:
    fake = FakeAttempt(tmp_path / "0001.jsonl", "train", at=5_000.0, usd_per_hour=None)
    fake.work("step", 3.0)
    fake.end(0, "completed")
    account = build_account([], [read_attempt(fake.path)])  # type: ignore[list-item]
    assert (account.usd, account.cell_usd) == (None, None)
    assert account.billed_us == 3 * S
