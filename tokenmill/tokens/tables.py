"""The tables of a snapshot, written as a stream: sources.parquet, refused.parquet, duplicates.parquet.

| table | a row for each | columns |
|---|---|---|
| sources | kept document, in canonical order | source, file, position, digest, identity (hashed id), held_out, shard |
| duplicates | document whose text came before | source, file, position, digest (the kept copy has the same) |
| refused | record that is no document | source, file, position, reason, excerpt |
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.tokens.arrays import arrow_array, arrow_strings

_ROW_GROUP = 1 << 16
_NAME = pa.dictionary(pa.int32(), pa.string())
SCHEMAS: dict[str, pa.Schema] = {
    "sources": pa.schema(
        [
            ("source", _NAME),
            ("file", _NAME),
            ("position", pa.int64()),
            ("digest", pa.binary(16)),
            ("identity", pa.uint64()),
            ("held_out", pa.bool_()),
            ("shard", pa.int32()),
        ]
    ),
    "duplicates": pa.schema([("source", _NAME), ("file", _NAME), ("position", pa.int64()), ("digest", pa.binary(16))]),
    "refused": pa.schema(
        [
            ("source", _NAME),
            ("file", _NAME),
            ("position", pa.int64()),
            ("reason", pa.string()),
            ("excerpt", pa.string()),
        ]
    ),
}


Names = tuple[npt.NDArray[np.int32], list[str]]
"""A column of few distinct strings: each row's number in the list."""
Column = npt.NDArray[Any] | list[Any] | Names | str
"""A string stands for a column that has that value in every row."""


class TableWriter:
    """Appends batches; `close` gives the digest of the rows, which does not depend on how they came in batches."""

    def __init__(self, folder: Path, name: str) -> None:
        self._schema = SCHEMAS[name]
        self._writer = pq.ParquetWriter(folder / f"{name}.parquet", self._schema, compression="zstd")
        self._pending: list[pa.RecordBatch] = []
        self._rows = 0
        self._digests = {column: hashlib.sha256() for column in self._schema.names}

    def add(self, **columns: Column) -> None:
        """One batch."""
        rows = len(columns["position"])
        if not rows:
            return
        arrays = []
        for column in self._schema:
            values = columns[column.name]
            self._digests[column.name].update(_row_bytes(values, rows))
            arrays.append(_array(values, rows, column.type))
        self._pending.append(pa.record_batch(arrays, schema=self._schema))
        self._rows += rows
        if self._rows >= _ROW_GROUP:
            self._flush()

    def close(self) -> str:
        self._flush()
        self._writer.close()
        whole = hashlib.sha256()
        for column, digest in self._digests.items():
            whole.update(f"{column}:{digest.hexdigest()};".encode())
        return whole.hexdigest()

    def _flush(self) -> None:
        if self._pending:
            table = pa.Table.from_batches(self._pending).unify_dictionaries().combine_chunks()
            self._writer.write_table(table)
        self._pending, self._rows = [], 0


def _row_bytes(values: Column, rows: int) -> bytes:
    if isinstance(values, str):
        return (values + "\0").encode() * rows
    if isinstance(values, np.ndarray):
        return np.ascontiguousarray(values).tobytes()
    if isinstance(values, tuple):
        names = [(name + "\0").encode("utf-8", "surrogateescape") for name in values[1]]
        return b"".join(map(names.__getitem__, values[0].tolist()))
    return "".join(f"{value}\0" for value in values).encode()


def _array(values: Column, rows: int, kind: pa.DataType) -> Any:
    if isinstance(values, str):
        values = (np.zeros(rows, np.int32), [values])
    if isinstance(values, tuple):
        names = [name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for name in values[1]]
        return pa.DictionaryArray.from_arrays(arrow_array(values[0]), arrow_strings(names))
    if isinstance(values, list):
        return arrow_strings(values) if kind == pa.string() else arrow_array(np.array(values), kind)
    return arrow_array(values, kind)
