"""The order law: which rows come at a cursor (law 5). No state, no buffer, O(1) memory.

The training order is the endless row of epochs 0, 1, 2, ...; epoch *e* is a permutation of `rows` row numbers that only
(rows, seed, e) determine. The `cursor` counts rows drawn so far, so row `cursor` of that endless row comes next:

>>> first = row_numbers(rows=5, seed=7, cursor=0, count=5)
>>> sorted(first.tolist()), bool((row_numbers(5, 7, 3, 2) == first[3:]).all())
([0, 1, 2, 3, 4], True)

The permutation is a balanced Feistel network over the smallest even number of bits that holds `rows`, with cycle
walking (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002): a value outside goes through again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_ROUNDS = 6
_U64 = np.uint64
_GOLDEN = 0x9E3779B97F4A7C15
_ALL = 0xFFFFFFFFFFFFFFFF


def row_numbers(rows: int, seed: int, cursor: int, count: int) -> npt.NDArray[np.int64]:
    """int64[count]: the row numbers (each below `rows`) at `cursor`, `cursor + 1`, ...; an epoch may end between."""
    if rows < 1 or cursor < 0 or count < 0:
        raise ValueError(f"rows {rows} must be at least 1, cursor {cursor} and count {count} at least 0")
    parts = []
    while count > 0:
        epoch, offset = divmod(cursor, rows)
        taken = min(count, rows - offset)
        parts.append(_permute(np.arange(offset, offset + taken, dtype=_U64), rows, _round_keys(seed, epoch)))
        cursor += taken
        count -= taken
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _round_keys(seed: int, epoch: int) -> list[np.uint64]:
    state = _mix_int(_mix_int(seed & _ALL) ^ (epoch + 1 & _ALL) * _GOLDEN)
    return [_U64(_mix_int(state + (number + 1) * _GOLDEN)) for number in range(_ROUNDS)]


def _permute(values: npt.NDArray[np.uint64], rows: int, keys: list[np.uint64]) -> npt.NDArray[np.int64]:
    half = max(1, ((rows - 1).bit_length() + 1) // 2)
    out = _feistel(values, half, keys)
    while len(outside := np.flatnonzero(out >= _U64(rows))):
        out[outside] = _feistel(out[outside], half, keys)
    return out.astype(np.int64)


def _feistel(values: npt.NDArray[np.uint64], half: int, keys: list[np.uint64]) -> npt.NDArray[np.uint64]:
    shift, mask = _U64(half), _U64((1 << half) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ _mix(right ^ key) & mask
    return left << shift | right


def _mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    value = (value ^ value >> _U64(30)) * _U64(0xBF58476D1CE4E5B9)
    value = (value ^ value >> _U64(27)) * _U64(0x94D049BB133111EB)
    return value ^ value >> _U64(31)


def _mix_int(value: int) -> int:
    value &= _ALL
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _ALL
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _ALL
    return value ^ value >> 31
