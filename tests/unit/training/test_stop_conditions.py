"""What ends a run early, and what takes updates back: no better loss, a loss that is no number, a spike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from training_helpers import LENGTH, FakeSnapshot, Ledger, session, training
from training_helpers import order as usual_order

from tokenmill.errors import UserError
from tokenmill.training import checkpoint
from tokenmill.training.progress import Progress
from tokenmill.training.receipt import Receipt

pytestmark = pytest.mark.tensorflow

BAD_DRAW, BATCH = 160, 4
SPIKY = {"factor": 1.5, "skip_batches": 3, "max_rollbacks": 1}


def spiky_snapshot() -> FakeSnapshot:
    """Its row 0 is noise."""
    snapshot = FakeSnapshot()
    rows = snapshot.splits["train"]
    noise = np.random.default_rng(1).integers(1, 90, LENGTH)
    for array, row in ((rows.tokens_BS, noise), (rows.positions_BS, np.arange(LENGTH))):
        array[0] = row
    rows.segment_ids_BS[0], rows.loss_weights_BS[0] = 1, 1
    return snapshot


def order(rows: int, seed: int, cursor: int, count: int) -> np.ndarray:
    """The noise is drawn in one batch, from `BAD_DRAW` on, and nowhere else."""
    usual = 1 + usual_order(rows - 1, seed, cursor, count)
    draws = np.arange(cursor, cursor + count)
    bad = (draws >= BAD_DRAW) & (draws < BAD_DRAW + BATCH)
    numbers: np.ndarray = np.where(bad, 0, usual)
    return numbers


def spiked(folder: Path, seconds_between_checkpoints: float, ledger: Ledger | None = None) -> dict[str, np.ndarray]:
    settings = training(
        length={"steps": 60}, loss_spike=SPIKY, checkpoint={"every_seconds": seconds_between_checkpoints}
    )
    one = session(folder, settings, snapshot=spiky_snapshot(), ledger=ledger)
    one.data = replace(one.data, order=order)
    _, outputs = one.run()
    assert (outputs["step"], outputs["cursor"]) == (60, (60 + 3) * BATCH)
    found = checkpoint.newest_valid(folder / "checkpoints")
    assert found is not None
    return {**found.weights, **found.optimizer}


def test_a_spike_is_rolled_back_and_its_batches_skipped_whichever_checkpoint_there_is(tmp_path: Path) -> None:
    ledger = Ledger()
    near, far = spiked(tmp_path / "near", 0.001, ledger), spiked(tmp_path / "far", 1e9)
    assert all(near[name].tobytes() == far[name].tobytes() for name in near)
    receipt = json.loads((tmp_path / "near" / "receipt.json").read_text())
    assert receipt["balanced"]
    assert sum(epoch["skipped"]["rows"] for epoch in receipt["epochs"]) == 3 * BATCH
    assert [record["name"] for record in ledger.records if record["kind"] == "event"] == [
        "rolled_back",
        "rolled_back_to",
    ]
    assert json.loads((tmp_path / "near" / "summary.json").read_text())["rollbacks"] == 1


def test_one_spike_too_many_is_a_sentence(tmp_path: Path) -> None:
    one = session(
        tmp_path, training(length={"steps": 60}, loss_spike={**SPIKY, "max_rollbacks": 0}), snapshot=spiky_snapshot()
    )
    one.data = replace(one.data, order=order)
    with pytest.raises(UserError, match=r"the loss spiked to .* at row 160 .* after 0 roll-backs"):
        one.run()


def test_no_lower_loss_in_so_many_evaluations_ends_a_run() -> None:
    from tokenmill.training.hooks import StopConditions

    conditions = StopConditions(training(stop_after_evaluations=2, evaluation={"every_steps": 1}))
    progress = Progress(Receipt(4))
    endings = []
    for progress.step, loss in enumerate([3.0, 2.0, 2.5, 1.9, 2.0, 1.9]):
        progress.evaluated(loss)
        endings.append(conditions.after_evaluation(progress))
    assert endings[:-1] == [None] * 5
    assert endings[-1] is not None
    assert endings[-1].status == "stopped_by_condition"
    assert "no lower eval loss in 2 evaluations up to step 5" in endings[-1].message
    assert "1.9000 at step 3" in endings[-1].message
    progress.evaluated(float("nan"))
    with pytest.raises(UserError, match="the eval loss at step 5 is nan"):
        conditions.after_evaluation(progress)


def test_stop_after_evaluations_needs_evaluations() -> None:
    with pytest.raises(ValueError, match=r"stop_after_evaluations: needs evaluation\.every_steps"):
        training(stop_after_evaluations=2)
