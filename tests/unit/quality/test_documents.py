from __future__ import annotations

import math
from collections import Counter
from itertools import groupby

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.quality.documents import document_statistics, unigram_entropy_nats

documents = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=30), max_size=8)


@given(documents)
def test_statistics_equal_a_count_by_hand(texts: list[list[int]]) -> None:
    tokens = np.array([token for text in texts for token in text], np.int32)
    found = document_statistics(tokens, np.array([len(text) for text in texts], np.int64), unknown_id=5)
    assert found["min_token_id"].tolist() == [min(text) for text in texts]
    assert found["max_token_id"].tolist() == [max(text) for text in texts]
    assert found["unknown_tokens"].tolist() == [text.count(5) for text in texts]
    assert found["top_token_count"].tolist() == [max(Counter(text).values()) for text in texts]
    assert found["longest_run_tokens"].tolist() == [max(len(list(run)) for _, run in groupby(text)) for text in texts]


def test_a_run_does_not_cross_into_the_next_document() -> None:
    found = document_statistics(np.array([3, 3, 3, 3]), np.array([2, 2]))
    assert found["longest_run_tokens"].tolist() == [2, 2]


def test_negative_ids_are_seen() -> None:
    found = document_statistics(np.array([-4, 9]), np.array([2]))
    assert (found["min_token_id"][0], found["max_token_id"][0]) == (-4, 9)


def test_entropy_of_known_distributions() -> None:
    assert unigram_entropy_nats(np.array([8, 8, 8, 8, 0])) == math.log(4)
    assert unigram_entropy_nats(np.array([0, 100])) == 0.0
    assert unigram_entropy_nats(np.zeros(3, np.int64)) == 0.0
    expected = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert math.isclose(unigram_entropy_nats(np.array([1, 3])), expected)
