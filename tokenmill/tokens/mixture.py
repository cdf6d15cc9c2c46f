"""Weights: how often an epoch draws each row of a shard, without storing or encoding anything twice.

A weight of 2.5 draws every row twice and half of the rows, spread evenly over the shard, once more; 0.25 draws every
fourth row. The rows of an epoch are numbered shard by shard: whole repeats first, then the part.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokenmill.tokens.records import RecordLayout

Ints = npt.NDArray[np.int64]


def epoch_rows(stored: int, weight: float) -> int:
    """Rows that an epoch draws of `stored` ones."""
    return int(stored * weight)


def stored_rows(local: Ints, stored: npt.NDArray[np.int64], drawn: npt.NDArray[np.int64]) -> Ints:
    """The stored row for each row `local` of an epoch, in a shard of `stored` rows of which an epoch draws `drawn`."""
    whole = drawn // np.maximum(stored, 1) * stored
    extra = drawn - whole
    return np.where(local < whole, local % np.maximum(stored, 1), (local - whole) * stored // np.maximum(extra, 1))


def row_counts_of_part(layout: RecordLayout, path: Path, stored: int, extra: int) -> Ints:
    """Non-padding tokens of the `extra` rows that are drawn once more."""
    records = np.memmap(path, np.uint8, "r", shape=(stored, layout.record_bytes))
    chosen = np.arange(extra) * stored // extra
    return np.asarray(np.count_nonzero(layout.view(records[chosen], "segment_ids"), axis=1), np.int64)
