"""Rows cut anew, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tokenmill.tokens.resize import ResizedRows, packed


class Stored:
    """Two rows of four: documents of 3 and 1 tokens, then one of 2 and padding."""

    segments = np.array([[1, 1, 1, 2], [1, 1, 0, 0]], np.int32)
    tokens = np.array([[10, 11, 12, 20], [30, 31, 0, 0]], np.int32)

    def rows(self, split: str, numbers: Any) -> Any:
        return packed(self.tokens[numbers], self.segments[numbers])


def resized(length: int) -> ResizedRows:
    return ResizedRows(Stored(), 4, length, 2)  # type: ignore[arg-type]


def test_longer_rows_keep_documents_apart() -> None:
    source = resized(8)
    assert source.row_count == 1
    rows = source.rows("train", [0])
    assert rows.tokens_BS.tolist() == [[10, 11, 12, 20, 30, 31, 0, 0]]
    assert rows.segment_ids_BS.tolist() == [[1, 1, 1, 2, 3, 3, 0, 0]]
    assert rows.positions_BS.tolist() == [[0, 1, 2, 0, 0, 1, 0, 0]]
    assert rows.loss_weights_BS.tolist() == [[1, 1, 0, 0, 1, 0, 0, 0]]


def test_shorter_rows_cut_a_document_in_two() -> None:
    rows = resized(2).rows("train", [0, 1, 2, 3])
    assert rows.tokens_BS.tolist() == [[10, 11], [12, 20], [30, 31], [0, 0]]
    assert rows.segment_ids_BS.tolist() == [[1, 1], [1, 2], [1, 1], [0, 0]]
    assert rows.positions_BS.tolist() == [[0, 1], [0, 0], [0, 1], [0, 0]]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 16])
def test_rows_of_any_length_are_whole(length: int) -> None:
    source = resized(length)
    rows = source.rows("train", np.arange(source.row_count))
    assert rows.tokens_BS.shape == (source.row_count, length)
    assert source.row_count >= 1
