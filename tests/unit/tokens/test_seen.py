from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.tokens.seen import SeenDigests

# Few first words, so that digests collide in their first half.
WORDS = st.tuples(st.integers(0, 12), st.integers(0, 3))


@given(st.lists(st.lists(WORDS, max_size=30), max_size=12), st.sampled_from([1, 3, 16, 1000]))
def test_exactly_the_first_of_each_is_new(batches: list[list[tuple[int, int]]], limit: int) -> None:
    seen = SeenDigests(limit)
    known: set[tuple[int, int]] = set()
    for batch in batches:
        words = np.array(batch, "<u8").reshape(-1, 2)
        expected = []
        for pair in batch:
            expected.append(pair not in known)
            known.add(pair)
        assert seen.add(words.view("V16").reshape(-1)).tolist() == expected
