"""A stage that takes no more steps is found out by its ledger; one that does something else is left alone."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tasks.again import until_done
from tasks.night import NightOver
from tasks.watchdog import Watchdog
from tests.orchestration.nights import fake_night, order
from tests.orchestration.test_supervisor import Heard, attempt, kinds, supervise
from tokenmill.cost.ledger import LedgerWriter, read_records
from tokenmill.protocol import LogLine, StageName
from tokenmill.telemetry.settings import TelemetrySettings

QUICK = TelemetrySettings(hang_seconds=2, hang_factor=5)


class Scripted:
    """A ledger and a clock in a test's hands: seconds pass in looks, half a second apart."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.step = 0
        self.ledger = LedgerWriter(folder / "ledger.jsonl")
        self.watchdog = Watchdog(folder / "ledger.jsonl", folder / "SPEC.json", QUICK, lambda: self.now)

    def pass_time(self, seconds: float) -> str:
        found = ""
        for _ in range(round(2 * seconds)):
            self.now += 0.5
            found = found or self.watchdog.look()
        return found

    def phases(self, current: str, **seconds: float) -> None:
        self.ledger.write("phases", seconds=seconds or {current: 1.0}, current=current)

    def steps(self, count: int, monkeypatch: pytest.MonkeyPatch) -> str:
        """Steps of half a second each."""
        found = ""
        for _ in range(count):
            found = found or self.pass_time(0.5)
            self.step += 1
            monkeypatch.setattr("time.monotonic", lambda: self.now)
            self.ledger.write("steps", step=self.step, cursor=8 * self.step)
            monkeypatch.undo()
        return found


@pytest.fixture
def scripted(tmp_path: Path) -> Scripted:
    return Scripted(tmp_path)


def test_no_step_for_long_is_a_hang(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted.phases("step")
    assert scripted.steps(6, monkeypatch) == ""
    assert scripted.pass_time(2.0) == ""
    found = scripted.pass_time(1.5)
    assert "training hangs in a step" in found
    assert "after step 6" in found
    assert "the median is 0.5 s" in found


@pytest.mark.parametrize("phase", ["compile", "checkpoint_restore", "evaluate", "checkpoint_save", "export", "profile"])
def test_whatever_is_no_step_takes_its_time(scripted: Scripted, phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted.phases("step")
    scripted.steps(6, monkeypatch)
    scripted.pass_time(1.5)
    scripted.phases(phase, step=0.2, **{phase: 0.8})
    assert scripted.pass_time(600) == ""
    scripted.phases("step", **{phase: 600.0, "step": 0.1})
    assert scripted.pass_time(1.5) == ""
    assert "hangs" in scripted.pass_time(3)


def test_the_first_steps_have_no_limit(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted.phases("step")
    scripted.steps(2, monkeypatch)
    assert scripted.pass_time(3600) == ""


def test_waiting_for_input_for_ever_is_a_hang_by_its_name(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted.phases("step")
    scripted.steps(6, monkeypatch)
    scripted.phases("input_wait")
    assert "hangs in the input of a step" in scripted.pass_time(4)


def test_time_in_which_the_watcher_itself_stood_still_does_not_count(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.phases("step")
    scripted.steps(6, monkeypatch)
    scripted.now += 3600
    assert scripted.watchdog.look() == ""


@pytest.mark.integration
def test_a_hung_stage_gives_its_stacks_and_counts_as_crashed(tmp_path: Path) -> None:
    settings = TelemetrySettings(hang_seconds=1, hang_factor=3)
    watchdog = Watchdog(tmp_path / "ledger.jsonl", tmp_path / "SPEC.json", settings)
    heard = Heard()
    ending = supervise(attempt(tmp_path, "hang", watchdog=watchdog), heard=heard)
    assert (ending.reason, ending.exit_code) == ("hung", -signal.SIGKILL)
    assert "training hangs in a step" in ending.message
    said = [line.message for line in heard.lines if isinstance(line, LogLine)]
    assert any("take_steps" in line or "in act" in line for line in said)
    event = next(record for record in read_records(tmp_path / "ledger.jsonl") if record["kind"] == "event")
    assert (event["name"], event["step"]) == ("hang", 5)
    assert kinds(tmp_path)[-1] == "reaped"


@pytest.mark.integration
def test_hangs_without_progress_fail_the_run(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("hello")
    order(tmp_path, "train", "hang", "hang", "hang", "complete")
    changes: dict[str, Any] = {"sample_prompts": ["stuck"]}
    with fake_night(tmp_path, **changes) as night:
        object.__setattr__(night.pipeline, "telemetry", TelemetrySettings(hang_seconds=0.8, hang_factor=2))
        night.open_run("77c1", "validations/77c1")
        with pytest.raises(NightOver, match="crashed 3 times without progress; at last: training hangs") as over:
            until_done(night, StageName.TRAIN, lambda: night.attempt(StageName.TRAIN))
    assert over.value.outcome == "crashed"
