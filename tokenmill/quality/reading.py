"""A snapshot read for checking: shard by shard, document by document, from manifest, tables and records.

Nothing here trusts a count: what a file holds is compared with what the manifest says of it, and every difference
becomes a sentence. Where a document's tokens lie in the packed rows is computed by the packing rule from the documents'
lengths, and held against the segments that the records hold.
Legend: D documents, N tokens, P pieces, R rows, S sequence length.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokenmill.tokens.manifest import Manifest, Shard
from tokenmill.tokens.pack import Packing, PackingMode, pack
from tokenmill.tokens.records import RecordLayout

SPLITS = ("train", "eval")
CHUNK_TOKENS = 4_000_000
"""Documents are looked at in pieces of about this size, so that memory does not depend on a shard's."""
SAMPLED_RECORDS = 64
"""Records of a file whose CRC is checked where not all are."""


class Damaged(Exception):  # noqa: N818 - a finding, not a fault
    """A shard cannot be read; the message says why."""


@dataclass
class Damage:
    """What is wrong with a shard's files."""

    checked_records: int = 0
    damaged: int = 0
    words: list[str] = field(default_factory=list)

    def add(self, sentence: str, count: int = 1) -> None:
        self.damaged += count
        self.words.append(sentence)


@dataclass(frozen=True)
class Chunk:
    """Some documents of one split, in order, with their tokens end to end."""

    documents_D: NDArray[np.int64]
    """Their rows in the shard's table."""
    tokens_N: NDArray[np.int32]
    lengths_D: NDArray[np.int64]


class ShardReader:
    """One shard. `table` raises `Damaged` if there is nothing to read."""

    def __init__(self, folder: Path, manifest: Manifest, shard: Shard) -> None:
        self.folder, self.manifest, self.shard = folder, manifest, shard
        self.layout = RecordLayout(manifest.sequence_length, manifest.vocab_size)
        self.damage = Damage()
        self._packings: dict[str, Packing] = {}

    @cached_property
    def table(self) -> pa.Table:
        """documents.parquet: digest, text_bytes, characters, tokens, rows, held_out; a row a document."""
        path = self.folder / "documents.parquet"
        try:
            return pq.ParquetFile(path).read()
        except (OSError, pa.ArrowInvalid):
            raise Damaged(f"{path.parent.name}/documents.parquet is missing or no Parquet file") from None

    @cached_property
    def held_out(self) -> NDArray[np.bool_]:
        """bool[D]: the documents of the eval split."""
        return np.asarray(self.table["held_out"].to_numpy(), np.bool_)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """int64[D]: tokens of each document."""
        return self.table["tokens"].to_numpy().astype(np.int64)

    @cached_property
    def digests(self) -> list[bytes]:
        """Content hash of each document."""
        return cast(list[bytes], self.table["digest"].to_pylist())

    def documents_of(self, split: str) -> NDArray[np.int64]:
        """The rows of `table` that belong to the split."""
        return np.flatnonzero(self.held_out if split == "eval" else ~self.held_out)

    def packing(self, split: str) -> Packing:
        if split not in self._packings:
            lengths = self.lengths[self.documents_of(split)]
            mode = cast(PackingMode, self.manifest.packing)
            self._packings[split] = pack(lengths, self.manifest.sequence_length, mode, fill=split == "train")
        return self._packings[split]

    def records(self, split: str) -> NDArray[np.uint8]:
        """uint8[R, record_bytes], a memory map. Raises `Damaged` if the file is no whole number of records."""
        path = self.folder / f"{split}.tfrecord"
        rows, width = self.shard.split(split).rows, self.layout.record_bytes
        size = path.stat().st_size if path.exists() else -1
        if size != rows * width:
            found = "is missing" if size < 0 else f"has {size:,} bytes"
            raise Damaged(f"{path.parent.name}/{path.name} {found}, {rows * width:,} are expected")
        if not rows:
            return np.zeros((0, width), np.uint8)
        return np.memmap(path, np.uint8, "r", shape=(rows, width))

    def check_files(self, *, deep: bool) -> None:
        """Compare hashes and CRCs with the manifest; what is wrong is kept in `damage`."""
        for split in SPLITS:
            name = f"{self.folder.name}/{split}.tfrecord"
            try:
                records = self.records(split)
            except Damaged as damaged:
                self.damage.add(str(damaged))
                continue
            whole = hashlib.sha256(records.data if len(records) else b"").hexdigest() == self.shard.split(split).sha256
            rows = len(records)
            chosen = np.arange(rows)
            if whole and not deep and rows > SAMPLED_RECORDS:
                chosen = np.unique(np.linspace(0, rows - 1, SAMPLED_RECORDS).astype(np.int64))
            self.damage.checked_records += len(chosen)
            broken = [int(row) for block in _blocks(chosen) for row in block[self.layout.broken_rows(records[block])]]
            if broken:
                first = broken[0]
                self.damage.add(
                    f"{name}: the CRC of record {first} (from byte {first * self.layout.record_bytes:,}) is wrong"
                    + (f", and of {len(broken) - 1:,} more" if len(broken) > 1 else ""),
                    len(broken),
                )
            elif not whole:
                self.damage.add(f"{name} is not the file that was written: its SHA-256 is another one")

    def check_segments(self, split: str) -> int:
        """Non-padding tokens in the records; rows that do not hold the pieces they should are damage."""
        records = self.records(split)
        packing = self.packing(split)
        expected_R = np.bincount(packing.row_P, weights=packing.length_P, minlength=len(records)).astype(np.int64)
        segments = self.layout.view(np.asarray(records), "segment_ids")
        found_R = np.concatenate(
            [np.count_nonzero(segments[block], axis=1) for block in _blocks(np.arange(len(records)))]
            or [np.zeros(0, np.int64)]
        )
        if len(expected_R) != len(found_R) or (expected_R != found_R).any():
            self.damage.add(f"{self.folder.name}/{split}.tfrecord does not hold the documents of documents.parquet")
        return int(found_R.sum())

    def chunks(self, split: str, *, budget_tokens: int | None = None) -> Iterator[Chunk]:
        """The documents of a split with their tokens; with a budget, the first documents up to so many tokens."""
        documents_D = self.documents_of(split)
        lengths_D = self.lengths[documents_D]
        if budget_tokens is not None:
            fits = np.cumsum(lengths_D) <= budget_tokens
            documents_D, lengths_D = documents_D[fits], lengths_D[fits]
        if not len(documents_D):
            return
        packing = self.packing(split)
        order = np.lexsort((packing.start_P, packing.document_P))
        place_P = (packing.row_P * self.manifest.sequence_length + packing.column_P)[order]
        length_P, document_P = packing.length_P[order], packing.document_P[order]
        tokens = np.ascontiguousarray(self.layout.view(np.asarray(self.records(split)), "tokens")).reshape(-1)
        number_D = (np.cumsum(lengths_D) - 1) // CHUNK_TOKENS
        starts = np.flatnonzero(np.diff(number_D, prepend=-1))
        for start, stop in zip(starts, np.append(starts[1:], len(documents_D)), strict=True):
            pieces = slice(*np.searchsorted(document_P, [start, stop]))
            lengths = length_P[pieces]
            shift = place_P[pieces] - (np.cumsum(lengths) - lengths)
            places = np.repeat(shift, lengths) + np.arange(lengths.sum())
            yield Chunk(documents_D[start:stop], tokens[places].astype(np.int32), lengths_D[start:stop])


def _blocks(rows: NDArray[np.int64], size: int = 4096) -> list[NDArray[np.int64]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


class SnapshotReader:
    """The shards of a snapshot, and where their documents come from."""

    def __init__(self, shards_folder: Path, snapshot_folder: Path, manifest: Manifest) -> None:
        self.manifest = manifest
        self._shards_folder, self._snapshot_folder = shards_folder, snapshot_folder

    def shards(self) -> Iterator[tuple[str, ShardReader]]:
        """(source, shard), in canonical order."""
        names = [source.name for source in self.manifest.sources for _ in range(source.shards)]
        for name, shard in zip(names, self.manifest.shards, strict=True):
            yield name, ShardReader(self._shards_folder / shard.key, self.manifest, shard)

    def positions(self) -> Iterator[pa.Table]:
        """For each shard the rows of sources.parquet that belong to its documents, in their order: as many as the
        manifest says, or what is left."""
        stream = _rows_of(self._snapshot_folder / "sources.parquet", ["source", "file", "position", "digest"])
        rest = next(stream)
        for shard in self.manifest.shards:
            while rest.num_rows < shard.documents and (more := next(stream, None)) is not None:
                rest = pa.concat_tables([rest, more])
            yield rest.slice(0, shard.documents)
            rest = rest.slice(shard.documents)

    def table_rows(self, name: str) -> int | None:
        """Rows of sources, refused or duplicates; None if the file cannot be read."""
        try:
            return int(pq.ParquetFile(self._snapshot_folder / f"{name}.parquet").metadata.num_rows)
        except (OSError, pa.ArrowInvalid):
            return None


def _rows_of(path: Path, columns: list[str]) -> Iterator[pa.Table]:
    """Row groups one at a time, names as plain strings; first an empty table, for its columns."""
    file = pq.ParquetFile(path)
    plain = pa.schema([(name, pa.binary(16) if name == "digest" else _plain(file, name)) for name in columns])
    yield plain.empty_table()
    for number in range(file.num_row_groups):
        yield file.read_row_group(number, columns=columns).cast(plain)


def _plain(file: pq.ParquetFile, name: str) -> pa.DataType:
    kind = file.schema_arrow.field(name).type
    return cast(pa.DataType, kind.value_type) if isinstance(kind, pa.DictionaryType) else kind


def where(positions: pa.Table) -> list[str]:
    """'folder/file.jsonl:17' for each row: the file within its source, and the record in it (1 is the first)."""
    places = zip(positions["file"].to_pylist(), positions["position"].to_pylist(), strict=True)
    return [f"{file}:{record}" for file, record in places]
