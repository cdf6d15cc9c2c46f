"""Rows of a snapshot as batches, read ahead by a thread. No TensorFlow but in `Batch.tensors`.

A batch is a pure function of (snapshot, seed, global batch size, cursor); see `tokenmill.tokens.order`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

READ_AHEAD_BATCHES = 16


class Rows(Protocol):
    """Packed rows, as `tokenmill.tokens.snapshot.Snapshot.rows` gives them."""

    tokens_BS: np.ndarray
    segment_ids_BS: np.ndarray
    positions_BS: np.ndarray
    loss_weights_BS: np.ndarray


class RowSource(Protocol):
    def rows(self, split: Any, row_numbers: Any) -> Any: ...


class RowOrder(Protocol):
    def __call__(self, rows: int, seed: int, cursor: int, count: int) -> np.ndarray: ...


@dataclass(frozen=True)
class Batch:
    """Rows of one update, or of U updates with a leading axis. `draws_B` are the rows' places in the endless order."""

    tokens_BS: np.ndarray
    segment_ids_BS: np.ndarray
    positions_BS: np.ndarray
    loss_weights_BS: np.ndarray
    draws_B: np.ndarray

    @classmethod
    def of_rows(cls, rows: Rows, draws: np.ndarray) -> Batch:
        return cls(
            rows.tokens_BS.astype(np.int32, copy=False),
            rows.segment_ids_BS.astype(np.int32, copy=False),
            rows.positions_BS.astype(np.int32, copy=False),
            rows.loss_weights_BS.astype(np.float32, copy=False),
            draws.astype(np.int64, copy=False),
        )

    @classmethod
    def stack(cls, batches: Sequence[Batch], rows: int, length: int) -> Batch:
        """[U, B, ...] of U batches; of none, arrays of shape [0, rows, length]."""
        if not batches:
            integers = np.zeros((0, rows, length), np.int32)
            weights = np.zeros((0, rows, length), np.float32)
            return cls(integers, integers, integers, weights, np.zeros((0, rows), np.int64))
        return cls(*(np.stack([getattr(batch, field.name) for batch in batches]) for field in fields(cls)))

    def rows(self, start: int, stop: int) -> Batch:
        """Rows `start` to `stop` of each update of a stacked batch."""
        return Batch(*(getattr(self, field.name)[:, start:stop] for field in fields(self)))

    def tensors(self) -> tuple[Any, ...]:
        import tensorflow as tf

        return tuple(tf.constant(getattr(self, field.name)) for field in fields(self))


@dataclass(frozen=True)
class Draw:
    """One global batch: the numbers of all its rows with the cursor before them, and the rows of this worker."""

    cursor: int
    row_numbers: np.ndarray
    batch: Batch
    nonpadding_tokens: int
    """Of the whole global batch, as `processed_tokens`."""
    processed_tokens: int


class BatchReader:
    """Draws from `cursor` on, read ahead in a thread. `share` is this worker's part (index, of how many)."""

    def __init__(
        self,
        source: RowSource,
        order: RowOrder,
        *,
        rows: int,
        seed: int,
        global_batch_size: int,
        cursor: int,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        self._source, self._order = source, order
        self._rows, self._seed, self._size = rows, seed, global_batch_size
        self._share = share
        self._queue: queue.Queue[Draw | BaseException] = queue.Queue(READ_AHEAD_BATCHES)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(cursor,), name="batches", daemon=True)
        self._thread.start()

    def next(self) -> Draw:
        """Waits for the next draw; an error of the reading thread is raised here."""
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _read(self, cursor: int) -> None:
        try:
            while not self._closed.is_set():
                self._put(self.read(cursor))
                cursor += self._size
        except BaseException as error:
            self._put(error)

    def read(self, cursor: int) -> Draw:
        numbers = self._order(self._rows, self._seed, cursor, self._size)
        index, workers = self._share
        mine = slice(self._size * index // workers, self._size * (index + 1) // workers)
        draws = np.arange(cursor, cursor + self._size, dtype=np.int64)
        packed = Batch.of_rows(self._source.rows("train", numbers), draws)
        return Draw(
            cursor,
            numbers,
            Batch(*(getattr(packed, field.name)[mine] for field in fields(Batch))),
            nonpadding_tokens=int(np.count_nonzero(packed.segment_ids_BS)),
            processed_tokens=packed.tokens_BS.size,
        )

    def _put(self, item: Draw | BaseException) -> None:
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return
            except queue.Full:
                continue
