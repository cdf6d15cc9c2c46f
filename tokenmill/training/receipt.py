"""The receipt: proof that a run consumed every row of every epoch exactly once, whatever interrupted it.

Rows are counted as they are handed to the optimizer, an epoch at a time, and kept in the checkpoint with the weights
that they made. At the end the sums are compared with those of the order itself: expected = seen + skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tokenmill.training.batches import RowOrder


class Receipt:
    """Per epoch, of rows seen and rows skipped: count, sum of row numbers, and sum of their 64-bit hashes mod 2⁶⁴."""

    def __init__(self, rows: int, state: Mapping[str, Any] | None = None) -> None:
        self.rows = rows
        kinds = ("seen", "skipped")
        given = state or {kind: {} for kind in kinds}
        self._sums: dict[str, dict[int, list[int]]] = {
            kind: {int(epoch): list(sums) for epoch, sums in given[kind].items()} for kind in kinds
        }

    def add(self, cursor: int, row_numbers: np.ndarray, *, skipped: bool = False) -> None:
        """Rows drawn from `cursor` on; a batch may straddle epochs."""
        epochs = (cursor + np.arange(len(row_numbers))) // self.rows
        sums = self._sums["skipped" if skipped else "seen"]
        for epoch in np.unique(epochs):
            more = _sums(row_numbers[epochs == epoch])
            sums[int(epoch)] = _added(sums.get(int(epoch), [0, 0, 0]), more)

    def state(self) -> dict[str, Any]:
        """Plain JSON, for a checkpoint."""
        return {kind: {str(epoch): sums for epoch, sums in of.items()} for kind, of in self._sums.items()}

    def document(self, order: RowOrder, seed: int, cursor: int) -> dict[str, Any]:
        """receipt.json: the sums of each epoch up to `cursor`, those expected, and whether they are equal."""
        epochs = []
        for epoch in range(-(-cursor // self.rows)):
            count = min(self.rows, cursor - epoch * self.rows)
            expected = _sums(order(self.rows, seed, epoch * self.rows, count))
            seen, skipped = (self._sums[kind].get(epoch, [0, 0, 0]) for kind in ("seen", "skipped"))
            epochs.append(
                {
                    "epoch": epoch,
                    **{name: _named(sums) for name, sums in zip(_PARTS, (expected, seen, skipped), strict=True)},
                    "balanced": expected == _added(seen, skipped),
                }
            )
        return {
            "rows": self.rows,
            "cursor": cursor,
            "balanced": all(epoch["balanced"] for epoch in epochs),
            "epochs": epochs,
        }


_PARTS = ("expected", "seen", "skipped")


def _sums(row_numbers: np.ndarray) -> list[int]:
    numbers = row_numbers.astype(np.uint64)
    return [len(numbers), int(numbers.sum()), int(_hash(numbers).sum(dtype=np.uint64))]


def _hash(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer (Steele et al. 2014), so that two wrong rows do not make up for each other."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed


def _added(a: list[int], b: list[int]) -> list[int]:
    return [a[0] + b[0], a[1] + b[1], (a[2] + b[2]) % 2**64]


def _named(sums: list[int]) -> dict[str, Any]:
    return {"rows": sums[0], "sum": sums[1], "hash": f"{sums[2]:016x}"}
