"""The snapshot's and the sources' rows: sums of the pass, held against the manifest (law 2)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tokenmill.quality.contamination import EvalOverlap
from tokenmill.quality.documents import unigram_entropy_nats
from tokenmill.quality.reading import SnapshotReader
from tokenmill.quality.roundtrip import RoundTrip
from tokenmill.quality.statistics import Statistics
from tokenmill.quality.tables import SNAPSHOT, SOURCES
from tokenmill.tokens.manifest import SourceCounts
from tokenmill.tokens.tokenizer import Tokenizer

MIN_SHARE_DOCUMENTS = 20
"""Of fewer documents a source's share of duplicates or refusals means nothing."""
MIN_PADDING_ROWS = 32
"""In fewer rows, the last one's padding decides."""


def add_totals(
    statistics: Statistics, reader: SnapshotReader, tokenizer: Tokenizer, overlap: EvalOverlap, round_trip: RoundTrip
) -> None:
    """Fill `statistics.snapshot` and `.sources`, all but what needs a reference."""
    manifest, notes = reader.manifest, statistics.notes
    lengths = statistics.all_lengths()
    tokens = int(lengths.sum())
    differences = list(_differences(statistics, reader))
    if differences:
        notes["sums"] = "; ".join(differences[:3]) + ("; ..." if len(differences) > 3 else "")
    places = manifest.train.stored_rows * manifest.sequence_length
    statistics.train_padding_pct = 100.0 * (1 - manifest.train.stored_tokens / places) if places else 0.0
    if manifest.train.stored_rows < MIN_PADDING_ROWS:
        notes["padding"] = f"fewer than {MIN_PADDING_ROWS} rows, where the last one's padding decides"
    if tokenizer.use.unknown is None:
        notes["unknown_tokens"] = "the tokenizer has no unknown token: it can say every text"
    if not round_trip.lossless:
        notes["round_trip"] = "the tokenizer does not keep all of a text, so it cannot give it back"
    elif round_trip.failures:
        notes["round_trip"] = f"{len(round_trip.failures)} of {round_trip.checked} sampled documents differ"
    if not manifest.eval_fraction:
        notes["eval_present"] = "tokens.eval_fraction is 0, so nothing is held out"
    if overlap.partly:
        notes["eval_contamination"] = overlap.partly
    quantiles = np.quantile(lengths, [0.25, 0.5, 0.75, 0.99]) if len(lengths) else [None] * 4
    row = dict.fromkeys(SNAPSHOT)
    row |= {
        "documents_in": manifest.documents_in,
        "documents": len(lengths),
        "duplicates": manifest.duplicates,
        "refused": manifest.refused,
        "train_documents": manifest.train.documents,
        "eval_documents": manifest.eval.documents,
        "train_rows": manifest.train.stored_rows,
        "eval_rows": manifest.eval.stored_rows if manifest.eval_fraction else None,
        "train_tokens": statistics.record_tokens["train"],
        "eval_tokens": statistics.record_tokens["eval"],
        "broken_sums": len(differences),
        "round_trip_failures": len(round_trip.failures) if round_trip.checked else None,
        "eval_documents_in_train": overlap.copies if manifest.eval_fraction else None,
        "unknown_token_pct": _pct(statistics.unknown_tokens, tokens) if tokenizer.use.unknown is not None else None,
        "bytes_per_token": statistics.text_bytes / tokens if tokens else None,
        "duplicate_pct": _pct(manifest.duplicates, manifest.documents_in),
        "refused_pct": _pct(manifest.refused, manifest.documents_in),
        "train_padding_pct": statistics.train_padding_pct if manifest.train.stored_rows >= MIN_PADDING_ROWS else None,
        "unigram_entropy_nats": unigram_entropy_nats(statistics.train_counts_V),
        "tokens_per_document_mean": tokens / len(lengths) if len(lengths) else None,
    }
    for name, value in zip(("p25", "p50", "p75", "p99"), quantiles, strict=True):
        row[f"tokens_per_document_{name}"] = float(value) if value is not None else None
    statistics.snapshot = row
    statistics.sources = [_source_row(source, statistics, tokens) for source in manifest.sources]
    for source in manifest.sources:
        if not statistics.source_documents[source.name]:
            refused = sum(source.refused.values())
            notes["sources_present"] = (
                f"{source.documents_in:,} came in, {source.duplicates:,} of them exact copies, {refused:,} refused"
            )


def _source_row(source: SourceCounts, statistics: Statistics, tokens: int) -> dict[str, object]:
    refused = sum(source.refused.values())
    enough = source.documents_in >= MIN_SHARE_DOCUMENTS
    found = statistics.source_tokens[source.name]
    return dict.fromkeys(SOURCES) | {
        "source": source.name,
        "documents": statistics.source_documents[source.name],
        "tokens": found,
        "token_share_pct": _pct(found, tokens) or 0.0,
        "duplicates": source.duplicates,
        "refused": refused,
        "duplicate_pct": _pct(source.duplicates, source.documents_in) if enough else None,
        "refused_pct": _pct(refused, source.documents_in) if enough else None,
    }


def _pct(part: int, whole: int) -> float | None:
    return 100.0 * part / whole if whole else None


def _differences(statistics: Statistics, reader: SnapshotReader) -> Iterator[str]:
    """A sentence for each sum that does not come out."""
    manifest = reader.manifest
    kept, lengths = manifest.documents_kept, statistics.all_lengths()
    accounted = kept + manifest.duplicates + manifest.refused
    checks: list[tuple[str, int, str, int | None]] = [
        ("documents read", manifest.documents_in, "kept, duplicate and refused ones", accounted),
        ("documents kept", kept, "those of the shards' tables", len(lengths)),
        ("documents kept", kept, "the rows of sources.parquet", reader.table_rows("sources")),
        ("duplicates", manifest.duplicates, "the rows of duplicates.parquet", reader.table_rows("duplicates")),
        ("refusals", manifest.refused, "the rows of refused.parquet", reader.table_rows("refused")),
        ("documents kept", kept, "those of train and eval", manifest.train.documents + manifest.eval.documents),
        (
            "tokens of all documents",
            int(lengths.sum()),
            "the tokens in the records and those dropped by a named rule",
            statistics.record_tokens.total() + sum(manifest.tokens_dropped.values()),
        ),
    ]
    for name in ("train", "eval"):
        split = manifest.split(name)
        shards = [shard.split(name) for shard in manifest.shards]
        checks += [
            (f"{name} documents", split.documents, "those of the shards", sum(s.documents for s in shards)),
            (f"{name} rows", split.stored_rows, "those of the shards", sum(s.rows for s in shards)),
            (f"{name} tokens", split.stored_tokens, "those of the shards", sum(s.tokens for s in shards)),
            (f"{name} tokens", split.stored_tokens, "those in the records", statistics.record_tokens[name]),
        ]
    for source in manifest.sources:
        what = f"documents of source '{source.name}'"
        checks.append((f"kept {what}", source.documents_kept, "found", statistics.source_documents[source.name]))
    for left, stated, right, found in checks:
        if stated != found:
            shown = "unreadable" if found is None else f"{found:,}"
            yield f"{left}: {stated:,} in the manifest, {right}: {shown}"
    if statistics.misplaced_documents:
        yield f"sources.parquet does not name {statistics.misplaced_documents:,} documents of the shards"
