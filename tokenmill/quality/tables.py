"""The tables that rules look at, and their documented columns: what a suite of your own can name.

| table | a row is | file in the validation's folder |
|---|---|---|
| `documents` | a document; read one shard (row group) at a time | statistics/documents.parquet |
| `shards` | a shard | statistics/shards.parquet |
| `sources` | a source | statistics/sources.parquet |
| `snapshot` | the snapshot: one row | statistics/snapshot.parquet |

A column that could not be measured is null, and a rule over it is `not_measured`.
"""

from __future__ import annotations

from typing import Literal, get_args

import pyarrow as pa

TableName = Literal["documents", "shards", "sources", "snapshot"]
TABLES: tuple[TableName, ...] = get_args(TableName)

Columns = dict[str, tuple[pa.DataType, str]]

DOCUMENTS: Columns = {
    "document": (pa.string(), "content hash, hexadecimal"),
    "split": (pa.string(), "train or eval"),
    "source": (pa.string(), "name of its source in pipelines.yaml"),
    "position": (pa.string(), "file in the source, and record in the file"),
    "bytes": (pa.int64(), "of its text in UTF-8"),
    "characters": (pa.int64(), "of its text"),
    "tokens": (pa.int64(), "with the end-of-document token"),
    "rows": (pa.int64(), "packed rows that hold a part of it"),
    "bytes_per_token": (pa.float64(), "bytes / tokens"),
    "unknown_tokens": (pa.int64(), "tokens that the tokenizer had no id for; 0 for byte-level ones"),
    "min_token_id": (pa.int64(), "smallest id"),
    "max_token_id": (pa.int64(), "largest id"),
    "ids_outside_vocabulary": (pa.int64(), "1 where an id is negative or not below the vocabulary's size, else 0"),
    "top_token_pct": (pa.float64(), "share of its most frequent token; null below 32 tokens"),
    "longest_run_tokens": (pa.int64(), "longest run of one token"),
    "script": (pa.string(), "of most letters in its first tokens: LATIN, CJK, CYRILLIC, ..., NONE"),
    "class_change_pct": (
        pa.float64(),
        "of adjacent ASCII letters and digits in its first tokens, the share that differs in class (upper, lower, "
        "digit): 65 for base64, 47 for hexadecimal, below 15 for prose and code; null for short texts",
    ),
    "train_overlap_pct": (pa.float64(), "eval documents: share of their long n-grams that stand in train; else null"),
}

SHARDS: Columns = {
    "shard": (pa.string(), "key"),
    "documents": (pa.int64(), ""),
    "train_rows": (pa.int64(), "packed rows"),
    "eval_rows": (pa.int64(), "packed rows"),
    "train_tokens": (pa.int64(), "without padding"),
    "eval_tokens": (pa.int64(), "without padding"),
    "bytes": (pa.int64(), "of its record files"),
    "checked_records": (pa.int64(), "records whose length, CRCs and fields were checked"),
    "damaged": (pa.int64(), "damaged records, missing files, and files whose hash is not the manifest's"),
}

SOURCES: Columns = {
    "source": (pa.string(), "name in pipelines.yaml"),
    "documents": (pa.int64(), "kept"),
    "tokens": (pa.int64(), "kept, train and eval"),
    "token_share_pct": (pa.float64(), "of all kept tokens"),
    "duplicates": (pa.int64(), "documents that are exact copies of an earlier one"),
    "refused": (pa.int64(), "documents that prepare refused"),
    "duplicate_pct": (pa.float64(), "of the documents that came in; null below 20 of them"),
    "refused_pct": (pa.float64(), "of the documents that came in; null below 20 of them"),
    "reference_token_share_pct": (pa.float64(), "in the reference; 0 for a new source; null without a reference"),
    "token_share_change_points": (pa.float64(), "absolute change against the reference; null without one"),
    "size_pct_of_reference": (pa.float64(), "tokens against the reference's; null without one and for new sources"),
}

SNAPSHOT: Columns = {
    "documents_in": (pa.int64(), "read from the corpus"),
    "documents": (pa.int64(), "kept"),
    "duplicates": (pa.int64(), ""),
    "refused": (pa.int64(), ""),
    "train_documents": (pa.int64(), ""),
    "eval_documents": (pa.int64(), ""),
    "train_rows": (pa.int64(), ""),
    "eval_rows": (pa.int64(), "null where pipelines.yaml holds nothing out"),
    "train_tokens": (pa.int64(), ""),
    "eval_tokens": (pa.int64(), ""),
    "broken_sums": (pa.int64(), "sums that the manifest and the tables do not agree on (law 2)"),
    "round_trip_failures": (
        pa.int64(),
        "of a sample of documents, those whose tokens do not decode to the text they came from; null where the "
        "tokenizer does not keep all of a text",
    ),
    "eval_documents_in_train": (pa.int64(), "contents that stand in both splits"),
    "contaminated_eval_documents": (pa.int64(), "eval documents most of whose long n-grams stand in train"),
    "unknown_token_pct": (pa.float64(), "of all tokens"),
    "bytes_per_token": (pa.float64(), "of all documents"),
    "duplicate_pct": (pa.float64(), "of the documents that came in"),
    "refused_pct": (pa.float64(), "of the documents that came in"),
    "train_padding_pct": (pa.float64(), "of the places in train rows; null below 32 rows"),
    "unigram_entropy_nats": (pa.float64(), "of the train tokens"),
    "tokens_per_document_mean": (pa.float64(), ""),
    "tokens_per_document_p25": (pa.float64(), ""),
    "tokens_per_document_p50": (pa.float64(), ""),
    "tokens_per_document_p75": (pa.float64(), ""),
    "tokens_per_document_p99": (pa.float64(), ""),
    "tokenizer_changes": (pa.int64(), "1 where the tokenizer is not the reference's, else 0; null without reference"),
    "token_divergence": (pa.float64(), "Jensen-Shannon, base 2, against the reference"),
    "band_psi": (pa.float64(), "population stability index over frequency bands, against the reference"),
    "length_ratio": (pa.float64(), "largest factor that a quartile of tokens per document moved by"),
    "bytes_per_token_change_pct": (pa.float64(), "absolute, against the reference"),
    "script_change_points": (pa.float64(), "largest absolute change of a script's share of the documents"),
}

COLUMNS: dict[TableName, Columns] = {
    "documents": DOCUMENTS,
    "shards": SHARDS,
    "sources": SOURCES,
    "snapshot": SNAPSHOT,
}


def schema(table: TableName) -> pa.Schema:
    """Column descriptions travel in the Parquet file as field metadata."""
    return pa.schema(
        [pa.field(name, kind, metadata={"description": text}) for name, (kind, text) in COLUMNS[table].items()]
    )
