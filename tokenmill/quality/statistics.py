"""One pass over a snapshot: a row for each document, shard and source, one for the whole, and the token counts.

The pass reads what prepare wrote, never the corpus. Documents go to Parquet shard by shard (a row group each), so
memory is that of one piece of a shard, the eval documents' n-grams and eight bytes a document.
Legend: D documents, N tokens, V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokenmill.quality.contamination import EvalOverlap
from tokenmill.quality.documents import document_statistics
from tokenmill.quality.reading import SPLITS, Chunk, Damaged, ShardReader, SnapshotReader, where
from tokenmill.quality.roundtrip import RoundTrip
from tokenmill.quality.settings import ChecksSettings
from tokenmill.quality.tables import schema
from tokenmill.quality.texts import class_change_pcts, scripts
from tokenmill.tokens.tokenizer import Tokenizer

MIN_TOP_TOKENS = 32
"""In a shorter document the share of its most frequent token means nothing."""
PREFIX_TOKENS = 64
"""Decoded from the beginning of a document, and as many from its middle, to see what kind of text it is."""


@dataclass
class Statistics:
    """What the pass found. `snapshot`, `sources` and `shards` are rows of the documented tables."""

    snapshot_id: str
    tokenizer: str
    sequence_length: int
    train_counts_V: NDArray[np.int64]
    eval_counts_V: NDArray[np.int64]
    snapshot: dict[str, Any] = field(default_factory=dict)
    sources: list[dict[str, Any]] = field(default_factory=list)
    shards: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    """By rule: what its sentence should say besides the figures."""
    measured_shards: list[int] = field(default_factory=list)
    """Numbers of the shards in the documents table, one a row group; one that cannot be read is left out."""
    train_padding_pct: float = 0.0
    documents_by_script: Counter[str] = field(default_factory=Counter)
    lengths: list[NDArray[np.int64]] = field(default_factory=list)
    """Tokens of each document, by shard."""
    text_bytes: int = 0
    source_documents: Counter[str] = field(default_factory=Counter)
    source_tokens: Counter[str] = field(default_factory=Counter)
    record_tokens: Counter[str] = field(default_factory=Counter)
    """Non-padding tokens found in the records, by split."""
    unknown_tokens: int = 0
    misplaced_documents: int = 0
    """Documents whose row in sources.parquet is of another document."""
    band_shares: NDArray[np.float64] | None = None
    reference_band_shares: NDArray[np.float64] | None = None

    def all_lengths(self) -> NDArray[np.int64]:
        return np.concatenate([np.zeros(0, np.int64), *self.lengths])

    def scripts_pct(self) -> dict[str, float]:
        """Share of the documents by script, the largest first."""
        total = max(1, self.documents_by_script.total())
        return {name: 100.0 * count / total for name, count in self.documents_by_script.most_common()}

    def length_histogram(self) -> list[int]:
        """Number n counts the documents of 2^n to 2^(n+1) - 1 tokens."""
        lengths = self.all_lengths()
        return [int(count) for count in np.bincount(np.floor(np.log2(np.maximum(lengths, 1))).astype(np.int64))]


def collect_statistics(
    snapshot_id: str,
    reader: SnapshotReader,
    tokenizer: Tokenizer,
    checks: ChecksSettings,
    documents_path: Path,
    progress: Callable[[int, int], None],
) -> tuple[Statistics, EvalOverlap, RoundTrip]:
    """Read everything once; `documents_path` gets the documents table, `train_overlap_pct` still null.

    `progress(done, total)` is called after each shard, and may raise to stop.
    """
    manifest = reader.manifest
    zeros = np.zeros(manifest.vocab_size, np.int64)
    statistics = Statistics(snapshot_id, manifest.tokenizer, manifest.sequence_length, zeros, zeros.copy())
    overlap = EvalOverlap(reader, checks.contamination_ngram)
    round_trip = RoundTrip(tokenizer, len(manifest.shards))
    with pq.ParquetWriter(documents_path, schema("documents"), compression="zstd") as sink:
        shards = zip(reader.shards(), reader.positions(), strict=True)
        for number, ((source, shard), positions) in enumerate(shards):
            shard.check_files(deep=checks.deep)
            try:
                table = _measure_shard(source, shard, positions, tokenizer, statistics, overlap, round_trip)
                sink.write_table(table)
                statistics.measured_shards.append(number)
            except Damaged as damaged:
                if str(damaged) not in shard.damage.words:
                    shard.damage.add(str(damaged))
            _take_shard(shard, statistics)
            progress(number + 1, len(manifest.shards))
    return statistics, overlap, round_trip


def _measure_shard(
    source: str,
    shard: ShardReader,
    positions: pa.Table,
    tokenizer: Tokenizer,
    statistics: Statistics,
    overlap: EvalOverlap,
    round_trip: RoundTrip,
) -> pa.Table:
    """The shard's documents table; adds to the sums of `statistics`."""
    digests = shard.digests
    documents = len(digests)
    columns: dict[str, Any] = {
        name: np.zeros(documents, np.int64)
        for name in ("min_token_id", "max_token_id", "unknown_tokens", "top_token_count", "longest_run_tokens")
    }
    texts = [""] * documents
    sampled = round_trip.choose(digests, shard.lengths)
    for split in SPLITS:
        statistics.record_tokens[split] += shard.check_segments(split)
        for chunk in shard.chunks(split):
            found = document_statistics(chunk.tokens_N, chunk.lengths_D, unknown_id=tokenizer.use.unknown)
            for name, values in found.items():
                columns[name][chunk.documents_D] = values
            counts = statistics.train_counts_V if split == "train" else statistics.eval_counts_V
            inside = chunk.tokens_N[(chunk.tokens_N >= 0) & (chunk.tokens_N < len(counts))]
            counts += np.bincount(inside, minlength=len(counts))
            for index, text in zip(chunk.documents_D.tolist(), _beginnings(chunk, tokenizer), strict=True):
                texts[index] = text
            ends = np.cumsum(chunk.lengths_D)
            for place, index in enumerate(chunk.documents_D.tolist()):
                if index in sampled:
                    tokens = chunk.tokens_N[ends[place] - chunk.lengths_D[place] : ends[place]]
                    round_trip.check(tokens, digests[index])
            if split == "train":
                overlap.add(chunk)
    overlap.look_for_copies(digests, shard.held_out)
    named = positions.num_rows == documents and positions["digest"].to_pylist() == digests
    statistics.misplaced_documents += 0 if named else documents
    return _documents_table(source, shard, positions if named else None, columns, texts, statistics)


def _documents_table(
    source: str,
    shard: ShardReader,
    positions: pa.Table | None,
    columns: dict[str, Any],
    texts: list[str],
    statistics: Statistics,
) -> pa.Table:
    lengths_D, documents = shard.lengths, shard.table.num_rows
    text_bytes = shard.table["text_bytes"].to_numpy().astype(np.int64)
    names = scripts(texts)
    statistics.lengths.append(lengths_D)
    statistics.text_bytes += int(text_bytes.sum())
    statistics.unknown_tokens += int(columns["unknown_tokens"].sum())
    statistics.documents_by_script.update(names)
    statistics.source_documents[source] += documents
    statistics.source_tokens[source] += int(lengths_D.sum())
    vocab_size = shard.manifest.vocab_size
    outside = (columns["min_token_id"] < 0) | (columns["max_token_id"] >= vocab_size)
    top_pct = np.where(lengths_D >= MIN_TOP_TOKENS, 100.0 * columns.pop("top_token_count") / lengths_D, np.nan)
    values = {
        "document": [digest.hex() for digest in shard.digests],
        "split": np.where(shard.held_out, "eval", "train"),
        "source": [source] * documents,
        "position": where(positions) if positions is not None else ["unknown"] * documents,
        "bytes": text_bytes,
        "characters": shard.table["characters"].to_numpy().astype(np.int64),
        "tokens": lengths_D,
        "rows": shard.table["rows"].to_numpy().astype(np.int64),
        "bytes_per_token": text_bytes / lengths_D,
        "ids_outside_vocabulary": outside.astype(np.int64),
        "top_token_pct": top_pct,
        "script": names,
        "class_change_pct": class_change_pcts(texts),
        "train_overlap_pct": np.full(documents, np.nan),
        **columns,
    }
    kinds = schema("documents")
    return pa.table({field.name: pa.array(values[field.name], field.type, from_pandas=True) for field in kinds}, kinds)


def _beginnings(chunk: Chunk, tokenizer: Tokenizer) -> list[str]:
    """The first tokens of each document and some from its middle, as text."""
    ids = []
    starts = np.cumsum(chunk.lengths_D) - chunk.lengths_D
    for start, length in zip(starts.tolist(), chunk.lengths_D.tolist(), strict=True):
        stop = start + length - 1  # without the end-of-document token
        chosen = chunk.tokens_N[start : min(stop, start + PREFIX_TOKENS)]
        if length > 2 * PREFIX_TOKENS:
            middle = start + length // 2
            chosen = np.concatenate([chosen, chunk.tokens_N[middle : min(stop, middle + PREFIX_TOKENS)]])
        ids.append([token for token in chosen.tolist() if token >= 0])
    return list(tokenizer.truth.decode_batch(ids, skip_special_tokens=False))


def _take_shard(shard: ShardReader, statistics: Statistics) -> None:
    counts, damage = shard.shard, shard.damage
    statistics.shards.append(
        {
            "shard": counts.key,
            "documents": counts.documents,
            "train_rows": counts.train.rows,
            "eval_rows": counts.eval.rows,
            "train_tokens": counts.train.tokens,
            "eval_tokens": counts.eval.tokens,
            "bytes": counts.train.file_bytes + counts.eval.file_bytes,
            "checked_records": damage.checked_records,
            "damaged": damage.damaged,
        }
    )
    if damage.words:
        before = statistics.notes.get("records")
        words = "; ".join(damage.words)
        statistics.notes["records"] = f"{before}; {words}" if before else words
