"""The trainer as a whole on a tiny model: learns, stops, goes on, and leaves what the report needs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from training_helpers import FakeStop, Ledger, session, training

from tokenmill.errors import Interrupted
from tokenmill.training import checkpoint, loop

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
    settings = training(length={"steps": 60}, sample_prompts=["ab"], sample_tokens=5, profile_steps=2)
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
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))
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
