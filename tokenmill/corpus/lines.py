"""Readers of text and JSON Lines. Both are cuts of a stream at a separator, so that files larger than memory stream."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import orjson

from tokenmill.corpus.options import ReadOptions
from tokenmill.corpus.refusals import Reason, WholeFileRefused
from tokenmill.corpus.spool import Spool, identity_hash

_UTF8_NAMES = {"utf-8", "utf8", "utf-8-sig"}
_BATCH_LINES = 256
TOO_LARGE = object()
"""Stands for a record that grew over the limit and was not kept in memory."""


def read_text(content: Iterable[bytes], options: ReadOptions, sink: Spool) -> None:
    """A document a file, or a document between two separators."""
    separator = options.separator.encode() if options.separator else None
    position = 0
    for piece in _pieces(to_utf8(content, options.encoding), separator, options.max_document_bytes):
        position += 1
        if piece is TOO_LARGE:
            sink.refuse(position, Reason.TOO_LARGE, f"over {options.max_document_bytes} bytes")
            continue
        assert isinstance(piece, bytes)
        try:
            sink.add(position, piece.decode())
        except UnicodeDecodeError as error:
            sink.refuse(position, Reason.INVALID_ENCODING, piece[max(0, error.start - 20) :])


def read_json_lines(content: Iterable[bytes], options: ReadOptions, sink: Spool) -> None:
    """A record a line; blank lines are passed over but counted, so that a position is a line number."""
    # A JSON escape takes at most six bytes for one of text, and other columns need room too.
    limit = 6 * options.max_document_bytes + (1 << 20)
    pieces = _pieces(to_utf8(content, options.encoding), b"\n", limit)
    plain = options.id_column is None and not options.where
    first = 1
    while batch := list(islice(pieces, _BATCH_LINES)):
        texts = _all_texts(batch, options.text_column) if plain else None
        if texts is None or not sink.add_all(first, texts):
            for position, line in enumerate(batch, first):
                if line is TOO_LARGE:
                    sink.refuse(position, Reason.TOO_LARGE, f"a line of over {limit} bytes")
                else:
                    assert isinstance(line, bytes)
                    _read_line(position, line, options, sink)
        first += len(batch)


def _all_texts(lines: list[Any], text_column: str) -> list[str] | None:
    """The texts of lines that are all as they should be, else None: then each is looked at by itself."""
    loads = orjson.loads
    try:
        texts = [loads(line)[text_column] for line in lines]
    except (orjson.JSONDecodeError, KeyError, TypeError, IndexError):
        return None
    return texts if set(map(type, texts)) == {str} else None


def _read_line(position: int, line: bytes, options: ReadOptions, sink: Spool) -> None:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        _refuse_line(position, line, sink)
        return
    if type(record) is not dict:
        sink.refuse(position, Reason.MISSING_TEXT, line)
    elif any(record.get(name) != value for name, value in options.where.items()):
        sink.filtered += 1
    elif options.text_column not in record:
        sink.refuse(position, Reason.MISSING_TEXT, line)
    elif options.id_column is None:
        sink.add(position, record[options.text_column])
    else:
        add_with_id(sink, position, record[options.text_column], record.get(options.id_column))


def add_with_id(sink: Spool, position: int, text: object, identity: object) -> None:
    if isinstance(identity, bool) or not isinstance(identity, str | int) or identity == "":
        sink.refuse(position, Reason.MISSING_ID, f"id {identity!r}")
    else:
        sink.add(position, text, identity_hash(str(identity)))


def _refuse_line(position: int, line: bytes, sink: Spool) -> None:
    if not line.strip():
        return
    try:
        line.decode()
    except UnicodeDecodeError as error:
        sink.refuse(position, Reason.INVALID_ENCODING, line[max(0, error.start - 20) :])
    else:
        sink.refuse(position, Reason.BROKEN_JSON, line)


def to_utf8(content: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """The stream as UTF-8 without a byte order mark. UTF-8 itself passes unchecked: its records are checked singly."""
    chunks = iter(content)
    if encoding.lower().replace("_", "-") in _UTF8_NAMES:
        head = b""
        while len(head) < len(codecs.BOM_UTF8) and (chunk := next(chunks, None)) is not None:
            head += chunk
        if head := head.removeprefix(codecs.BOM_UTF8):
            yield head
        yield from chunks
        return
    decoder = codecs.getincrementaldecoder(encoding)("strict")
    try:
        for chunk in chunks:
            yield decoder.decode(chunk).encode()
        yield decoder.decode(b"", final=True).encode()
    except UnicodeError as error:
        raise WholeFileRefused(Reason.INVALID_ENCODING, f"not {encoding}: {error}") from None


def _pieces(content: Iterable[bytes], separator: bytes | None, limit: int) -> Iterator[object]:
    """The parts of the stream between separators, as bytes, or `TOO_LARGE` for each longer than `limit` bytes.

    A separator at the very end starts no further part.
    """
    held: list[bytes] = []
    held_bytes = 0
    overflow = False
    for chunk in content:
        if separator is None:
            parts = [chunk]
        elif len(separator) == 1:
            parts = chunk.split(separator)
        else:  # a long separator may straddle two chunks
            parts = (b"".join(held) + chunk).split(separator)
            held, held_bytes = [], 0
        for part in parts[:-1]:
            if overflow or held_bytes + len(part) > limit:
                yield TOO_LARGE
            else:
                yield b"".join([*held, part]) if held else part
            held, held_bytes, overflow = [], 0, False
        held.append(parts[-1])
        held_bytes += len(parts[-1])
        if held_bytes > limit:
            tail = b"" if separator is None or len(separator) == 1 else parts[-1][-len(separator) + 1 :]
            held, held_bytes, overflow = [tail], len(tail), True
    if overflow:
        yield TOO_LARGE
    elif held_bytes or (separator is None):
        yield b"".join(held)
