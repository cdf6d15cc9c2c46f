"""Which content digests were seen before: exact, in at most 24 bytes a document and a constant.

New digests go into a Python set; a full set becomes a sorted run of 16 bytes each; runs of like size are merged in
place, so that a digest is moved O(log n) times and no second copy of a large run is ever made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_RECENT_LIMIT = 1 << 17
"""About 15 MB of Python objects: the constant."""
_MERGE_BLOCK = 1 << 16
_Words = npt.NDArray[np.uint64]


@dataclass
class _Run:
    """Digests as two 64-bit words each, sorted by the first."""

    high: _Words
    low: _Words

    def contains(self, high: _Words, low: _Words) -> npt.NDArray[np.bool_]:
        at = np.searchsorted(self.high, high)
        found = np.zeros(len(high), np.bool_)
        left = np.arange(len(high))
        while len(left):  # digests that share their first word lie side by side; there is hardly ever more than one
            left = left[at[left] < len(self.high)]
            left = left[self.high[at[left]] == high[left]]
            same = self.low[at[left]] == low[left]
            found[left[same]] = True
            left = left[~same]
            at[left] += 1
        return found

    def absorb(self, other: _Run) -> None:
        """Merge the smaller `other` into this run in place, from the end, block by block."""
        size = len(self.high)
        other_target = np.searchsorted(self.high, other.high) + np.arange(len(other.high))
        for words in (self.high, self.low):
            words.resize(size + len(other.high), refcheck=False)
        for end in range(size, 0, -_MERGE_BLOCK):
            block = slice(max(0, end - _MERGE_BLOCK), end)
            high, low = self.high[block].copy(), self.low[block].copy()
            # `side="right"` here pairs with the "left" above: of equal first words, the absorbed one comes first.
            target = np.searchsorted(other.high, high, side="right") + np.arange(block.start, block.stop)
            self.high[target], self.low[target] = high, low
        self.high[other_target], self.low[other_target] = other.high, other.low


class SeenDigests:
    def __init__(self, recent_limit: int = _RECENT_LIMIT) -> None:
        self._recent: set[bytes] = set()
        self._recent_limit = recent_limit
        self._runs: list[_Run] = []

    def add(self, digests: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        """Take digests (V16) in order; True for each that was not there before."""
        new = np.ones(len(digests), np.bool_)
        if self._runs and len(digests):
            high, low = _words(digests)
            for run in self._runs:
                new &= ~run.contains(high, low)
        recent = self._recent
        for number, digest in enumerate(digests.tolist()):
            if not new[number]:
                continue
            if digest in recent:
                new[number] = False
            else:
                recent.add(digest)
        if len(recent) >= self._recent_limit:
            self._seal()
        return new

    def _seal(self) -> None:
        high, low = _words(np.frombuffer(b"".join(self._recent), "V16"))
        self._recent.clear()
        order = np.argsort(high, kind="stable")
        self._runs.append(_Run(high[order], low[order]))
        while len(self._runs) > 1 and 3 * len(self._runs[-1].high) > len(self._runs[-2].high):
            smaller = self._runs.pop()
            if len(smaller.high) > len(self._runs[-1].high):
                smaller, self._runs[-1] = self._runs[-1], smaller
            self._runs[-1].absorb(smaller)


def _words(digests: npt.NDArray[np.void]) -> tuple[_Words, _Words]:
    pairs = np.ascontiguousarray(digests).view("<u8").reshape(-1, 2)
    return pairs[:, 0].copy(), pairs[:, 1].copy()
