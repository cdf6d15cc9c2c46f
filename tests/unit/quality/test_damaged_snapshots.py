"""Damage that no corpus does: files and manifests that are not what prepare wrote, and tokenizers that changed."""

from __future__ import annotations

import hashlib
import re
import shutil
from typing import Any

import numpy as np
import pytest

from tests.unit.quality.nights import ENGLISH, GEORGIAN, HONEST, OTHER_LATIN, Language, Nights, finding, violated
from tokenmill.quality.reference import read_last_good
from tokenmill.tokens.manifest import read_manifest
from tokenmill.tokens.pinning import unpin
from tokenmill.workspace import read_json, write_json

WEB, NOTES = HONEST["web"], HONEST["notes"]


def flip(nights: Nights, snapshot: str, name: str, at: int) -> None:
    path = nights.first_shard(snapshot) / name
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def good_snapshot(nights: Nights) -> str:
    last = read_last_good(nights.workspace, "test")
    assert last is not None
    return last.snapshot


def test_a_flipped_byte_is_found_and_named(fresh: Nights) -> None:
    snapshot = fresh.prepare(HONEST)
    manifest = read_manifest(fresh.workspace.snapshot(snapshot))
    size = (fresh.first_shard(snapshot) / "train.tfrecord").stat().st_size // manifest.shards[0].train.rows
    flip(fresh, snapshot, "train.tfrecord", 5 * size + size // 2)
    found = fresh.validate(snapshot)
    assert found.verdict.verdict == "fail"
    assert f"/train.tfrecord: the CRC of record 5 (from byte {5 * size:,}) is wrong" in violated(found)[
        "records"
    ].replace(manifest.shards[0].key, "")
    assert finding(found, "records").offenders[0].source == manifest.shards[0].key

    # Mended, it passes: a refusal is not remembered.
    flip(fresh, snapshot, "train.tfrecord", 5 * size + size // 2)
    mended = fresh.validate(snapshot)
    assert mended.verdict.verdict == "pass"
    assert not mended.found
    assert fresh.validate(snapshot).found


@pytest.mark.parametrize("name", ["eval.tfrecord", "documents.parquet"])
def test_a_file_that_is_gone_is_named(fresh: Nights, name: str) -> None:
    snapshot = fresh.prepare(HONEST)
    (fresh.first_shard(snapshot) / name).unlink()
    found = fresh.validate(snapshot)
    assert found.verdict.verdict == "fail"
    assert f"{name} is missing" in violated(found)["records"]


def test_a_shortened_file_is_named(fresh: Nights) -> None:
    snapshot = fresh.prepare(HONEST)
    path = fresh.first_shard(snapshot) / "train.tfrecord"
    path.write_bytes(path.read_bytes()[:-1])
    assert re.search(
        r"train.tfrecord has [\d,]+ bytes, [\d,]+ are expected", violated(fresh.validate(snapshot))["records"]
    )


@pytest.mark.parametrize("deep", [False, True])
def test_a_crc_that_fits_the_hash_but_not_the_record(fresh: Nights, deep: bool) -> None:
    """A record that was written wrong: the file's hash is right, so only the CRCs tell, and only `deep` sees all."""
    fresh.checks = {"deep": deep}
    fresh.tokens["sequence_length"] = 32
    snapshot = fresh.prepare(HONEST)
    shard = read_manifest(fresh.workspace.snapshot(snapshot)).shards[0]
    path = fresh.first_shard(snapshot) / "train.tfrecord"
    assert shard.train.rows > 2 * 64
    flip(fresh, snapshot, "train.tfrecord", path.stat().st_size // shard.train.rows + 40)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    changed = shard.model_copy(update={"train": shard.train.model_copy(update={"sha256": sha256})})
    manifest = read_manifest(fresh.workspace.snapshot(snapshot))
    made = fresh.rewrite_manifest(snapshot, shards=(changed, *manifest.shards[1:]))
    assert ("records" in violated(fresh.validate(made))) == deep


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("documents_in", "documents read: 421 in the manifest, kept, duplicate and refused ones: 420"),
        ("duplicates", "duplicates: 1 in the manifest, the rows of duplicates.parquet: 0"),
        ("documents_kept", "documents kept: 421 in the manifest, those of the shards' tables: 420"),
    ],
)
def test_a_manifest_with_a_wrong_count(nights: Nights, field: str, words: str) -> None:
    snapshot = good_snapshot(nights)
    manifest = read_manifest(nights.workspace.snapshot(snapshot))
    found = nights.validate(nights.rewrite_manifest(snapshot, **{field: getattr(manifest, field) + 1}))
    assert words in violated(found)["sums"]
    assert found.verdict.verdict == "fail"


def test_tokens_that_the_records_do_not_hold(nights: Nights) -> None:
    snapshot = good_snapshot(nights)
    train = read_manifest(nights.workspace.snapshot(snapshot)).train
    changed = train.model_copy(update={"stored_tokens": train.stored_tokens + 7})
    found = nights.validate(nights.rewrite_manifest(snapshot, train=changed))
    assert re.search(r"train tokens: [\d,]+ in the manifest, those in the records: [\d,]+", violated(found)["sums"])


def test_ids_outside_the_vocabulary(nights: Nights) -> None:
    found = nights.validate(nights.rewrite_manifest(good_snapshot(nights), vocab_size=300))
    assert found.verdict.verdict == "fail"
    assert re.search(r"\d+ documents hold token ids outside the vocabulary", violated(found)["vocabulary"])


def test_a_tokenizer_swapped_for_another(nights: Nights) -> None:
    """The pin names another tokenizer than it did, while the settings that it was made for are the same."""
    before = read_manifest(nights.workspace.snapshot(good_snapshot(nights))).tokenizer
    other = nights.copy_to(nights.folder.with_name("other"))
    other.tokenizer = {"vocab_size": 600}
    after = read_manifest(other.workspace.snapshot(other.prepare(HONEST))).tokenizer
    shutil.copytree(other.workspace.tokenizer(after), nights.workspace.tokenizer(after))
    pin = nights.workspace.pipeline("test") / "tokenizer.json"
    write_json(pin, read_json(pin) | {"tokenizer": after})
    found = nights.night(HONEST)
    assert list(violated(found)) == ["drift_tokenizer"]
    assert f"The tokenizer was swapped: it was {before}, and is {after}" in violated(found)["drift_tokenizer"]
    assert finding(found, "drift_token_distribution").outcome == "not_measured"
    nights.checks = {"drift": {"reference": "none"}}
    assert nights.night(HONEST).verdict.verdict == "pass"


def test_another_tokenizer_that_pipelines_yaml_asks_for(nights: Nights) -> None:
    nights.tokenizer = {"vocab_size": 600}
    found = nights.night(HONEST)
    assert found.verdict.verdict == "pass"
    unmeasured = finding(found, "drift_tokenizer")
    assert unmeasured.outcome == "not_measured"
    assert "settings in pipelines.yaml are other ones" in unmeasured.sentence
    assert finding(found, "drift_source_mix").outcome == "pass"


def test_a_tokenizer_made_anew_on_demand(nights: Nights) -> None:
    """`--retrain-tokenizer`: the same settings, another corpus, so another tokenizer."""
    before = read_manifest(nights.workspace.snapshot(good_snapshot(nights))).tokenizer
    unpin(nights.workspace, "test")
    found = nights.night({"web": [*WEB, *ENGLISH.documents(30, seed=77)], "notes": NOTES})
    assert read_manifest(nights.workspace.snapshot(found.verdict.snapshot)).tokenizer != before
    assert violated(found) == {}
    assert finding(found, "drift_tokenizer").outcome == "not_measured"
    # The night after it, drift is measured again.
    after = nights.night({"web": [*WEB, *ENGLISH.documents(40, seed=77)], "notes": NOTES})
    assert finding(after, "drift_token_distribution").outcome == "pass"


def test_shards_of_another_tokenizer_than_the_manifest_names(nights: Nights) -> None:
    snapshot = good_snapshot(nights)
    nights.tokenizer = {"vocab_size": 600}
    other = read_manifest(nights.workspace.snapshot(nights.prepare(HONEST))).tokenizer
    found = nights.validate(nights.rewrite_manifest(snapshot, tokenizer=other))
    assert "sampled documents differ" in violated(found)["round_trip"]
    offender = finding(found, "round_trip").offenders[0]
    assert (offender.source, offender.position.split(":")[0]) in {("web", "part.jsonl"), ("notes", "part.jsonl")}


def test_eval_documents_that_stand_in_train_word_for_word(nights: Nights) -> None:
    """Prepare cannot make this; the shards of a snapshot with nothing held out, added to one with something, do."""
    snapshot = good_snapshot(nights)
    nights.tokens["eval_fraction"] = 0.0
    whole = read_manifest(nights.workspace.snapshot(nights.prepare(HONEST)))
    manifest = read_manifest(nights.workspace.snapshot(snapshot))
    sources = tuple(source.model_copy(update={"shards": 2 * source.shards}) for source in manifest.sources)
    shards = [shard for pair in zip(manifest.shards, whole.shards, strict=True) for shard in pair]
    made = nights.publish(manifest.model_copy(update={"sources": sources, "shards": tuple(shards)}), snapshot)
    found = nights.validate(made)
    assert f"{manifest.eval.documents} eval documents stand in train, word for word" in violated(found)["eval_disjoint"]


def test_nothing_held_out(fresh: Nights) -> None:
    fresh.tokens["eval_fraction"] = 0.0001
    assert "The eval split is empty" in violated(fresh.night({"web": WEB[:50]}))["eval_present"]
    fresh.tokens["eval_fraction"] = 0.0
    meant = fresh.night({"web": WEB[:50]})
    assert finding(meant, "eval_present").outcome == "not_measured"
    assert finding(meant, "eval_disjoint").outcome == "not_measured"


def test_padding_is_paid_for(fresh: Nights) -> None:
    fresh.tokens |= {"packing": "one_per_row", "sequence_length": 2048}
    assert re.search(r"\d+(\.\d+)? % of the train rows is padding", violated(fresh.night(HONEST))["padding"])


def test_text_that_no_byte_of_the_tokenizer_is_for(fresh: Nights) -> None:
    """First night in one language, next one in a script of three-byte letters that were never seen."""
    fresh.night(HONEST)
    georgian = Language(GEORGIAN, seed=5).documents(200, seed=1)
    found = fresh.night({"web": georgian, "notes": NOTES})
    assert re.search(r"A token stands for 1\.\d+ bytes of text, outside 1.2 to 8", violated(found)["bytes_per_token"])


def test_a_flood_of_unknown_tokens(fresh: Nights, tmp_path: Any) -> None:
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    words = tokenizers.Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(vocab_size=4000, special_tokens=["[UNK]", "</s>"])
    words.train_from_iterator([text for texts in HONEST.values() for text in texts], trainer)
    folder = tmp_path / "words"
    folder.mkdir()
    words.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"unk_token": "[UNK]", "eos_token": "</s>"}')
    fresh.tokenizer = {"source": str(folder)}
    first = fresh.night(HONEST)
    assert finding(first, "unknown_tokens").outcome == "pass"
    assert finding(first, "round_trip").outcome == "not_measured"
    found = fresh.night({"web": Language(OTHER_LATIN, seed=3).documents(300, seed=1), "notes": NOTES})
    assert re.search(r"\d+(\.\d+)? % of the tokens are unknown", violated(found)["unknown_tokens"])


def test_statistics_of_a_snapshot_add_up(nights: Nights) -> None:
    import pyarrow.parquet as pq

    snapshot = good_snapshot(nights)
    manifest = read_manifest(nights.workspace.snapshot(snapshot))
    found = nights.validate(snapshot)
    tables = nights.workspace.root / found.folder / "statistics"
    documents = pq.read_table(tables / "documents.parquet")
    texts = {
        hashlib.blake2b(text.encode(), digest_size=16).hexdigest(): text
        for source in HONEST.values()
        for text in source
    }
    assert set(documents["document"].to_pylist()) == set(texts)
    assert documents["bytes"].to_pylist() == [len(texts[key].encode()) for key in documents["document"].to_pylist()]
    counts = pq.read_table(tables / "tokens.parquet")
    train = documents.filter(np.array(documents["split"].to_pylist()) == "train")
    assert sum(counts["train"].to_pylist()) == sum(train["tokens"].to_pylist()) == manifest.train.stored_tokens
    assert sum(counts["eval"].to_pylist()) == manifest.eval.stored_tokens
    shares = np.array(counts["train"].to_pylist()) / manifest.train.stored_tokens
    entropy = -sum(share * np.log(share) for share in shares if share)
    assert found.summary["unigram_entropy_nats"] == pytest.approx(entropy)
    sources = {row["source"]: row for row in pq.read_table(tables / "sources.parquet").to_pylist()}
    assert {name: row["documents"] for name, row in sources.items()} == {
        name: len(texts) for name, texts in HONEST.items()
    }
