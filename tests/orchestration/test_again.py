"""When a stage is started again: every row of the exit-code table, with real processes and no Prefect."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks import again
from tasks.again import until_done
from tasks.night import Night, NightOver
from tests.orchestration.nights import Quiet, fake_night, order
from tokenmill.cost.ledger import read_records
from tokenmill.protocol import StageName, StageResult

PREPARE, TRAIN = StageName.PREPARE, StageName.TRAIN


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "LONGEST_DELAY_SECONDS", 0.0)


def bring(night: Night, stage: StageName) -> StageResult:
    return until_done(night, stage, lambda: night.attempt(stage))


def with_run(night: Night) -> Night:
    if night.run is None:
        night.open_run("s1", "validations/s1/r")
    return night


def test_a_machine_that_goes_away_often_is_no_crash(tmp_path: Path) -> None:
    order(tmp_path, "prepare", *["preempt"] * 5)
    with fake_night(tmp_path) as night:
        assert bring(night, PREPARE).status == "completed"
        assert [stage.exit_code for stage in night.invocation.stages] == [75] * 5 + [0]


def test_three_crashes_of_prepare_end_the_night(tmp_path: Path) -> None:
    order(tmp_path, "prepare", "die", "fail", "die", "complete")
    with fake_night(tmp_path) as night, pytest.raises(NightOver, match="prepare crashed 3 times") as over:
        bring(night, PREPARE)
    assert over.value.outcome == "crashed"


def test_two_crashes_are_forgiven(tmp_path: Path) -> None:
    order(tmp_path, "prepare", "die", "fail")
    with fake_night(tmp_path) as night:
        assert bring(night, PREPARE).status == "completed"


def test_what_a_person_must_mend_is_not_tried_again(tmp_path: Path) -> None:
    order(tmp_path, "prepare", "mend")
    with fake_night(tmp_path) as night:
        with pytest.raises(NightOver, match="put a document into it") as over:
            bring(night, PREPARE)
        assert over.value.outcome == "user_error"
        assert len(night.invocation.stages) == 1


def test_crashes_that_each_committed_steps_go_on_for_ever(tmp_path: Path) -> None:
    order(tmp_path, "train", *["die"] * 5)
    with fake_night(tmp_path) as night:
        assert bring(with_run(night), TRAIN).outputs["step"] == 60
        assert night.run is not None
        assert (night.run.attempts, night.run.committed_step, night.run.crashes_without_progress) == (6, 60, 0)


def test_three_crashes_of_training_without_progress_fail_it_also_over_two_nights(tmp_path: Path) -> None:
    stuck = {"sample_prompts": ["stuck"]}
    order(tmp_path, "train", "die", "preempt", "fail", "wait")
    with fake_night(tmp_path, **stuck) as night:
        night.listeners.append(Quiet(waiting=lambda: night.stop.interrupt("Ctrl-C")))
        with pytest.raises(NightOver, match=r"interrupted in train \(Ctrl-C\); start again to go on") as over:
            bring(with_run(night), TRAIN)
        assert over.value.outcome == "interrupted"
    order(tmp_path, "train", "die")
    with fake_night(tmp_path, **stuck) as night, pytest.raises(NightOver, match="train crashed 3 times") as over:
        bring(night, TRAIN)
    assert over.value.outcome == "crashed"


def test_an_attempt_has_its_own_ledger_with_its_price(tmp_path: Path) -> None:
    order(tmp_path, "train", "preempt")
    with fake_night(tmp_path) as night:
        bring(with_run(night), TRAIN)
        assert night.run is not None
        folder = night.workspace.run(night.run.id) / "ledger"
        first, second = (list(read_records(folder / f"000{number}.jsonl")) for number in (1, 2))
    for records, reason in ((first, "interrupted"), (second, "completed")):
        assert records[0]["kind"] == "spawned"
        assert records[0]["usd_per_hour"] == "1"
        assert records[0]["run_id"] == night.run.id
        assert records[-1]["reason"] == reason


def test_a_stop_by_hand_is_not_an_interruption(tmp_path: Path) -> None:
    order(tmp_path, "train", "wait")
    with fake_night(tmp_path) as night:
        night.listeners.append(Quiet(waiting=lambda: night.stop.cancel("stopped by hand")))
        with pytest.raises(NightOver, match="stopped by hand at step 10; it does not go on by itself") as over:
            bring(with_run(night), TRAIN)
    assert over.value.outcome == "cancelled"


def test_a_stage_started_early_is_the_attempt_that_the_flow_comes_to(tmp_path: Path) -> None:
    with fake_night(tmp_path) as night:
        night.start_early(PREPARE)
        bring(night, PREPARE)
        assert len(night.invocation.stages) == 1


def test_a_stage_started_early_does_not_outlive_a_flow_that_never_comes_to_it(tmp_path: Path) -> None:
    order(tmp_path, "prepare", "wait")
    with fake_night(tmp_path) as night:
        night.start_early(PREPARE)
    assert [stage.status for stage in night.invocation.stages] == ["interrupted"]
