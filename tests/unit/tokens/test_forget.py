from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from small_mill import Mill, make_texts

from tokenmill.corpus.spool import content_digest
from tokenmill.tokens import forget
from tokenmill.tokens.snapshot import open_snapshot


@pytest.mark.parametrize("by", ["id", "digest"])
def test_a_forgotten_document_is_gone_from_every_shard(mill: Mill, by: str) -> None:
    texts = make_texts(100)
    records = [json.dumps({"text": text, "id": f"doc-{number}"}) for number, text in enumerate(texts)]
    mill.write({"a.jsonl": "\n".join(records)})
    mill.source = {"id_column": "id"}
    mill.tokens |= {"group_documents": 8}
    before = mill.prepare()
    name = "doc-41" if by == "id" else content_digest(texts[41].encode()).hex()
    wanted = forget.named([name, "doc-that-is-not-there"])
    (sighting,) = forget.sightings(mill.workspace, wanted)
    assert (sighting.snapshot, sighting.documents, len(sighting.shards)) == (before.snapshot, 1, 1)

    forget.remember_forgotten(mill.workspace, wanted)
    forget.purge(mill.workspace, [sighting])
    assert not mill.workspace.snapshot(before.snapshot).exists()
    after = mill.prepare()

    assert after.manifest.documents_kept == 99
    assert after.manifest.sources[0].refused == {"forgotten": 1}
    assert 1 <= after.built_shards <= 3
    assert forget.sightings(mill.workspace, wanted) == []
    folder = open_snapshot(mill.workspace, after.snapshot).folder
    assert content_digest(texts[41].encode()) not in pq.read_table(folder / "sources.parquet")["digest"].to_pylist()
    for path in (mill.workspace.root / "shards").rglob("documents.parquet"):
        assert content_digest(texts[41].encode()) not in pq.read_table(path)["digest"].to_pylist()
    refused = pq.read_table(folder / "refused.parquet").to_pylist()
    assert [(row["position"], row["reason"]) for row in refused] == [(42, "forgotten")]
