"""What packing saves: rows against one document a row, counted exactly from the shards' tables of documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb


def one_document_a_row(tables: Sequence[Path], sequence_length: int) -> int | None:
    """Train rows if every document began its own row, a long one going on in further rows.

    `tables` are documents.parquet files with `tokens` and `held_out`; None if one of them is gone.
    """
    if not tables or not all(path.is_file() for path in tables):
        return None
    query = "SELECT CAST(sum((tokens + ? - 1) // ?) AS BIGINT) FROM read_parquet(?) WHERE NOT held_out"
    with duckdb.connect(config={"threads": 1}) as database:
        found = database.execute(query, [sequence_length, sequence_length, [str(path) for path in tables]]).fetchone()
    return found[0] if found else None
