"""What the corpus is right now: every source's files in canonical order, each with a fingerprint of its raw bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tokenmill.corpus.files import CorpusFile, list_files, raw_fingerprint
from tokenmill.corpus.refusals import Reason, Refusal, excerpt
from tokenmill.corpus.settings import SourceSettings


@dataclass(frozen=True)
class SourceFiles:
    settings: SourceSettings
    files: list[CorpusFile]
    raw: list[str]
    refused: list[tuple[str, Refusal]]
    """(relative path, refusal) of what is no readable file."""

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def take_stock(sources: Sequence[SourceSettings], roots: Mapping[str, str]) -> list[SourceFiles]:
    """The sources in canonical order (by name). `roots`: folder or URL by the source's name. Raises `UserError`."""
    stock = []
    with ThreadPoolExecutor(min(32, 2 * (os.cpu_count() or 1))) as threads:  # hashing and reading release the GIL
        for source in sorted(sources, key=lambda source: source.name):
            listing = list_files(source, roots[source.name])
            found, refused = [], list(listing.refused)
            for file, raw in zip(listing.files, threads.map(_fingerprint, listing.files), strict=True):
                if isinstance(raw, Refusal):
                    refused.append((file.path, raw))
                else:
                    found.append((file, raw))
            refused.sort(key=lambda item: item[0].encode("utf-8", "surrogateescape"))
            stock.append(SourceFiles(source, [file for file, _ in found], [raw for _, raw in found], refused))
    return stock


def _fingerprint(file: CorpusFile) -> str | Refusal:
    try:
        return raw_fingerprint(file)
    except OSError as error:
        return Refusal(0, Reason.UNREADABLE, excerpt(error.strerror or str(error)))
