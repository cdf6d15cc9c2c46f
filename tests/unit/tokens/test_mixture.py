from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_mill import Mill, make_texts

from tokenmill.tokens.mixture import epoch_rows, stored_rows


@given(st.integers(1, 200), st.floats(0.01, 5))
def test_an_epoch_draws_each_row_as_often_as_its_weight_says(stored: int, weight: float) -> None:
    drawn = epoch_rows(stored, weight)
    local = stored_rows(np.arange(drawn), np.full(drawn, stored), np.full(drawn, drawn))
    counts = np.bincount(local, minlength=stored)
    assert len(counts) == stored
    assert counts.sum() == drawn
    assert drawn == int(stored * weight)
    assert counts.max(initial=0) - counts.min() <= 1


def test_weights_repeat_rows_and_store_nothing_twice(mill: Mill) -> None:
    mill.write({f"a/{number}.txt": text for number, text in enumerate(make_texts(50))})
    mill.write({f"b/{number}.txt": text for number, text in enumerate(make_texts(50, seed=1))})
    mill.write({f"c/{number}.txt": text for number, text in enumerate(make_texts(50, seed=2))})
    weights = {"a": 1.0, "b": 2.5, "c": 0.25}
    mill.corpus = {
        "sources": [
            {"name": name, "root": str(mill.corpus_root / name), "weight": weight} for name, weight in weights.items()
        ]
    }
    snapshot = mill.open()
    manifest = snapshot.manifest
    stored = [shard.train.rows for shard in manifest.shards]
    assert [source.name for source in manifest.sources] == ["a", "b", "c"]
    assert manifest.train.rows == sum(int(rows * weights[name]) for rows, name in zip(stored, "abc", strict=True))
    assert manifest.train.stored_rows == sum(stored)
    rows = snapshot.rows("train", np.arange(manifest.train.rows))
    assert manifest.train.tokens == np.count_nonzero(rows.segment_ids_BS)
    assert manifest.train.padding_tokens == np.count_nonzero(rows.segment_ids_BS == 0)
    counts = Counter(row.tobytes() for row in rows.tokens_BS)
    assert Counter(counts.values())[3] == int(stored[1] * 2.5) - 2 * stored[1]
    assert manifest.eval.rows == manifest.eval.stored_rows


@pytest.mark.parametrize("limit", [1, 7, 10, 11, 100])
def test_a_limit_counts_records_in_canonical_order(mill: Mill, limit: int) -> None:
    texts = make_texts(10)
    records = [*(f'{{"text": "{text}"}}' for text in texts[:6]), "broken", f'{{"text": "{texts[0]}"}}']
    mill.write({"a.jsonl": "\n".join(records), "b.txt": texts[7], "c.txt": texts[8], "d.txt": texts[9]})
    mill.corpus = {"limit_documents": limit}
    mill.tokens |= {"eval_fraction": 0}
    manifest = mill.prepare().manifest
    assert manifest.documents_in == min(limit, 11)
    assert manifest.documents_kept == len([*range(6), *range(8, 11)][: min(limit, 6) + max(0, min(limit, 11) - 8)])
    assert manifest.refused == (limit > 6)
    assert manifest.duplicates == (limit > 7)


def test_a_held_out_document_stays_held_out_when_the_fraction_grows(mill: Mill) -> None:
    import pyarrow.parquet as pq

    mill.write({f"{number}.txt": text for number, text in enumerate(make_texts(200))})
    before: set[bytes] = set()
    for fraction in (0.05, 0.1, 0.4):
        mill.tokens |= {"eval_fraction": fraction}
        folder: Path = mill.workspace.snapshot(mill.prepare().snapshot)
        table = pq.read_table(folder / "sources.parquet").to_pydict()
        now = {digest for digest, out in zip(table["digest"], table["held_out"], strict=True) if out}
        assert before <= now
        assert abs(len(now) - 200 * fraction) < 5 * (200 * fraction) ** 0.5
        before = now
