from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.quality.drift import (
    band_shares,
    jensen_shannon_divergence,
    largest_ratio,
    largest_share_change,
    population_stability_index,
)

counts = st.lists(st.integers(0, 1000), min_size=4, max_size=4).filter(any).map(np.array)


@given(counts, counts)
def test_divergence_is_symmetric_and_between_0_and_1(left: np.ndarray, right: np.ndarray) -> None:
    there = jensen_shannon_divergence(left, right)
    assert 0 <= there <= 1 + 1e-12
    assert there == pytest.approx(jensen_shannon_divergence(right, left), abs=1e-12)
    assert jensen_shannon_divergence(left, left * 7) == pytest.approx(0, abs=1e-12)


def test_divergence_by_hand() -> None:
    assert jensen_shannon_divergence(np.array([5, 0]), np.array([0, 9])) == pytest.approx(1)
    # p = (1, 0), q = (1/2, 1/2), m = (3/4, 1/4): (log2(4/3) + (log2(2/3) + log2(2)) / 2) / 2
    expected = (math.log2(4 / 3) + (math.log2(2 / 3) + 1) / 2) / 2
    assert jensen_shannon_divergence(np.array([4, 0]), np.array([3, 3])) == pytest.approx(expected)


def test_bands_are_those_of_the_reference() -> None:
    reference = np.arange(50, 0, -1)  # id 0 is the most frequent
    now = np.zeros(50, np.int64)
    now[[0, 9, 10, 49]] = [1, 2, 3, 4]
    assert band_shares(reference, now).tolist() == pytest.approx([0.3, 0.7])
    assert len(band_shares(np.ones(20_000, np.int64), np.ones(20_000, np.int64))) == 5


def test_stability_index_by_hand() -> None:
    expected = (0.4 - 0.5) * math.log(0.4 / 0.5) + (0.6 - 0.5) * math.log(0.6 / 0.5)
    assert population_stability_index(np.array([0.5, 0.5]), np.array([0.4, 0.6])) == pytest.approx(expected)
    assert population_stability_index(np.array([0.5, 0.5]), np.array([0.0, 1.0])) > 0.25


def test_the_largest_change_is_named() -> None:
    assert largest_share_change({"a": 2.0, "b": 98.0}, {"a": 61.0, "b": 30.0, "c": 9.0}) == (68.0, "b")
    assert largest_share_change({}, {"new": 30.0}) == (30.0, "new")
    assert largest_ratio({"p25": 9.0, "p50": 99.0}, {"p25": 19.0, "p50": 24.0}) == (4.0, "p50")
    assert largest_ratio({"p25": 9.0}, {"p25": 9.0}) == (1.0, "p25")
