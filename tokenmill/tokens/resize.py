"""Rows of another length, cut anew from a snapshot's own: for timing a sequence length that has no snapshot yet.

Rows are laid end to end and cut every `length` tokens: the same text, share of padding and lengths of documents (a
document that a cut goes through becomes two). Good for measuring, never for training.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.tokens.snapshot import PackedRows, Snapshot


class ResizedRows:
    """A row source like `Snapshot`, with rows of `length` tokens. Of the same length it hands on the snapshot's."""

    def __init__(self, snapshot: Snapshot, stored_length: int, length: int, stored_rows: int) -> None:
        self._snapshot, self._stored, self._length = snapshot, stored_length, length
        self._stored_rows = stored_rows
        self.row_count = stored_rows * stored_length // length or min(stored_rows, 1)
        """How many rows there are; a length beyond the whole snapshot goes around it."""

    def rows(self, split: Any, row_numbers: Any) -> PackedRows:
        if self._stored == self._length:
            return self._snapshot.rows(split, row_numbers)
        cut = [self._row(split, int(number)) for number in row_numbers]
        tokens_BS, segment_ids_BS = (np.stack(parts) for parts in zip(*cut, strict=True))
        return packed(tokens_BS, segment_ids_BS)

    def _row(self, split: Any, number: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        begin = number * self._length
        first, last = begin // self._stored, (begin + self._length - 1) // self._stored
        stored = self._snapshot.rows(split, np.arange(first, last + 1) % self._stored_rows)
        # A document of one row and one of the next must not share a number.
        apart = np.arange(len(stored.segment_ids_BS))[:, None] * (self._stored + 1)
        segments = np.where(stored.segment_ids_BS > 0, stored.segment_ids_BS + apart, 0)
        place = slice(begin - first * self._stored, begin - first * self._stored + self._length)
        return stored.tokens_BS.reshape(-1)[place], segments.reshape(-1)[place].astype(np.int32)


def packed(tokens_BS: npt.NDArray[np.int32], segments_BS: npt.NDArray[np.int32]) -> PackedRows:
    """Segments numbered from 1 in each row, positions from 0 in each segment, and the weights that follow from both.

    `segments_BS` holds any number for each document, and 0 for padding.
    """
    starts = np.ones(segments_BS.shape, bool)
    starts[:, 1:] = segments_BS[:, 1:] != segments_BS[:, :-1]
    real = segments_BS > 0
    places = np.broadcast_to(np.arange(segments_BS.shape[1]), segments_BS.shape)
    begun = np.maximum.accumulate(np.where(starts, places, 0), axis=1)
    weights = np.zeros(segments_BS.shape, np.float32)
    weights[:, :-1] = (segments_BS[:, 1:] == segments_BS[:, :-1]) & real[:, :-1]
    return PackedRows(
        tokens_BS=tokens_BS,
        segment_ids_BS=np.where(real, np.cumsum(starts & real, axis=1), 0).astype(np.int32),
        positions_BS=np.where(real, places - begun, 0).astype(np.int32),
        loss_weights_BS=weights,
    )
