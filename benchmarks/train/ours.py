"""tokenmill's own loop on packed rows, as the train stage sets it up.

    python -m benchmarks.train.ours ROWS.npz XLA PRECISION

Documents of a row are kept apart, which the peers do not do.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import numpy as np

from benchmarks.train.turns import (
    BATCH,
    BETAS,
    CLIP_NORM,
    HEADS,
    LAYERS,
    LEARNING_RATE,
    VOCABULARY,
    WEIGHT_DECAY,
    WIDTH,
    Turns,
)  # fmt: skip
from tokenmill.stages.harness import StopFlag
from tokenmill.telemetry.phases import PhaseClock
from tokenmill.tokens.order import row_numbers
from tokenmill.training.hardware import tensorflow_environment
from tokenmill.training.settings import ModelSettings, OptimizerSettings


class Rows:
    """Rows in memory, as a snapshot gives them."""

    def __init__(self, path: str) -> None:
        arrays = np.load(path)
        self._arrays = {name: arrays[name] for name in arrays.files}

    def __len__(self) -> int:
        return len(self._arrays["tokens_BS"])

    @property
    def length(self) -> int:
        return int(self._arrays["tokens_BS"].shape[1])

    def rows(self, _: object, numbers: np.ndarray) -> SimpleNamespace:
        return SimpleNamespace(**{name: array[numbers] for name, array in self._arrays.items()})


def main() -> None:
    source, (xla, precision) = Rows(sys.argv[1]), sys.argv[2:]
    os.environ |= tensorflow_environment(xla)
    import tensorflow as tf

    from tokenmill.training.batches import BatchReader
    from tokenmill.training.loop import Hook, Loop, StepInfo
    from tokenmill.training.model import Decoder
    from tokenmill.training.progress import Progress
    from tokenmill.training.receipt import Receipt
    from tokenmill.training.state import TrainState
    from tokenmill.training.update import Updater

    class Steps(Hook):
        turns = Turns()

        def steps_until_due(self, step: int) -> int:
            return self.turns.left

        def after(self, info: StepInfo) -> None:
            self.turns.step(info.updates)

    model = Decoder(
        ModelSettings(layers=LAYERS, d_model=WIDTH, heads=HEADS), VOCABULARY, source.length, precision=precision
    )
    optimizer = OptimizerSettings(
        learning_rate=LEARNING_RATE, beta1=BETAS[0], beta2=BETAS[1], weight_decay=WEIGHT_DECAY, clip_norm=CLIP_NORM
    )
    state = TrainState(model, seed=0)
    updater = Updater(
        state, optimizer, tf.distribute.get_strategy(), rows_per_replica=BATCH, micro_batch_size=BATCH,
        jit_compile=xla == "on",
    )  # fmt: skip
    updater.compile()
    reader = BatchReader(source, row_numbers, rows=len(source), seed=0, global_batch_size=BATCH, cursor=0)
    progress = Progress(Receipt(len(source)))
    Loop(updater, reader, progress, lambda step: LEARNING_RATE, 10**6, [Steps()], PhaseClock(), StopFlag()).run()


if __name__ == "__main__":
    main()
