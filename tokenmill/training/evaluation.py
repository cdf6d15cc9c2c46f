"""Loss on held-out rows: always the same ones, in the same order, in one fixed batch shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tokenmill.training import objective
from tokenmill.training.batches import Batch, RowSource
from tokenmill.training.state import TrainState


@dataclass(frozen=True)
class Evaluation:
    """`loss` in nats a predicted token. `bytes` are the UTF-8 bytes that the predicted tokens stand for."""

    loss: float
    tokens: int
    rows: int
    bytes: int

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))

    @property
    def bits_per_byte(self) -> float:
        return self.loss * self.tokens / math.log(2) / self.bytes


class Evaluator:
    """Evaluates the weights of a `TrainState` on the first `rows` rows of the eval split."""

    def __init__(
        self,
        state: TrainState,
        source: RowSource,
        *,
        rows: int,
        batch_size: int,
        count_bytes: Callable[[np.ndarray], int],
    ) -> None:
        """`count_bytes` says how many bytes of text a run of token ids stands for."""
        self._state = state
        self._size = min(batch_size, rows)
        self.rows = rows
        numbers = np.arange(-(-rows // self._size) * self._size)
        packed = Batch.of_rows(source.rows("eval", np.minimum(numbers, rows - 1)), numbers)
        weights = packed.loss_weights_BS * (numbers < rows)[:, None]  # the last batch is filled up with weight 0
        self._batches = [
            Batch(
                packed.tokens_BS[at : at + self._size],
                packed.segment_ids_BS[at : at + self._size],
                packed.positions_BS[at : at + self._size],
                weights[at : at + self._size],
                numbers[at : at + self._size],
            )
            for at in range(0, len(numbers), self._size)
        ]
        self.tokens = int(np.count_nonzero(weights))
        predicted = np.zeros(weights.shape, bool)
        predicted[:, 1:] = weights[:, :-1] > 0
        self.bytes = sum(
            count_bytes(row[mask]) for row, mask in zip(packed.tokens_BS, predicted, strict=True) if mask.any()
        )
        self._function = tf.function(self._loss_sum, autograph=False)

    def compile(self) -> None:
        self._function.get_concrete_function(*self._batches[0].tensors()[:4])

    def run(self, look: Callable[[], None] = lambda: None) -> Evaluation:
        """`look` is called before each batch, and may raise to break off."""
        total = 0.0
        for batch in self._batches:
            look()
            total += float(self._function(*batch.tensors()[:4]))
        return Evaluation(total / max(1, self.tokens), self.tokens, self.rows, self.bytes)

    def _loss_sum(self, tokens_BS: Any, segment_ids_BS: Any, positions_BS: Any, weights_BS: Any) -> Any:
        model = self._state.model
        hidden_BSD = model(tokens_BS, segment_ids_BS, positions_BS)
        return objective.loss_sum(hidden_BSD, tf.convert_to_tensor(model.unembedding), tokens_BS, weights_BS)
