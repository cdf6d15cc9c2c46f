"""How far two snapshots are apart: plain arithmetic on counts and quantiles."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.integer]

BAND_EDGES = (10, 100, 1_000, 10_000)
"""Token frequency bands of the reference: its 10 most frequent tokens, the next 90, ..."""
LENGTH_QUANTILES = (0.25, 0.5, 0.75)
_PSI_FLOOR = 1e-4
"""Share below which a band counts as this share: an empty band would make the index infinite."""


def jensen_shannon_divergence(left_V: Counts, right_V: Counts) -> float:
    """Base 2, of two count vectors over the same vocabulary: 0 for equal distributions, 1 for disjoint ones.

    Lin 1991, "Divergence measures based on the Shannon entropy". Each side needs a count above zero.
    """
    p, q = left_V / left_V.sum(), right_V / right_V.sum()
    middle = (p + q) / 2
    return max(0.0, (_kullback_leibler(p, middle) + _kullback_leibler(q, middle)) / 2)


def _kullback_leibler(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    support = p > 0
    return float((p[support] * np.log2(p[support] / q[support])).sum())


def band_shares(reference_V: Counts, counts_V: Counts) -> NDArray[np.float64]:
    """The share of `counts_V` in each band of the tokens' rank in the reference (ties by id)."""
    order = np.argsort(-reference_V, kind="stable")
    edges = [edge for edge in BAND_EDGES if edge < len(order)]
    sums = np.array([part.sum() for part in np.split(counts_V[order], edges)], np.float64)
    return np.asarray(sums / sums.sum(), np.float64)


def population_stability_index(expected: NDArray[np.float64], actual: NDArray[np.float64]) -> float:
    """Sum of (a - e) ln(a / e) over bands; 0 for equal shares. The usual marks: 0.1 moderate, 0.25 major."""
    e, a = np.maximum(expected, _PSI_FLOOR), np.maximum(actual, _PSI_FLOOR)
    return float(((a - e) * np.log(a / e)).sum())


def largest_ratio(reference: Mapping[str, float], now: Mapping[str, float]) -> tuple[float, str]:
    """The largest factor (1 or more), up or down, between values of the same name, and that name.

    One is added to both sides: a quartile of 1 token that becomes 2 is no shift.
    """
    factors = {name: (now[name] + 1) / (reference[name] + 1) for name in reference}
    name = max(factors, key=lambda key: max(factors[key], 1 / factors[key]))
    return max(factors[name], 1 / factors[name]), name


def largest_share_change(reference: Mapping[str, float], now: Mapping[str, float]) -> tuple[float, str]:
    """The largest change, in points and without sign, of a name's share (percent) and that name; a name that one side
    lacks has a share of 0 there."""
    names = sorted({*reference, *now})
    changes = {name: abs(now.get(name, 0.0) - reference.get(name, 0.0)) for name in names}
    name = max(changes, key=lambda key: changes[key])
    return changes[name], name
