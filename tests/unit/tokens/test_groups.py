from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.corpus.spool import INDEX_DTYPE
from tokenmill.tokens import groups
from tokenmill.tokens.groups import GroupCutter


def entries(names: list[int], size: int = 10) -> np.ndarray:
    made = np.zeros(len(names), INDEX_DTYPE)
    made["digest"] = np.frombuffer(
        b"".join(hashlib.blake2b(str(name).encode(), digest_size=16).digest() for name in names), "V16"
    )
    made["bytes"] = size
    return made


def cut(documents: np.ndarray, mean: int, batch: int = 10**6) -> list[int]:
    """Sizes of the groups."""
    cutter = GroupCutter(mean)
    found = []
    for start in range(0, len(documents), batch):
        part = documents[start : start + batch]
        zeros = np.zeros(len(part), np.int64)
        found += [*cutter.add(start, part, zeros, zeros.astype(np.int32))]
    found += [*cutter.finish()]
    return [sum(len(part.entries_D) for part in parts) for parts in found]


@given(st.integers(0, 600), st.sampled_from([1, 2, 9, 50]), st.integers(1, 200))
def test_cuts_do_not_depend_on_batches(count: int, mean: int, batch: int) -> None:
    documents = entries(list(range(count)))
    sizes = cut(documents, mean, batch)
    assert sizes == cut(documents, mean)
    assert sum(sizes) == count
    assert all(size >= mean / 4 for size in sizes[:-1])
    assert all(size <= 4 * mean for size in sizes)


def test_the_mean_is_as_asked() -> None:
    sizes = cut(entries(list(range(100_000))), 500)
    assert 450 < np.mean(sizes) < 900


def test_after_a_change_the_cuts_fall_where_they_fell() -> None:
    names = list(range(20_000))
    before = np.cumsum(cut(entries(names), 100))
    changed = [*names[:9000], -1, *names[9001:]]
    after = np.cumsum(cut(entries(changed), 100))
    assert len(set(before.tolist()) ^ set(after.tolist())) <= 6
    inserted = [*names[:9000], -1, -2, *names[9000:]]
    shifted = [end - 2 if end > 9000 else end for end in np.cumsum(cut(entries(inserted), 100)).tolist()]
    assert len(set(before.tolist()) ^ set(shifted)) <= 6


def test_large_documents_close_a_group_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "GROUP_BYTES", 1000)
    assert max(cut(entries(list(range(500)), size=300), 10**6)) <= 4000 // 300
    assert cut(entries(list(range(5)), size=9000), 10**6) == [1, 1, 1, 1, 1]
