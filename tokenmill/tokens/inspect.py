"""`tokenmill inspect SNAPSHOT`: one self-contained HTML page about a snapshot. No scripts, no network.

Everything is counted from the snapshot's own files: lengths from documents.parquet, tokens from the records, refusals
and duplicates from the tables.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tokenmill.tokens.snapshot import Snapshot
from tokenmill.tokens.tokenizer import Tokenizer, load_tokenizer

_TOP_TOKENS = 40
_DRAWN_ROWS = 12
_PIECE_CHARACTERS = 160


def render_page(snapshot: Snapshot) -> str:
    """The page. All text from the corpus is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count"] = lambda value: f"{value:,}"
    environment.filters["pct"] = lambda share: f"{100 * share:.2f} %"
    return environment.get_template("inspect.html").render(**facts(snapshot))


def facts(snapshot: Snapshot) -> dict[str, Any]:
    """All that the page shows, as plain values."""
    manifest = snapshot.manifest
    tokenizer = load_tokenizer(snapshot.tokenizer_folder)
    counts = token_counts(snapshot)
    total = max(int(counts.sum()), 1)
    unknown = tokenizer.use.unknown
    lengths = _document_columns(snapshot)
    return {
        "id": snapshot.id,
        "manifest": manifest,
        "splits": [
            (name, split, split.padding_tokens / max(split.padding_tokens + split.tokens, 1))
            for name, split in (("train", manifest.train), ("eval", manifest.eval))
        ],
        "histograms": [
            ("Characters in a document", bars(lengths["characters"])),
            ("Tokens in a document", bars(lengths["tokens"])),
        ],
        "unused": int((counts == 0).sum()),
        "unknown_share": None if unknown is None else int(counts[unknown]) / total,
        "top": [
            (token, _show(tokenizer.decode([token]).replace(" ", "␣")), int(counts[token]), int(counts[token]) / total)
            for token in np.argsort(-counts, kind="stable")[:_TOP_TOKENS].tolist()
            if counts[token]
        ],
        "sources": _sources(snapshot, lengths),
        "refused": refusals(snapshot),
        "rows": drawn_rows(snapshot, tokenizer),
    }


def token_counts(snapshot: Snapshot) -> npt.NDArray[np.int64]:
    """int64[vocabulary]: how often each token is stored, padding left out, train and eval together."""
    counts = np.zeros(snapshot.manifest.vocab_size, np.int64)
    for split in ("train", "eval"):
        for _, records in snapshot.stored_blocks(split):
            used = snapshot.layout.view(records, "segment_ids") != 0
            tokens = snapshot.layout.view(records, "tokens")[used].astype(np.int64)
            counts += np.bincount(tokens, minlength=len(counts))
    return counts


def bars(values: npt.NDArray[np.integer]) -> list[tuple[str, int, float]]:
    """(range, documents, share of the largest bar): powers of two, empty ones at both ends left out."""
    if not len(values):
        return []
    powers = np.bincount(np.floor(np.log2(np.maximum(values, 1))).astype(np.int64))
    filled = np.flatnonzero(powers)
    return [
        (f"{2**power:,} – {2 ** (power + 1) - 1:,}", int(powers[power]), float(powers[power] / powers.max()))
        for power in range(int(filled[0]), int(filled[-1]) + 1)
    ]


def refusals(snapshot: Snapshot) -> list[tuple[str, int, list[tuple[str, int, str]]]]:
    """(reason, count, first examples as file, position, excerpt), the most frequent reason first."""
    counts: Counter[str] = Counter()
    examples: dict[str, list[tuple[str, int, str]]] = {}
    table = pq.ParquetFile(snapshot.folder / "refused.parquet")
    for batch in table.iter_batches(columns=["file", "position", "reason", "excerpt"]):
        for row in batch.to_pylist():
            counts[row["reason"]] += 1
            shown = examples.setdefault(row["reason"], [])
            if len(shown) < 3:
                shown.append((row["file"], row["position"], row["excerpt"]))
    return [(reason, count, examples[reason]) for reason, count in counts.most_common()]


def drawn_rows(snapshot: Snapshot, tokenizer: Tokenizer) -> list[list[dict[str, Any]]]:
    """Some train rows, evenly spread: the pieces of each with their share of the row, colour number and text."""
    total = snapshot.manifest.train.rows
    chosen = np.unique(np.linspace(0, total - 1, min(_DRAWN_ROWS, total)).astype(np.int64))
    rows = snapshot.rows("train", chosen)
    length = snapshot.manifest.sequence_length
    drawn = []
    for tokens, segments in zip(rows.tokens_BS, rows.segment_ids_BS, strict=True):
        pieces = []
        for segment in range(1, int(segments.max()) + 1):
            ids = tokens[segments == segment]
            text = tokenizer.decode(ids[: 2 * _PIECE_CHARACTERS])
            pieces.append({"share": len(ids) / length, "tokens": len(ids), "text": _show(text), "colour": segment % 6})
        if padding := int((segments == 0).sum()):
            pieces.append({"share": padding / length, "tokens": padding, "text": "padding", "colour": "padding"})
        drawn.append(pieces)
    return drawn


def _document_columns(snapshot: Snapshot) -> dict[str, npt.NDArray[np.int64]]:
    """characters, tokens and text_bytes of every document, and the number of its source."""
    parts: dict[str, list[npt.NDArray[np.int64]]] = {name: [] for name in ("characters", "tokens", "text_bytes")}
    source_of_shard = np.repeat(
        np.arange(len(snapshot.manifest.sources)), [source.shards for source in snapshot.manifest.sources]
    )
    sources = []
    for number, shard in enumerate(snapshot.manifest.shards):
        path = snapshot.workspace.shard(shard.key) / "documents.parquet"
        table = pq.read_table(path, columns=list(parts))
        for name, values in parts.items():
            values.append(table.column(name).to_numpy())
        sources.append(np.full(table.num_rows, source_of_shard[number]))
    return {name: np.concatenate(values) for name, values in {**parts, "source": sources}.items()}


def _sources(snapshot: Snapshot, documents: dict[str, npt.NDArray[np.int64]]) -> list[dict[str, Any]]:
    found = []
    for number, source in enumerate(snapshot.manifest.sources):
        mine = documents["source"] == number
        # The end-of-document token stands for no byte of the text.
        tokens = int(documents["tokens"][mine].sum()) - int(mine.sum())
        found.append(
            {
                "counts": source,
                "refused": sum(source.refused.values()),
                "bytes_per_token": int(documents["text_bytes"][mine].sum()) / max(tokens, 1),
            }
        )
    return found


def _show(text: str) -> str:
    """`text` with what cannot be seen made visible, cut to a glance."""
    shown = text.replace("\n", "⏎").replace("\t", "⇥")
    return shown[:_PIECE_CHARACTERS] + ("…" if len(shown) > _PIECE_CHARACTERS else "")
