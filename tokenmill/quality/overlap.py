"""How much of an eval document also stands in train, by long n-grams of tokens.

Exact copies are removed before the split; what is left are near copies: the same article with another headline. An
n-gram of 32 tokens (about 25 words of prose) hardly occurs twice by chance, so an eval document most of whose n-grams
stand in train has been seen in training. Compare Lee et al. 2022, "Deduplicating Training Data Makes Language Models
Better" (50 tokens), and Brown et al. 2020, appendix C (13 words).

Memory: 8 bytes an eval token and 2 MiB, however large train is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer]
Hashes = NDArray[np.uint64]

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_FILTER_BITS = 24


def ngram_hashes(tokens_N: Ints, lengths_D: Ints, n: int) -> tuple[Hashes, Ints]:
    """The 64-bit hashes of all n-grams that lie inside one document, and for each the number of its document.

    Built by doubling: the hash of 2k tokens from two hashes of k. Equal n-grams have equal hashes; two different ones
    collide with a chance of about 2^-64.
    """
    documents_N = np.repeat(np.arange(len(lengths_D)), lengths_D)
    if len(tokens_N) < n:
        return np.zeros(0, np.uint64), documents_N[:0]
    power = _mix(tokens_N.astype(np.uint64) + _MULTIPLIER)
    width, done, total = 1, 0, np.zeros(0, np.uint64)
    while width <= n:
        if n & width:
            # `total` covers the first `done` tokens of each n-gram; append the block of `width` after them.
            total = power if not done else _join(total, power, done)
            done += width
        power = _join(power, power, width)
        width *= 2
    total = total[: len(tokens_N) - n + 1]
    inside = documents_N[: len(total)] == documents_N[n - 1 :]
    return total[inside], documents_N[: len(total)][inside]


def _join(left: Hashes, right: Hashes, offset: int) -> Hashes:
    """The hash at i of what `left` covers at i followed by what `right` covers at i + offset."""
    count = max(0, min(len(left), len(right) - offset))
    return _mix(left[:count] * _MULTIPLIER + right[offset : offset + count])


def _mix(values: Hashes) -> Hashes:
    """A bijection of 64-bit numbers that spreads each bit (the finalizer of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class OverlapCounter:
    """Takes the eval documents once, then all of train in pieces, and says what share of each eval document it met."""

    def __init__(self, tokens_N: Ints, lengths_D: Ints, n: int) -> None:
        self._n = n
        hashes, documents = ngram_hashes(tokens_N, lengths_D, n)
        self._unique, inverse = np.unique(hashes, return_inverse=True)
        self._inverse, self._documents = inverse, documents
        self._documents_count = len(lengths_D)
        self._met = np.zeros(len(self._unique), bool)
        # Most n-grams of train are not in eval; a table that fits the cache says so without a search.
        self._filter = np.zeros(1 << _FILTER_BITS, bool)
        self._filter[self._slots(self._unique)] = True

    def add(self, tokens_N: Ints, lengths_D: Ints) -> None:
        """Look at some documents of train."""
        hashes, _ = ngram_hashes(tokens_N, lengths_D, self._n)
        if not len(hashes) or not len(self._unique):
            return
        hashes = hashes[self._filter[self._slots(hashes)]]
        places = np.minimum(np.searchsorted(self._unique, hashes), len(self._unique) - 1)
        self._met[places[self._unique[places] == hashes]] = True

    def overlap_pcts(self) -> NDArray[np.float64]:
        """float64[D]: the share (percent) of each eval document's n-grams that stand in train; NaN for a document that
        is shorter than an n-gram."""
        total = np.bincount(self._documents, minlength=self._documents_count)
        met = np.bincount(self._documents, weights=self._met[self._inverse], minlength=self._documents_count)
        with np.errstate(invalid="ignore"):
            return np.where(total > 0, 100.0 * met / total, np.nan)

    @staticmethod
    def _slots(hashes: Hashes) -> NDArray[np.int64]:
        return (hashes >> np.uint64(64 - _FILTER_BITS)).astype(np.int64)
