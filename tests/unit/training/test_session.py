"""The trainer as a whole on a tiny model: learns, stops, goes on, and leaves what the report needs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from training_helpers import FakeSnapshot, FakeStop, Ledger, session, training

from tokenmill.errors import Interrupted, UserError
from tokenmill.training import checkpoint, loop
from tokenmill.training.settings import ModelSettings

pytestmark = pytest.mark.tensorflow


def final_weights(folder: Path) -> dict[str, np.ndarray]:
    found = checkpoint.newest_valid(folder / "checkpoints")
    assert found is not None
    return {**found.weights, **found.optimizer}


def assert_same_bits(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].tobytes() == right[name].tobytes(), name


def test_a_run_learns_and_leaves_its_files(tmp_path: Path) -> None:
    ledger = Ledger()
    settings = training(length={"steps": 60}, sample_prompts=["ab"], sample_tokens=5)
    ending, outputs = session(tmp_path, settings, ledger=ledger).run()
    assert ending.status == "completed"
    assert (outputs["step"], outputs["cursor"]) == (60, 240)
    assert outputs["eval_loss"] < outputs["eval_loss_first"] - 1
    assert json.loads((tmp_path / "receipt.json").read_text())["balanced"]
    assert json.loads((tmp_path / "samples.json").read_text())[0]["prompt"] == "ab"
    evaluations = [json.loads(line) for line in (tmp_path / "evaluation.jsonl").read_text().splitlines()]
    assert [line["step"] for line in evaluations] == [0, 60]
    metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["step"] == 60
    assert {"step", "cursor", "time", "loss", "learning_rate", "gradient_norm", "tokens_per_second",
            "nonpadding_tokens", "processed_tokens", "attempt"} <= metrics[-1].keys()  # fmt: skip
    assert load_file(tmp_path / "model" / "model.safetensors")["transformer.wte.weight"].shape == (96, 16)
    counts = [record for record in ledger.records if record["kind"] == "steps"]
    assert counts[-1]["step"] == 60
    assert counts[-1]["processed_tokens"] == 60 * 4 * 16
    assert [record["step"] for record in ledger.records if record["kind"] == "checkpoint"][-1] == 60


def test_resuming_from_every_step_gives_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CALL_SECONDS", 0.0)
    settings = training(length={"steps": 7})
    session(tmp_path / "whole", settings).run()
    expected = final_weights(tmp_path / "whole")
    for interrupted_at in range(1, 7):
        folder = tmp_path / str(interrupted_at)
        with pytest.raises(Interrupted):
            session(folder, settings, stop=FakeStop(after=interrupted_at)).run()
        ending, _ = session(folder, settings, attempt=2).run()
        assert ending.status == "completed"
        assert_same_bits(final_weights(folder), expected)
        assert json.loads((folder / "receipt.json").read_text()) == json.loads(
            (tmp_path / "whole" / "receipt.json").read_text()
        )


def test_a_run_starts_from_a_promoted_model(tmp_path: Path) -> None:
    session(tmp_path / "first", training(length={"steps": 3})).run()
    last = session(tmp_path / "first", training(length={"steps": 3}))
    later = session(tmp_path / "second", training(length={"steps": 1}))
    later.starting_model = tmp_path / "first" / "model"
    _, outputs = later.run()
    _, before = last.run()
    assert outputs["eval_loss_first"] == pytest.approx(before["eval_loss"], rel=1e-6)


def test_a_starting_model_of_another_shape_is_a_sentence(tmp_path: Path) -> None:
    session(tmp_path / "first", training(length={"steps": 1})).run()
    later = session(tmp_path / "second", model=ModelSettings(layers=2, d_model=32, heads=2))
    later.starting_model = tmp_path / "first" / "model"
    with pytest.raises(UserError, match=r"training\.init_from: .* does not fit"):
        later.run()


def test_stop_conditions_end_a_run_and_end_it_again(tmp_path: Path) -> None:
    settings = training(length={"steps": 400}, target_loss=4.4, evaluation={"every_steps": 5, "max_rows": 5})
    ending, outputs = session(tmp_path, settings).run()
    assert ending.status == "stopped_by_condition"
    assert outputs["step"] < 400
    again, same = session(tmp_path, settings, attempt=2).run()
    assert (again.status, same["step"]) == ("stopped_by_condition", outputs["step"])
    longer = settings.model_copy(update={"target_loss": None, "max_seconds": 1e-9})
    ending, _ = session(tmp_path, longer, attempt=3).run()
    assert ending.status == "stopped_by_budget"


def test_training_that_is_never_finite_is_a_sentence(tmp_path: Path) -> None:
    snapshot = FakeSnapshot()
    poisoned = snapshot.splits["train"].loss_weights_BS.astype(np.float32)
    poisoned[:, 0] = np.nan
    snapshot.splits["train"] = replace(snapshot.splits["train"], loss_weights_BS=poisoned)
    with pytest.raises(UserError, match=r"not finite in [0-9]+ updates in a row"):
        session(tmp_path, training(), snapshot=snapshot).run()


@pytest.mark.parametrize(
    ("changes", "devices", "sentence"),
    [
        ({"micro_batch_size": 4}, 2, "micro_batch_size: 4 does not divide the 2 sequences"),
        ({"global_batch_size": 5}, 2, "global_batch_size: 5 cannot be split evenly over 2 devices"),
        ({"workers": 2}, 1, "workers: 2 with 1 devices each are promised, and TensorFlow trains on 1"),
    ],
)
def test_a_batch_that_cannot_be_split_is_a_sentence(
    tmp_path: Path, changes: dict[str, int], devices: int, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        session(tmp_path, training(**changes), devices=devices)
