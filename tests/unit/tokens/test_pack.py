from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.tokens.pack import MAX_PADDING, Packing, best_fit, pack

LENGTHS = st.lists(st.integers(1, 70), max_size=60)
SEQUENCE_LENGTHS = st.sampled_from([1, 2, 7, 16, 33])
MODES = st.sampled_from(["best_fit", "concat", "one_per_row"])


def tokens_by_document(packing: Packing, count: int) -> list[list[int]]:
    """Which of each document's tokens the pieces hold."""
    found: list[list[int]] = [[] for _ in range(count)]
    for document, start, length in zip(packing.document_P, packing.start_P, packing.length_P, strict=True):
        found[document] += range(start, start + length)
    return found


@given(LENGTHS, SEQUENCE_LENGTHS, MODES, st.booleans())
def test_every_token_has_one_place(lengths: list[int], sequence_length: int, mode: str, fill: bool) -> None:
    packing = pack(np.array(lengths, np.int64), sequence_length, mode, fill=fill)
    assert [sorted(tokens) for tokens in tokens_by_document(packing, len(lengths))] == [list(range(n)) for n in lengths]
    places: set[tuple[int, int]] = set()
    for row, column, length in zip(packing.row_P, packing.column_P, packing.length_P, strict=True):
        assert column + length <= sequence_length
        piece = {(row, column + offset) for offset in range(length)}
        assert not piece & places
        places |= piece
    assert {row for row, _ in places} == set(range(packing.rows))
    # A row is filled from its start: what is left is padding at its end.
    for row in range(packing.rows):
        columns = [column for at, column in places if at == row]
        assert sorted(columns) == list(range(len(columns)))


@given(LENGTHS, SEQUENCE_LENGTHS)
def test_documents_that_fit_stay_whole_without_filling(lengths: list[int], sequence_length: int) -> None:
    packing = pack(np.array(lengths, np.int64), sequence_length, "best_fit", fill=False)
    pieces = np.bincount(packing.document_P, minlength=len(lengths))
    assert pieces.tolist() == [-(-length // sequence_length) for length in lengths]
    assert packing.split_documents() == sum(length > sequence_length for length in lengths)


def one_by_one(lengths: list[int], sequence_length: int) -> list[int]:
    """Best-fit decreasing as the books have it; the room left in each row."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [room for room in rooms if room >= length]
        if fitting:
            rooms[rooms.index(min(fitting))] -= length
        else:
            rooms.append(sequence_length - length)
    return sorted(rooms)


@given(st.lists(st.integers(1, 33), max_size=80), st.just(33))
def test_best_fit_is_best_fit_decreasing(lengths: list[int], sequence_length: int) -> None:
    row_P = best_fit(np.array(lengths, np.int64), sequence_length)
    used = np.bincount(row_P, lengths).astype(int) if lengths else np.empty(0, int)
    assert sorted((sequence_length - used).tolist()) == one_by_one(lengths, sequence_length)


def test_a_hand_packed_example() -> None:
    packing = pack(np.array([5, 3, 9]), 8, "best_fit")
    assert packing.rows == 3
    pieces = zip(packing.document_P, packing.start_P, packing.length_P, packing.row_P, packing.column_P, strict=True)
    assert sorted(tuple(map(int, piece)) for piece in pieces) == [
        (0, 0, 5, 1, 0),
        (1, 0, 3, 1, 5),
        (2, 0, 8, 0, 0),
        (2, 8, 1, 2, 0),
    ]


def test_concat_cuts_where_rows_end() -> None:
    packing = pack(np.array([5, 3, 9]), 8, "concat")
    assert packing.rows == 3
    assert packing.length_P.tolist() == [5, 3, 8, 1]
    assert packing.row_P.tolist() == [0, 0, 1, 2]
    assert packing.column_P.tolist() == [0, 5, 0, 0]


def test_filling_brings_padding_below_the_limit() -> None:
    lengths = np.random.default_rng(0).lognormal(4.3, 1.0, 5000).astype(np.int64) + 1
    padding = {}
    for fill in (False, True):
        packing = pack(lengths, 512, "best_fit", fill=fill)
        padding[fill] = 1 - lengths.sum() / (packing.rows * 512)
    assert padding[True] <= max(MAX_PADDING, padding[False])
    lengths = np.full(3000, 171, np.int64)  # two to a row leave 170 tokens, one short of a third
    assert pack(lengths, 512, "best_fit", fill=False).rows == 1500
    filled = pack(lengths, 512, "best_fit")
    assert 1 - lengths.sum() / (filled.rows * 512) <= MAX_PADDING


@pytest.mark.parametrize("mode", ["best_fit", "concat", "one_per_row"])
def test_nothing_packs_to_nothing(mode: str) -> None:
    assert pack(np.empty(0, np.int64), 8, mode).rows == 0
