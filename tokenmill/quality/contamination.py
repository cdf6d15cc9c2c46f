"""Whether the eval split was seen in train: the same content, or most of a document's long n-grams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokenmill.quality.overlap import OverlapCounter
from tokenmill.quality.reading import Chunk, Damaged, SnapshotReader

BUDGET_TOKENS = 4_000_000
"""Eval tokens whose n-grams are looked for in train; of a larger eval split, an equal part of each shard."""


class EvalOverlap:
    """Takes the eval documents of all shards at once, then train piece by piece."""

    def __init__(self, reader: SnapshotReader, n: int) -> None:
        budget = -(-BUDGET_TOKENS // max(1, len(reader.manifest.shards)))
        if reader.manifest.eval.stored_tokens <= BUDGET_TOKENS:
            budget = BUDGET_TOKENS
        tokens = [np.zeros(0, np.int32)]
        lengths = [np.zeros(0, np.int64)]
        self._places: list[tuple[int, NDArray[np.int64]]] = []
        self._digests: set[bytes] = set()
        self.copies = 0
        """Contents that stand in both splits."""
        for number, (_, shard) in enumerate(reader.shards()):
            try:
                self._digests.update(shard.digests[index] for index in np.flatnonzero(shard.held_out).tolist())
                for chunk in shard.chunks("eval", budget_tokens=budget):
                    tokens.append(chunk.tokens_N)
                    lengths.append(chunk.lengths_D)
                    self._places.append((number, chunk.documents_D))
            except Damaged:
                continue  # the pass over all documents says so
        self._lengths = np.concatenate(lengths)
        looked_at, all_tokens = int(self._lengths.sum()), reader.manifest.eval.stored_tokens
        self.partly = "" if all_tokens <= BUDGET_TOKENS else f"{looked_at:,} of {all_tokens:,} eval tokens looked at"
        """What a verdict must say where not all of the eval split was looked at."""
        self._counter = OverlapCounter(np.concatenate(tokens), self._lengths, n)

    def add(self, chunk: Chunk) -> None:
        """Look at some train documents."""
        self._counter.add(chunk.tokens_N, chunk.lengths_D)

    def look_for_copies(self, digests: Sequence[bytes], held_out_D: NDArray[np.bool_]) -> None:
        """Count a shard's train documents whose content is also held out."""
        train = np.flatnonzero(~held_out_D).tolist()
        self.copies += sum(digests[index] in self._digests for index in train) if self._digests else 0

    def by_shard(self) -> dict[int, tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """By number of the shard: rows in its documents table, and their overlap with train in percent."""
        pcts = self._counter.overlap_pcts()
        found: dict[int, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}
        start = 0
        for number, rows in self._places:
            known_rows, known = found.get(number, (np.zeros(0, np.int64), np.zeros(0)))
            part = pcts[start : start + len(rows)]
            found[number] = (np.concatenate([known_rows, rows]), np.concatenate([known, part]))
            start += len(rows)
        return found
