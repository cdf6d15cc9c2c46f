"""Statistics of documents from their tokens, vectorised over many documents at a time.

`tokens_N` holds the tokens of D documents, end to end; `lengths_D` how many each has.

>>> document_statistics(np.array([7, 7, 7, 1, 5, 1]), np.array([4, 2]), unknown_id=5)["longest_run_tokens"]
array([3, 1])
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer]


def document_statistics(tokens_N: Ints, lengths_D: Ints, *, unknown_id: int | None = None) -> dict[str, Ints]:
    """int64[D] each: `min_token_id`, `max_token_id`, `unknown_tokens`, `top_token_count` (occurrences of the
    document's most frequent token), `longest_run_tokens` (of one token). Every document has at least one token.
    """
    assert len(tokens_N) == lengths_D.sum()
    assert (lengths_D > 0).all()
    starts_D = np.concatenate([[0], np.cumsum(lengths_D[:-1])]).astype(np.int64)
    if not len(lengths_D):
        empty = np.zeros(0, np.int64)
        names = ("min_token_id", "max_token_id", "unknown_tokens", "top_token_count", "longest_run_tokens")
        return dict.fromkeys(names, empty)
    tokens_N = tokens_N.astype(np.int64)
    unknown_N = (tokens_N == unknown_id) if unknown_id is not None else np.zeros(len(tokens_N), bool)
    return {
        "min_token_id": np.minimum.reduceat(tokens_N, starts_D),
        "max_token_id": np.maximum.reduceat(tokens_N, starts_D),
        "unknown_tokens": np.add.reduceat(unknown_N.astype(np.int64), starts_D),
        "top_token_count": _longest_runs(_sorted_within(tokens_N, lengths_D), lengths_D),
        "longest_run_tokens": _longest_runs(tokens_N, lengths_D),
    }


def _sorted_within(tokens_N: Ints, lengths_D: Ints) -> Ints:
    """Each document's tokens in rising order: equal ones stand together."""
    low = int(tokens_N.min())
    span = int(tokens_N.max()) - low + 1
    keys_N = np.repeat(np.arange(len(lengths_D), dtype=np.int64), lengths_D) * span + (tokens_N - low)
    keys_N.sort()
    return keys_N % span


def _longest_runs(tokens_N: Ints, lengths_D: Ints) -> Ints:
    """int64[D]: the length of the longest run of equal tokens in each document."""
    starts_D = np.concatenate([[0], np.cumsum(lengths_D[:-1])]).astype(np.int64)
    new_N = np.empty(len(tokens_N), bool)
    new_N[0] = True
    np.not_equal(tokens_N[1:], tokens_N[:-1], out=new_N[1:])
    new_N[starts_D] = True
    run_starts = np.flatnonzero(new_N)
    run_lengths = np.diff(np.append(run_starts, len(tokens_N)))
    first_run_D = np.searchsorted(run_starts, starts_D)
    return np.asarray(np.maximum.reduceat(run_lengths, first_run_D), np.int64)


def unigram_entropy_nats(counts_V: Ints) -> float:
    """Entropy of the token distribution with these counts: the loss of a model that knows frequencies alone."""
    counts = counts_V[counts_V > 0].astype(np.float64)
    if not len(counts):
        return 0.0
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())
