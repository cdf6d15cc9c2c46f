"""The rows that every trainer of `make bench-train` sees: an English dictionary, through `tokenmill.tokens.prepare`.

    python -m benchmarks.train.data FOLDER

Makes under FOLDER, for rows of 256 and 512 tokens: packed-N.npz (the arrays of packed rows), packed-N.npy (their tokens
alone, for peers), and padded-512.npz and .npy, one document a row.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.tokens import corpora
from benchmarks.train.turns import VOCABULARY
from tokenmill.corpus.settings import CorpusSettings
from tokenmill.tokens.builder import SilentHooks
from tokenmill.tokens.order import row_numbers
from tokenmill.tokens.prepare import PrepareRequest, prepare
from tokenmill.tokens.settings import TokenizerSettings, TokensSettings
from tokenmill.tokens.snapshot import open_snapshot
from tokenmill.workspace import Workspace

ROWS = 4096
"""As many as a bench reads, drawn at random from all."""
LAYOUTS = [("packed-256", 256, "best_fit"), ("packed-512", 512, "best_fit"), ("padded-512", 512, "one_per_row")]


def make(folder: Path) -> None:
    done = folder / "complete"
    if done.exists():
        return
    corpus = folder / "corpus"
    with tempfile.TemporaryDirectory() as scratch:
        corpora.write(corpus, corpora.dictionary(corpora.unpack(Path(scratch))))
    for name, length, packing in LAYOUTS:
        _make_rows(folder, corpus, name, length, packing)
    done.touch()


def _make_rows(folder: Path, corpus: Path, name: str, length: int, packing: str) -> None:
    workspace = Workspace.open(str(folder / "workspace"))
    request = PrepareRequest(
        workspace,
        "benchmark",
        CorpusSettings.model_validate({"sources": [{"name": "d", "root": str(corpus), "include": ["*.jsonl.gz"]}]}),
        TokenizerSettings(vocab_size=VOCABULARY),
        TokensSettings.model_validate({"sequence_length": length, "packing": packing}),
        {"d": str(corpus)},
    )
    snapshot = open_snapshot(workspace, prepare(request, SilentHooks()).snapshot)
    stored = snapshot.manifest.train.rows
    rows = snapshot.rows("train", row_numbers(stored, 0, 0, min(ROWS, stored)))
    names = ("tokens_BS", "segment_ids_BS", "positions_BS", "loss_weights_BS")
    np.savez(folder / f"{name}.npz", **{field: getattr(rows, field) for field in names})
    np.save(folder / f"{name}.npy", rows.tokens_BS.astype(np.int32))
    used = float(np.mean(rows.segment_ids_BS > 0))
    print(f"{name}: {len(rows.tokens_BS):,} of {stored:,} rows, {100 * used:.1f} % of their positions hold tokens")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
