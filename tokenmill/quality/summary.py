"""summary.json: the figures of a validation that its page shows and a later night compares itself with."""

from __future__ import annotations

from typing import Any

from tokenmill.quality.drift import LENGTH_QUANTILES, band_shares
from tokenmill.quality.statistics import Statistics


def summarise(statistics: Statistics) -> dict[str, Any]:
    row = statistics.snapshot
    bands = statistics.band_shares
    if bands is None and statistics.train_counts_V.sum():
        bands = band_shares(statistics.train_counts_V, statistics.train_counts_V)
    reference_bands = statistics.reference_band_shares
    return {
        "snapshot": statistics.snapshot_id,
        "tokenizer": statistics.tokenizer,
        "vocab_size": len(statistics.train_counts_V),
        "sequence_length": statistics.sequence_length,
        "documents": {
            "in": row["documents_in"],
            "kept": row["documents"],
            "duplicates": row["duplicates"],
            "refused": row["refused"],
            "train": row["train_documents"],
            "eval": row["eval_documents"],
        },
        "tokens": {"train": row["train_tokens"], "eval": row["eval_tokens"]},
        "bytes_per_token": row["bytes_per_token"],
        "unigram_entropy_nats": row["unigram_entropy_nats"],
        "train_padding_pct": statistics.train_padding_pct,
        "token_quartiles": {
            f"p{round(100 * q)}": row[f"tokens_per_document_p{round(100 * q)}"] for q in LENGTH_QUANTILES
        },
        "length_histogram": statistics.length_histogram(),
        "scripts_pct": statistics.scripts_pct(),
        "band_shares_pct": [100.0 * float(share) for share in bands] if bands is not None else [],
        "reference_band_shares_pct": (
            [100.0 * float(share) for share in reference_bands] if reference_bands is not None else None
        ),
        "sources": statistics.sources,
    }
