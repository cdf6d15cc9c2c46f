"""Several workers as one: what they agree on, and what the chief tells the others, through collectives alone.

Nothing here needs a disk or memory that workers share. Worker 0 is the *chief*: it restores, evaluates, saves, exports
and runs the hooks; the others compute, and wait for it at the next decision.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tokenmill.training.loop import Decision, Ending, Status
from tokenmill.training.state import TrainState

_STATUSES: tuple[Status, ...] = ("completed", "stopped_by_budget", "stopped_by_condition", "interrupted")


class Crew:
    """Worker `index` of `size`. A crew of one decides alone, at no cost."""

    def __init__(self, strategy: Any, index: int = 0, size: int = 1) -> None:
        self.index, self.size = index, size
        self._strategy = strategy
        self._sum = tf.function(self._sum_over_workers, autograph=False, reduce_retracing=True)

    @property
    def is_chief(self) -> bool:
        return self.index == 0

    def agree(self, mine: Decision) -> Decision:
        """One decision of all: anybody's stop counts, the chief's ending and number of updates."""
        if self.size == 1:
            return mine
        ending = 1 + _STATUSES.index(mine.ending.status) if mine.ending is not None else 0
        chiefs = [mine.updates, ending] if self.is_chief else [0, 0]
        stops, updates, code = self._total(np.array([mine.stop, *chiefs], np.int32)).tolist()
        if code and not self.is_chief:
            return Decision(stops > 0, updates, Ending(_STATUSES[code - 1], "as the chief decided"))
        return Decision(stops > 0, updates, mine.ending)

    def wait_for_all(self) -> None:
        """Until every worker is here."""
        if self.size > 1:
            self._total(np.zeros(1, np.int32))

    def share_state(self, state: TrainState) -> None:
        """Give every worker the chief's weights, optimizer slots and counters."""
        if self.size > 1:
            state.load_weights({name: self._chiefs(array) for name, array in state.weight_arrays().items()})
            state.load_optimizer({name: self._chiefs(array) for name, array in state.optimizer_arrays().items()})

    def share_text(self, text: str) -> str:
        """The chief's text, on every worker."""
        if self.size == 1:
            return text
        mine = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
        length = int(self._chiefs(np.array([len(mine)], np.int32))[0])
        padded = mine if self.is_chief else np.zeros(length, np.int32)
        return self._chiefs(padded).astype(np.uint8).tobytes().decode()

    def _chiefs(self, array: np.ndarray) -> np.ndarray:
        return self._total(array if self.is_chief else np.zeros_like(array))

    def _total(self, array: np.ndarray) -> np.ndarray:
        # Flat, so that few shapes are traced.
        total: np.ndarray = self._sum(tf.constant(array.reshape(-1))).numpy()
        return total.reshape(array.shape)

    def _sum_over_workers(self, mine: Any) -> Any:
        """Each worker's value counts once, whatever number of replicas it has."""
        strategy = self._strategy
        local = int(strategy.num_replicas_in_sync) // self.size

        def of_replica() -> Any:
            context = tf.distribute.get_replica_context()
            number = tf.get_static_value(context.replica_id_in_sync_group)
            return tf.zeros_like(mine) if number % local else tf.identity(mine)

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(of_replica), axis=None)
