"""Streams of decompressed chunks. A stream that ends before its archive does is an error here, for every codec."""

from __future__ import annotations

import bz2
import hashlib
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Protocol

from tokenmill.corpus.refusals import Reason, WholeFileRefused

READ_BYTES = 1 << 18


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def _gzip() -> _Decompressor:
    return zlib.decompressobj(wbits=31)


def _zstandard() -> _Decompressor:
    import zstandard

    return zstandard.ZstdDecompressor().decompressobj()


CODECS: dict[str, Callable[[], _Decompressor]] = {
    ".gz": _gzip,
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lzma.LZMADecompressor,
    ".zst": _zstandard,
}


def split_suffix(path: str) -> tuple[str, str | None]:
    """(path without the suffix of its codec, the codec's suffix or None).

    >>> split_suffix("a/b.jsonl.gz"), split_suffix("a/b.txt")
    (('a/b.jsonl', '.gz'), ('a/b.txt', None))
    """
    for suffix in CODECS:
        if path.lower().endswith(suffix):
            return path[: -len(suffix)], suffix
    return path, None


def chunks(handle: IO[bytes], codec: str | None, raw_digest: hashlib._Hash) -> Iterator[bytes]:
    """The content of `handle` in order, decompressed; feeds every raw byte to `raw_digest`.

    Raises `WholeFileRefused` where the archive is corrupt or cut short.
    """
    raw = _raw_chunks(handle, raw_digest)
    if codec is None:
        yield from raw
        return
    make = CODECS[codec]
    current: _Decompressor | None = None
    try:
        for data in raw:
            while data:
                current = current or make()
                if out := current.decompress(data):
                    yield out
                data = b""
                if current.eof:
                    # Zero bytes after an archive are padding (tape blocks); anything else starts the next member.
                    data, current = current.unused_data.lstrip(b"\0"), None
    except WholeFileRefused:
        raise
    except Exception as error:  # each codec has its own kind of error: zlib.error, LZMAError, OSError, ZstdError
        raise WholeFileRefused(Reason.CORRUPT_ARCHIVE, f"{type(error).__name__}: {error}") from None
    if current is not None:
        raise WholeFileRefused(Reason.CORRUPT_ARCHIVE, "the archive is cut short")


def _raw_chunks(handle: IO[bytes], raw_digest: hashlib._Hash) -> Iterator[bytes]:
    while data := handle.read(READ_BYTES):
        raw_digest.update(data)
        yield data
