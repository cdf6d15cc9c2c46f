"""Packing: documents of known lengths into rows of `sequence_length` tokens.

    lengths [5, 3, 9], sequence_length 8  ->  rows: document 2 [0:8) | documents 0, 1 | document 2 [8:9)

A *piece* is a run of one document's tokens in one row. A document that fits a row is one piece (best_fit); one that
does not is cut into full rows and a rest, never cut short. Packing is plain arithmetic on lengths, the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

MAX_PADDING = 0.0025
"""Share of padding above which a few documents of a group are split to fill gaps."""
MIN_FILL_TOKENS = 12
"""Gaps smaller than this stay: so short a piece teaches nothing."""

PackingMode = Literal["best_fit", "concat", "one_per_row"]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Packing:
    """Where each piece goes, in the order of (row, column). Legend: P pieces."""

    rows: int
    document_P: Ints
    start_P: Ints
    """Of the piece within its document, in tokens."""
    length_P: Ints
    row_P: Ints
    column_P: Ints

    def split_documents(self) -> int:
        """Documents that lie in more than one piece."""
        return int((np.unique(self.document_P, return_counts=True)[1] > 1).sum())


def pack(lengths: Ints, sequence_length: int, mode: PackingMode, *, fill: bool = True) -> Packing:
    """Pack documents of `lengths` tokens (each at least 1).

    With `fill`, best_fit splits a few documents to bring padding down to `MAX_PADDING` where that can be done.
    """
    lengths = lengths.astype(np.int64)
    assert (lengths >= 1).all()
    if mode == "concat":
        return _concat(lengths, sequence_length)
    document_P, start_P, length_P = _cut(lengths, sequence_length)
    if mode == "one_per_row":
        row_P = np.arange(len(length_P))
        return Packing(len(length_P), document_P, start_P, length_P, row_P, np.zeros_like(row_P))
    row_P = best_fit(length_P, sequence_length)
    if fill:
        document_P, start_P, length_P, row_P = _fill_gaps(document_P, start_P, length_P, row_P, sequence_length)
    order = np.lexsort((np.arange(len(row_P)), row_P))
    document_P, start_P, length_P, row_P = document_P[order], start_P[order], length_P[order], row_P[order]
    before_P = np.cumsum(length_P) - length_P
    first_of_row = np.searchsorted(row_P, row_P)
    rows = int(row_P[-1]) + 1 if len(row_P) else 0
    return Packing(rows, document_P, start_P, length_P, row_P, before_P - before_P[first_of_row])


def _cut(lengths: Ints, sequence_length: int) -> tuple[Ints, Ints, Ints]:
    """Pieces of at most a row: (document, start, length), in document order."""
    pieces_D = -(-lengths // sequence_length)
    document_P = np.repeat(np.arange(len(lengths)), pieces_D)
    number_P = np.arange(len(document_P)) - np.repeat(np.cumsum(pieces_D) - pieces_D, pieces_D)
    start_P = number_P * sequence_length
    return document_P, start_P, np.minimum(lengths[document_P] - start_P, sequence_length)


def _concat(lengths: Ints, sequence_length: int) -> Packing:
    """Documents end to end, cut wherever a row ends: no padding but in the last row, many documents cut."""
    total = int(lengths.sum())
    end_D = np.cumsum(lengths)
    bounds = np.union1d(np.append(0, end_D), np.arange(0, total, sequence_length))
    start, stop = bounds[:-1], bounds[1:]
    document_P = np.searchsorted(end_D, start, side="right")
    return Packing(
        -(-total // sequence_length),
        document_P,
        start - (end_D - lengths)[document_P],
        stop - start,
        start // sequence_length,
        start % sequence_length,
    )


def best_fit(lengths: Ints, sequence_length: int) -> Ints:
    """Best-fit decreasing: the row of each piece (longest first; each into the fullest row that still takes it).

    Equal lengths are placed together, and the rows that still take a length are found by the lowest set bit of a mask,
    so the cost grows with the number of distinct lengths and of pieces, not with their product. Ties go to the row
    opened first among the most recently filled: any fixed rule serves, as the result must only be reproducible.
    """
    row_P = np.empty(len(lengths), np.int64)
    if not len(lengths):
        return row_P
    order = np.argsort(-lengths, kind="stable")
    distinct, first = np.unique(-lengths[order], return_index=True)
    ends = np.append(first[1:], len(order))
    open_rows: list[list[int]] = [[] for _ in range(sequence_length + 1)]
    mask = 0  # bit r is set while some row has r tokens of room
    rows = 0
    for negative, begin, end in zip(distinct.tolist(), first.tolist(), ends.tolist(), strict=True):
        length = -negative
        placed: list[int] = []
        left = end - begin
        while left:
            fitting = mask >> length
            if fitting:
                room = length + (fitting & -fitting).bit_length() - 1
                candidates = open_rows[room]
            else:
                room = sequence_length
                opened = -(-left // (room // length))
                candidates = list(range(rows, rows + opened))
                rows += opened
            per_row = room // length
            taken = min(len(candidates), -(-left // per_row))
            full, rest = candidates[:taken], candidates[taken:]
            last = left - per_row * (taken - 1)
            in_last = min(last, per_row)
            placed += [row for row in full[:-1] for _ in range(per_row)] if per_row > 1 else full[:-1]
            placed += [full[-1]] * in_last
            left -= per_row * (taken - 1) + in_last
            if room < sequence_length or fitting:
                open_rows[room] = rest
                if not rest:
                    mask &= ~(1 << room)
            for rows_done, remaining in ((full[:-1], room - per_row * length), (full[-1:], room - in_last * length)):
                if rows_done and remaining:
                    open_rows[remaining] += rows_done
                    mask |= 1 << remaining
        row_P[order[begin:end]] = placed
    return row_P


def _fill_gaps(
    document_P: Ints, start_P: Ints, length_P: Ints, row_P: Ints, sequence_length: int
) -> tuple[Ints, Ints, Ints, Ints]:
    """Empty the rows with most room into the gaps of the others, cutting their documents, down to `MAX_PADDING`."""
    used_R = np.bincount(row_P, length_P).astype(np.int64)
    room_R = sequence_length - used_R
    tokens, rows = int(length_P.sum()), len(used_R)
    allowed_rows = int(tokens / (1 - MAX_PADDING) / sequence_length)
    if rows <= max(allowed_rows, 1):
        return document_P, start_P, length_P, row_P
    emptiest = np.lexsort((np.arange(rows), -room_R))
    gaps = [int(row) for row in emptiest if room_R[row] >= MIN_FILL_TOKENS]
    capacity = int(room_R[gaps].sum())
    emptied = 0
    moved = 0
    while rows - emptied > allowed_rows and emptied < len(gaps):
        row = gaps[emptied]
        if moved + int(used_R[row]) > capacity - int(room_R[row]):
            break
        emptied, moved, capacity = emptied + 1, moved + int(used_R[row]), capacity - int(room_R[row])
    leaving = gaps[:emptied]
    left = np.isin(row_P, leaving)
    pieces: list[tuple[int, int, int, int]] = []
    takers = iter(gaps[emptied:])
    taker, room = -1, 0
    for document, start, length in zip(document_P[left], start_P[left], length_P[left], strict=True):
        while length:
            if not room:
                taker = next(takers)
                room = int(room_R[taker])
            part = min(int(length), room)
            pieces.append((int(document), int(start), part, taker))
            start, length, room = start + part, length - part, room - part
    more = np.array(pieces, np.int64).reshape(-1, 4).T
    kept = [
        np.concatenate([old[~left], new]) for old, new in zip((document_P, start_P, length_P, row_P), more, strict=True)
    ]
    kept[3] = np.unique(kept[3], return_inverse=True)[1]
    return kept[0], kept[1], kept[2], kept[3]
