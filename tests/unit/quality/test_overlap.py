from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.quality.overlap import OverlapCounter, ngram_hashes

documents = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), max_size=6)


def joined(texts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.array([token for text in texts for token in text], np.int32)
    return tokens, np.array([len(text) for text in texts], np.int64)


def ngrams(text: list[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]


@given(documents, st.integers(1, 9))
def test_equal_ngrams_and_only_they_have_equal_hashes(texts: list[list[int]], n: int) -> None:
    hashes, owners = ngram_hashes(*joined(texts), n)
    expected = [(gram, owner) for owner, text in enumerate(texts) for gram in ngrams(text, n)]
    assert owners.tolist() == [owner for _, owner in expected]
    by_gram: dict[tuple[int, ...], set[int]] = {}
    for (gram, _), value in zip(expected, hashes.tolist(), strict=True):
        by_gram.setdefault(gram, set()).add(value)
    assert all(len(values) == 1 for values in by_gram.values())
    assert len({min(values) for values in by_gram.values()}) == len(by_gram)


@given(documents, documents, st.integers(1, 9), st.integers(1, 3))
def test_overlap_equals_a_count_by_hand(held_out: list[list[int]], train: list[list[int]], n: int, pieces: int) -> None:
    counter = OverlapCounter(*joined(held_out), n)
    for start in range(0, len(train), pieces):
        counter.add(*joined(train[start : start + pieces]))
    seen = {gram for text in train for gram in ngrams(text, n)}
    for text, pct in zip(held_out, counter.overlap_pcts().tolist(), strict=True):
        grams = ngrams(text, n)
        if not grams:
            assert math.isnan(pct)
        else:
            assert pct == pytest.approx(100 * sum(gram in seen for gram in grams) / len(grams))


def test_a_near_copy_is_met_almost_whole() -> None:
    rng = np.random.default_rng(0)
    original = rng.integers(0, 5000, 1000)
    changed = np.concatenate([rng.integers(0, 5000, 20), original[20:]])
    counter = OverlapCounter(original, np.array([1000]), 32)
    counter.add(changed, np.array([1000]))
    assert counter.overlap_pcts()[0] == pytest.approx(100 * (1000 - 20 - 31) / (1000 - 31))
