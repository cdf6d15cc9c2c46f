"""Cutting the stream of kept documents into groups at content-defined boundaries.

A document ends its group when a hash of its content falls below a threshold that grows with its size, so that groups
hold about `group_documents` documents or `GROUP_BYTES` of text, whichever comes first. The decision looks at the
document alone: after an insertion, an edit or a removal the cuts fall where they fell before, and all later groups are
the ones that are already built. A group never crosses two sources.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenmill.corpus.spool import INDEX_DTYPE

GROUP_BYTES = 4 << 20
"""Mean text of a group whose documents are large: a megabyte of text is a moment of work, and a small corpus of large
documents still has groups for every core."""
_LEAST = 4
"""A group holds at least 1/4 of the mean, so that few rows are left part empty ..."""
_MOST = 4
"""... and at most 4 times the mean, so that memory is bounded."""


@dataclass(frozen=True)
class GroupPart:
    """Documents of a group that lie in one unit. Legend: D documents."""

    unit: int
    entries_D: npt.NDArray[np.void]
    offsets_D: npt.NDArray[np.int64]
    """In the unit's spool."""
    files_D: npt.NDArray[np.int32]
    """Number of the document's file in the unit."""


class GroupCutter:
    def __init__(self, group_documents: int) -> None:
        self._mean = group_documents
        self._parts: list[GroupPart] = []
        self._documents = 0
        self._bytes = 0

    def add(
        self,
        unit: int,
        entries: npt.NDArray[np.void],
        offsets: npt.NDArray[np.int64],
        files: npt.NDArray[np.int32],
    ) -> Iterator[list[GroupPart]]:
        """Take kept documents in canonical order; yields each group that they complete."""
        assert entries.dtype == INDEX_DTYPE
        if not len(entries):
            return
        sizes = entries["bytes"].astype(np.int64)
        ends = np.flatnonzero(_is_boundary(entries["digest"], sizes, self._mean))
        before = np.cumsum(sizes) - sizes
        start = 0
        while start < len(entries):
            stop = self._next_cut(start, ends, before, sizes)
            at = len(entries) if stop is None else stop
            if at > start:
                self._parts.append(GroupPart(unit, entries[start:at], offsets[start:at], files[start:at]))
                self._documents += at - start
                self._bytes += int(sizes[start:at].sum())
            start = at
            if stop is not None:
                yield self._take()

    def first_unit(self) -> int | None:
        """The earliest unit that the unfinished group has documents of."""
        return self._parts[0].unit if self._parts else None

    def finish(self) -> Iterator[list[GroupPart]]:
        """The last group of a source."""
        if self._parts:
            yield self._take()

    def _take(self) -> list[GroupPart]:
        parts, self._parts, self._documents, self._bytes = self._parts, [], 0, 0
        return parts

    def _next_cut(
        self, start: int, ends: npt.NDArray[np.intp], before: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> int | None:
        """Number of the first document of the next group, or None if the group goes on after these documents."""
        base = self._bytes - int(before[start])
        limit = start + _MOST * self._mean - self._documents
        by_bytes = int(np.searchsorted(before + sizes, _MOST * GROUP_BYTES - base, side="right"))
        if by_bytes == start and not self._documents:
            by_bytes += 1  # one document larger than a whole group is a group of its own
        forced = min(limit, by_bytes)
        for end in ends[np.searchsorted(ends, start) :].tolist():
            if end >= forced:
                break
            documents = self._documents + end + 1 - start
            text = base + int(before[end] + sizes[end])
            if _LEAST * documents >= self._mean or _LEAST * text >= GROUP_BYTES:
                return int(end) + 1
        return forced if forced < len(sizes) else None


def _is_boundary(digests: npt.NDArray[np.void], sizes: npt.NDArray[np.int64], mean: int) -> npt.NDArray[np.bool_]:
    """With chance 1/mean + size/GROUP_BYTES, by the second half of the digest (the first decides the split)."""
    chance = np.minimum(1 / mean + sizes / GROUP_BYTES, 1.0)
    word = np.ascontiguousarray(digests).view("<u8").reshape(-1, 2)[:, 1]
    return (word >> np.uint64(11)).astype(np.float64) < chance * 2.0**53


def held_out(entries: npt.NDArray[np.void], eval_fraction: float) -> npt.NDArray[np.bool_]:
    """Which documents are for evaluation: by their id where they have one, else by their content.

    A larger fraction only raises the threshold: what was held out stays so.
    """
    content = np.ascontiguousarray(entries["digest"]).view("<u8").reshape(-1, 2)[:, 0]
    word = np.where(entries["identity"] != 0, entries["identity"], content)
    return (word >> np.uint64(11)).astype(np.float64) < eval_fraction * 2.0**53
