"""Where a reader puts documents: their text into a spool, one index entry each.

A spool holds the documents' UTF-8 one after the other, each followed by a NUL (documents hold none). The index is an
array of `INDEX_DTYPE`; entry *i* describes the *i*-th document of the spool. Together they are all that the later steps
need, so that a file is decompressed and parsed once, and memory does not grow with it. One spool takes
several files in turn.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from tokenmill.corpus.refusals import Reason, Refusal, excerpt

INDEX_DTYPE = np.dtype(
    [("digest", "V16"), ("identity", "<u8"), ("position", "<u8"), ("bytes", "<u4"), ("characters", "<u4")]
)
"""digest: BLAKE2b-128 of the text; identity: hash of the id column's value, 0 where none is named."""
_FLUSH_BYTES = 4 << 20


def content_digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()


def identity_hash(identity: str) -> int:
    """A document id as 64 bits; never 0, which stands for none."""
    return (
        int.from_bytes(hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
        or 1
    )


@dataclass(frozen=True)
class FileOutcome:
    """What a file held."""

    documents: int
    refused: list[Refusal]
    filtered: int
    """Records left out by `where`."""


class Spool:
    """Checks each record's text, writes what is a document and remembers what is not.

    Use: `begin()`, then `add` and `refuse` each record, then `end()`; again for the next file; `close()` at last.
    """

    def __init__(self, path: Path, *, max_document_bytes: int) -> None:
        self.refused: list[Refusal] = []
        self.filtered = 0
        self._sink: BinaryIO = path.open("wb")
        self._max_document_bytes = max_document_bytes
        self._texts: list[bytes] = []
        self._digests: list[bytes] = []
        self._numbers: list[tuple[int, int, int]] = []  # identity, position, characters
        self._pending_bytes = 0
        self._index: list[npt.NDArray[np.void]] = []
        self._file_start = (0, 0)  # bytes of the sink, blocks of the index

    def begin(self) -> None:
        self.refused, self.filtered = [], 0
        self._file_start = (self._sink.tell(), len(self._index))

    def end(self) -> FileOutcome:
        self._flush()
        documents = sum(map(len, self._index[self._file_start[1] :]))
        return FileOutcome(documents, self.refused, self.filtered)

    def abandon(self, refusal: Refusal) -> FileOutcome:
        """Nothing of the current file is used after all."""
        self._clear()
        self._sink.seek(self._file_start[0])
        self._sink.truncate()
        del self._index[self._file_start[1] :]
        return FileOutcome(0, [refusal], 0)

    def close(self) -> npt.NDArray[np.void]:
        """The index of all documents of the spool."""
        self._sink.close()
        return np.concatenate(self._index) if self._index else np.empty(0, INDEX_DTYPE)

    def add(self, position: int, text: object, identity: int = 0) -> None:
        """Take the record at `position`: as a document, or as a refusal with its reason."""
        if not isinstance(text, str):
            reason = Reason.NULL_TEXT if text is None else Reason.TEXT_NOT_A_STRING
            self.refuse(position, reason, repr(text))
            return
        if not text or text.isspace():
            self.refuse(position, Reason.EMPTY, "")
            return
        try:
            raw = text.encode()
        except UnicodeEncodeError:
            self.refuse(position, Reason.INVALID_ENCODING, text)
            return
        if len(raw) > self._max_document_bytes:
            self.refuse(position, Reason.TOO_LARGE, text)
        elif b"\0" in raw:
            self.refuse(position, Reason.NUL_BYTE, text)
        else:
            self._texts.append(raw)
            self._digests.append(hashlib.blake2b(raw, digest_size=16).digest())
            self._numbers.append((identity, position, len(text)))
            self._pending_bytes += len(raw)
            if self._pending_bytes > _FLUSH_BYTES:
                self._flush()

    def add_all(self, first: int, texts: list[str]) -> bool:
        """Take the records at `first`, `first + 1`, ... if all of them are documents; else take none, and say so.

        What most corpora are made of, at half of the time that `add` takes.
        """
        try:
            raw = [text.encode() for text in texts]
        except UnicodeEncodeError:
            return False
        joined = b"\0".join(raw)
        largest = max(map(len, raw), default=0)
        if joined.count(b"\0") >= max(len(raw), 1) or largest > self._max_document_bytes:
            return False
        if any([not text or text.isspace() for text in texts]):  # noqa: C419 - a list is faster than a generator here
            return False
        digest = hashlib.blake2b
        self._texts += raw
        self._digests += [digest(text, digest_size=16).digest() for text in raw]
        self._numbers += [(0, position, len(text)) for position, text in enumerate(texts, first)]
        self._pending_bytes += len(joined)
        if self._pending_bytes > _FLUSH_BYTES:
            self._flush()
        return True

    def refuse(self, position: int, reason: Reason, detail: str | bytes) -> None:
        self.refused.append(Refusal(position, reason, excerpt(detail)))

    def _flush(self) -> None:
        if self._texts:
            self._sink.write(b"\0".join(self._texts) + b"\0")
            entries = np.empty(len(self._texts), INDEX_DTYPE)
            entries["digest"] = np.frombuffer(b"".join(self._digests), "V16")
            entries["bytes"] = np.fromiter(map(len, self._texts), np.uint32, len(entries))
            numbers = np.array(self._numbers, np.uint64)
            for column, name in enumerate(("identity", "position", "characters")):
                entries[name] = numbers[:, column]
            self._index.append(entries)
        self._clear()

    def _clear(self) -> None:
        self._texts, self._digests, self._numbers, self._pending_bytes = [], [], [], 0
