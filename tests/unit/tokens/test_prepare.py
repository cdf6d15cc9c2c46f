"""prepare end to end on small corpora: the contract and the laws."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from small_mill import Hooks, Mill, make_texts

from tokenmill.corpus.spool import content_digest
from tokenmill.errors import Interrupted, UserError
from tokenmill.tokens.snapshot import Snapshot, open_snapshot
from tokenmill.tokens.tokenizer import load_tokenizer


def documents_of(snapshot: Snapshot, split: str) -> list[str]:
    """Text of every document of the split, put together from its pieces' tokens."""
    tokenizer = load_tokenizer(snapshot.tokenizer_folder)
    rows = snapshot.rows(split, np.arange(snapshot.manifest.split(split).rows))
    texts = []
    for tokens, segments in zip(rows.tokens_BS, rows.segment_ids_BS, strict=True):
        for segment in range(1, int(segments.max()) + 1):
            ids = tokens[segments == segment]
            assert ids[-1] == tokenizer.end_of_document
            assert tokenizer.end_of_document not in ids[:-1]
            texts.append(tokenizer.decode(ids[:-1]))
    return texts


def test_what_goes_in_comes_out(mill: Mill) -> None:
    mill.tokens = {"sequence_length": 512, "eval_fraction": 0.2, "packing": "one_per_row"}
    texts = make_texts(60)
    mill.write({f"{number:03}.txt": text for number, text in enumerate(texts)})
    snapshot = mill.open()
    train, held_out = documents_of(snapshot, "train"), documents_of(snapshot, "eval")
    assert sorted(train + held_out) == sorted(texts)
    assert train
    assert held_out


def test_sums_counted_independently(mill: Mill) -> None:
    texts = make_texts(60, longest=30)
    mill.write({f"{number:03}.txt": text for number, text in enumerate([*texts, texts[3], texts[3], "", " \n"])})
    prepared = mill.prepare()
    manifest = prepared.manifest
    assert (manifest.documents_in, manifest.documents_kept, manifest.duplicates, manifest.refused) == (64, 60, 2, 2)
    tokenizer = load_tokenizer(mill.workspace.tokenizer(manifest.tokenizer))
    tokens = sum(len(ids) + 1 for ids in tokenizer.encode_batch(texts))
    assert manifest.train.tokens + manifest.eval.tokens == tokens
    for split in (manifest.train, manifest.eval):
        assert split.tokens + split.padding_tokens == split.rows * 32
    folder = mill.workspace.snapshot(prepared.snapshot)
    sources = pq.read_table(folder / "sources.parquet").to_pydict()
    assert sources["digest"] == [content_digest(text.encode()) for text in texts]
    assert sources["file"] == [f"{number:03}.txt" for number in range(60)]
    duplicates = pq.read_table(folder / "duplicates.parquet").to_pydict()
    assert duplicates["file"] == ["060.txt", "061.txt"]
    assert set(duplicates["digest"]) == {content_digest(texts[3].encode())}
    refused = pq.read_table(folder / "refused.parquet").to_pydict()
    assert list(zip(refused["file"], refused["reason"], strict=True)) == [("062.txt", "empty"), ("063.txt", "empty")]
    documents = pq.read_table(mill.workspace.shard(manifest.shards[0].key) / "documents.parquet").to_pydict()
    assert sum(documents["tokens"]) == tokens
    assert documents["characters"] == [len(text) for text in texts]
    assert prepared.outputs() == {
        "snapshot": prepared.snapshot,
        "tokenizer": manifest.tokenizer,
        "documents": 60,
        "refused": 2,
        "duplicates": 2,
        "train_tokens": manifest.train.tokens,
        "eval_tokens": manifest.eval.tokens,
        "train_rows": manifest.train.rows,
        "built_shards": 1,
        "reused_shards": 0,
    }


def test_nothing_changed_is_nothing_done(mill: Mill) -> None:
    mill.write({f"{number}.txt": text for number, text in enumerate(make_texts(30))})
    first = mill.prepare()
    again = mill.prepare()
    assert again.snapshot == first.snapshot
    assert (again.built_shards, again.reused_shards) == (0, 1)
    assert json.loads((mill.workspace.snapshot(first.snapshot) / "manifest.json").read_bytes())


def test_a_stop_keeps_what_is_done(mill: Mill) -> None:
    mill.tokens |= {"group_documents": 5}
    mill.write({"a.jsonl": "\n".join(json.dumps({"text": text}) for text in make_texts(100))})
    clean = mill.prepare()
    tokenizer = (mill.workspace.pipeline("test") / "tokenizer.json").read_bytes()
    import shutil

    shutil.rmtree(mill.workspace.root / "shards")
    shutil.rmtree(mill.workspace.root / "plans")
    with pytest.raises(Interrupted):
        mill.prepare(Hooks(stop_after=6))
    assert (mill.workspace.pipeline("test") / "tokenizer.json").read_bytes() == tokenizer
    done = len(list((mill.workspace.root / "shards").glob("[0-9a-f]*")))
    assert 0 < done < clean.built_shards
    resumed = mill.prepare()
    assert resumed.snapshot == clean.snapshot
    assert resumed.reused_shards == done
    assert resumed.built_shards == clean.built_shards - done
    assert not list(mill.workspace.scratch.glob("prepare-*"))


def test_a_corrupt_byte_is_found_and_named(mill: Mill) -> None:
    mill.write({f"{number}.txt": text for number, text in enumerate(make_texts(60))})
    snapshot = mill.open()
    path = snapshot.shard_paths()[0]
    raw = bytearray(path.read_bytes())
    raw[2 * snapshot.layout.record_bytes + 100] ^= 1
    path.write_bytes(raw)
    with pytest.raises(UserError, match=r"train.tfrecord is corrupt in row 2"):
        open_snapshot(mill.workspace, snapshot.id)
    with pytest.raises(UserError, match=r"train.tfrecord is corrupt in row 2"):
        open_snapshot(mill.workspace, snapshot.id, deep=True)
    path.write_bytes(raw[:-10])
    with pytest.raises(UserError, match="are expected"):
        open_snapshot(mill.workspace, snapshot.id)
    path.unlink()
    with pytest.raises(UserError, match="is missing"):
        open_snapshot(mill.workspace, snapshot.id)


def test_a_damaged_manifest_is_set_aside_and_made_anew(mill: Mill) -> None:
    mill.write({f"{number}.txt": text for number, text in enumerate(make_texts(30))})
    made = mill.prepare()
    folder = mill.workspace.snapshot(made.snapshot)
    (folder / "manifest.json").write_text('{"documents_kept": 3,')
    hooks = Hooks()
    again = mill.prepare(hooks)
    assert (again.snapshot, again.built_shards) == (made.snapshot, 0)
    open_snapshot(mill.workspace, made.snapshot, deep=True)
    assert len(list(folder.parent.glob(f".damaged-{made.snapshot}-*"))) == 1


def test_too_many_refused_names_the_reasons(mill: Mill) -> None:
    mill.corpus = {"max_refused_pct": 10}
    mill.write({"a.txt": "fine", "b.txt": b"\xff\xfe\xfd", "c.txt": "", "d.txt": ""})
    with pytest.raises(UserError, match=r"3 of 4 documents are refused \(75.0 %.*empty 2, invalid_encoding 1"):
        mill.prepare()


def test_a_corpus_without_documents_is_refused(mill: Mill) -> None:
    with pytest.raises(UserError, match="no file under"):
        mill.prepare()
    mill.source = {"include": ["*.jsonl"]}
    mill.write({"a.jsonl": ""})
    with pytest.raises(UserError, match="give no document"):
        mill.prepare()


def test_a_corpus_behind_a_url(mill: Mill) -> None:
    fsspec = pytest.importorskip("fsspec")
    texts = make_texts(40)
    system = fsspec.filesystem("memory")
    url = f"memory://{mill.corpus_root.parent.name}"
    for number, text in enumerate(texts):
        system.pipe_file(f"{url}/{number:02}.txt", text.encode())
    mill.source = {"root": url}
    remote = mill.prepare()
    assert mill.prepare().built_shards == 0
    mill.source = {}
    mill.write({f"{number:02}.txt": text for number, text in enumerate(texts)})
    local = mill.prepare()
    assert local.snapshot == remote.snapshot
    assert local.reused_shards == 1
