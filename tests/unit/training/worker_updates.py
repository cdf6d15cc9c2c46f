"""Updates on one of several workers, for test_workers: `python worker_updates.py RESULT WORKERS`, told by TF_CONFIG."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

import numpy as np
from training_helpers import LENGTH, VOCAB, FakeSnapshot

from tokenmill.protocol import worker_index
from tokenmill.training.batches import Batch
from tokenmill.training.settings import ModelSettings, OptimizerSettings

ROWS = 8
MODEL = ModelSettings(layers=1, d_model=16, heads=2, dropout=0.1)


def batch(at: int, poison: float | None = None) -> Batch:
    whole = Batch.of_rows(FakeSnapshot().rows("train", np.arange(at, at + ROWS)), np.arange(at, at + ROWS))
    if poison is None:
        return whole
    weights = whole.loss_weights_BS.copy()
    weights[ROWS - 1, 0] = poison
    return replace(whole, loss_weights_BS=weights)


def updates(workers: int, worker: int, micro: int) -> dict[str, Any]:
    """What three updates, the second of them with an inf in the last worker's rows, make of the weights."""
    from tokenmill.training.crew import Crew
    from tokenmill.training.devices import Devices, strategy_for
    from tokenmill.training.loop import Decision
    from tokenmill.training.model import Decoder
    from tokenmill.training.state import TrainState
    from tokenmill.training.update import Updater

    strategy = strategy_for(Devices("cpu", ("/CPU:0",), (), ()), workers)
    crew = Crew(strategy, worker, workers)
    with strategy.scope():
        state = TrainState(Decoder(MODEL, VOCAB, LENGTH, precision="float16"), seed=3 + worker, dynamic_loss_scale=True)
    crew.share_state(state)  # the others began with weights of their own
    rows = ROWS // workers
    settings = OptimizerSettings(learning_rate=0.01)
    updater = Updater(state, settings, strategy, rows_per_replica=rows, micro_batch_size=micro, seed=3)
    share = slice(worker * rows, (worker + 1) * rows)
    batches = [batch(0), batch(ROWS, np.inf), batch(ROWS)]
    mine = [Batch(*(getattr(each, name)[share] for name in each.__dataclass_fields__)) for each in batches]
    results = updater.run(mine, [0.01, 0.01, 0.01])
    text = crew.share_text(f"worker {worker} says so")
    decision = crew.agree(Decision(worker == workers - 1, 5 + worker, None))
    crew.wait_for_all()
    arrays = state.weight_arrays() | state.optimizer_arrays()
    return {**arrays, "loss": results.loss, "applied": results.applied, "text": np.array(text),
            "decision": np.array([decision.stop, decision.updates])}  # fmt: skip


if __name__ == "__main__":
    index = worker_index(os.environ)
    np.savez(f"{sys.argv[1]}-{index}.npz", **updates(int(sys.argv[2]), index, micro=2))
    os._exit(0)
