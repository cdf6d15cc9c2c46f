"""Readers of CSV, Parquet and Arrow files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any

from tokenmill.corpus.files import open_bytes
from tokenmill.corpus.lines import add_with_id, to_utf8
from tokenmill.corpus.options import ReadOptions
from tokenmill.corpus.refusals import Reason, WholeFileRefused
from tokenmill.corpus.spool import Spool

_BATCH_ROWS = 1024


def read_csv(content: Iterable[bytes], delimiter: str, options: ReadOptions, sink: Spool) -> None:
    """CSV with a header row, quoted as RFC 4180 says. Values are strings; `where` compares them as written."""
    csv.field_size_limit(max(options.max_document_bytes, 1 << 17) + 1)
    rows = csv.reader(_text_lines(to_utf8(content, options.encoding)), delimiter=delimiter, strict=True)
    header = next(rows, None)
    if header is None:
        raise WholeFileRefused(Reason.EMPTY, "no header row")
    if options.text_column not in header:
        raise WholeFileRefused(Reason.MISSING_TEXT, f"no column '{options.text_column}' in {', '.join(header)}")
    where = {name: _as_csv(value) for name, value in options.where.items()}
    position = 0
    while True:
        position += 1
        try:
            row = next(rows, None)
        except csv.Error as error:
            # After a broken quote the reader's place is unknown: the rest is refused with this row.
            reason = Reason.TOO_LARGE if "field larger" in str(error) else Reason.BROKEN_CSV
            raise WholeFileRefused(reason, f"row {position}: {error}") from None
        if row is None:
            return
        if not row:
            continue
        if len(row) != len(header):
            sink.refuse(position, Reason.BROKEN_CSV, f"{len(row)} fields, the header has {len(header)}")
            continue
        record = dict(zip(header, row, strict=True))
        if any(record.get(name) != value for name, value in where.items()):
            sink.filtered += 1
        elif options.id_column is None:
            sink.add(position, record[options.text_column])
        else:
            add_with_id(sink, position, record[options.text_column], record.get(options.id_column))


def _as_csv(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text_lines(content: Iterable[bytes]) -> Iterator[str]:
    """Lines with their ends. Bytes that are no UTF-8 become lone surrogates, which the spool refuses by document."""
    return io.TextIOWrapper(
        io.BufferedReader(_Chunks(content), 1 << 16), encoding="utf-8", errors="surrogateescape", newline=""
    )


class _Chunks(io.RawIOBase):
    """A stream of chunks as a raw file."""

    def __init__(self, content: Iterable[bytes]) -> None:
        self._content = iter(content)
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            chunk = next(self._content, None)
            if chunk is None:
                return 0
            self._left = memoryview(chunk)
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


def read_columnar(location: str, kind: str, options: ReadOptions, sink: Spool) -> None:
    """Parquet, or Arrow as a file or a stream (Hugging Face `datasets` writes the latter), batch by batch."""
    import pyarrow as pa

    wanted = [options.text_column, *([options.id_column] if options.id_column else []), *options.where]
    position = 0
    try:
        with open_bytes(location) as handle:
            for batch in _batches(handle, kind, wanted):
                columns = {name: batch.column(name).to_pylist() for name in wanted if name in batch.schema.names}
                if options.text_column not in columns:
                    names = ", ".join(batch.schema.names)
                    raise WholeFileRefused(Reason.MISSING_TEXT, f"no column '{options.text_column}' in {names}")
                for row in range(batch.num_rows):
                    position += 1
                    if any(
                        columns[name][row] != value if name in columns else True
                        for name, value in options.where.items()
                    ):
                        sink.filtered += 1
                        continue
                    text = columns[options.text_column][row]
                    if options.id_column is None:
                        sink.add(position, text)
                    else:
                        add_with_id(sink, position, text, columns.get(options.id_column, [None] * (row + 1))[row])
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise WholeFileRefused(Reason.CORRUPT_FILE, str(error)) from None


def _batches(handle: Any, kind: str, wanted: list[str]) -> Iterator[Any]:
    import pyarrow as pa

    if kind == "parquet":
        import pyarrow.parquet as pq

        table = pq.ParquetFile(handle)
        names = [name for name in dict.fromkeys(wanted) if name in table.schema_arrow.names]
        if wanted[0] not in names:
            raise WholeFileRefused(
                Reason.MISSING_TEXT, f"no column '{wanted[0]}' in {', '.join(table.schema_arrow.names)}"
            )
        yield from table.iter_batches(batch_size=_BATCH_ROWS, columns=names, use_threads=False)
        return
    magic = handle.read(6)
    handle.seek(0)
    if magic == b"ARROW1":
        reader = pa.ipc.open_file(handle)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)
    else:
        yield from pa.ipc.open_stream(handle)
