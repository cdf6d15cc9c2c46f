from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.tokens.order import row_numbers

ROWS = st.integers(1, 2000)
SEEDS = st.integers(-(2**63), 2**64)


@pytest.mark.parametrize("rows", [*range(1, 70), 127, 128, 129, 255, 256, 257, 1023, 1024, 1025, 4097])
def test_each_epoch_is_a_permutation(rows: int) -> None:
    for epoch in (0, 1, 7):
        assert sorted(row_numbers(rows, 3, epoch * rows, rows).tolist()) == list(range(rows))


@given(ROWS, SEEDS, st.integers(0, 10**12), st.lists(st.integers(0, 300), max_size=6))
def test_the_order_does_not_depend_on_how_it_is_asked_for(rows: int, seed: int, cursor: int, counts: list[int]) -> None:
    whole = row_numbers(rows, seed, cursor, sum(counts))
    parts, at = [np.empty(0, np.int64)], cursor
    for count in counts:
        parts.append(row_numbers(rows, seed, at, count))
        at += count
    assert np.array_equal(whole, np.concatenate(parts))


@given(ROWS, SEEDS, st.integers(0, 50), st.integers(0, 2000))
def test_a_batch_may_straddle_epochs(rows: int, seed: int, epoch: int, back: int) -> None:
    cursor = max(0, epoch * rows - back)
    drawn = row_numbers(rows, seed, cursor, 2 * rows)
    ends = [rows - cursor % rows, rows + rows - cursor % rows]
    assert sorted(drawn[ends[0] : ends[1]].tolist()) == list(range(rows))


def test_epochs_and_seeds_differ() -> None:
    orders = [tuple(row_numbers(100, seed, epoch * 100, 100)) for seed in range(5) for epoch in range(5)]
    assert len(set(orders)) == 25
    assert tuple(range(100)) not in orders


def test_the_order_looks_random() -> None:
    rows, epochs = 60, 3000
    drawn = row_numbers(rows, 11, 0, rows * epochs).reshape(epochs, rows)
    counts = np.stack([np.bincount(drawn[:, place], minlength=rows) for place in range(rows)])
    chi_square = float(((counts - epochs / rows) ** 2 / (epochs / rows)).sum())
    degrees = (rows - 1) ** 2
    assert abs(chi_square - degrees) < 5 * (2 * degrees) ** 0.5


def test_the_order_is_pinned() -> None:
    """A changed order would silently change every run: it may only change with the format version."""
    assert row_numbers(10, 0, 0, 12).tolist() == PINNED


def test_nonsense_is_refused() -> None:
    for arguments in [(0, 0, 0, 1), (5, 0, -1, 1), (5, 0, 0, -1)]:
        with pytest.raises(ValueError, match="rows"):
            row_numbers(*arguments)


PINNED = [9, 4, 6, 8, 7, 3, 1, 5, 2, 0, 3, 8]
