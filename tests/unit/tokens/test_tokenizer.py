"""Tokenizers of every kind, the fast path held against the truth, and the truth held against `transformers`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from small_mill import Mill, make_texts
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from tokenmill.errors import UserError
from tokenmill.tokens.encode import Encoded, Encoder, choose_sample
from tokenmill.tokens.make_tokenizer import TrainingSample, import_tokenizer, pin_trained
from tokenmill.tokens.settings import TokenizerSettings
from tokenmill.tokens.tokenizer import Tokenizer, load_tokenizer

TEXTS = [text.encode() for text in make_texts(200)]


def trained(folder: Path, texts: list[bytes] = TEXTS, **options: Any) -> Tokenizer:
    settings = TokenizerSettings.model_validate({"vocab_size": 400, **options})
    return pin_trained(folder, texts, settings, special_tokens_are_text=True)


def encode(tokenizer: Tokenizer, texts: list[str]) -> tuple[list[list[int]], str]:
    encoded = Encoder(tokenizer).encode([text.encode() for text in texts], np.array([len(text) for text in texts]))
    return [ids.tolist() for ids in encoded.tokens], encoded.note


def expect(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [[*ids.tolist(), tokenizer.end_of_document] for ids in tokenizer.encode_batch(texts)]


def test_the_same_documents_give_the_same_tokenizer(tmp_path: Path) -> None:
    first, again = trained(tmp_path / "a"), trained(tmp_path / "b")
    assert first.raw == again.raw
    assert first.fingerprint == again.fingerprint
    assert first.vocab_size == 400
    assert load_tokenizer(tmp_path / "a" / first.fingerprint).raw == first.raw
    assert first.end_of_document == 0
    assert first.decode(first.encode_batch(["Mühle 水车 🌾"])[0]) == "Mühle 水车 🌾"


@given(st.permutations(range(40)), st.integers(1, 1500))
def test_the_training_sample_does_not_depend_on_order(order: list[int], limit: int) -> None:
    from tokenmill.corpus.spool import content_digest

    def sample(numbers: list[int]) -> list[bytes]:
        chosen = TrainingSample(limit)
        for number in [*numbers, *numbers[:5]]:
            chosen.add(content_digest(TEXTS[number]), TEXTS[number])
        return chosen.texts()

    texts = sample(order)
    assert texts == sample(list(range(40)))
    assert sum(map(len, texts)) >= min(limit, sum(map(len, TEXTS[:40])))
    assert sum(map(len, texts[:-1])) < limit


def test_a_tokenizer_is_trained_once_on_the_train_side_and_pinned(mill: Mill) -> None:
    mill.tokens |= {"eval_fraction": 0.5}
    mill.write({f"{number}.txt": text for number, text in enumerate(make_texts(40))})
    first = mill.prepare()
    mill.write({"new.txt": "entirely other words " * 30})
    assert mill.prepare().manifest.tokenizer == first.manifest.tokenizer
    mill.tokenizer = {"vocab_size": 330}
    assert mill.prepare().manifest.tokenizer != first.manifest.tokenizer


def test_a_changed_source_folder_is_told_and_the_pinned_tokenizer_kept(
    mill: Mill, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from tokenmill.tokens.pinning import unpin

    (tmp_path / "house").mkdir()
    save_word_piece(tmp_path / "house")
    mill.tokenizer = {"source": str(tmp_path / "house")}
    mill.write({f"{number}.txt": text for number, text in enumerate(make_texts(40))})
    first = mill.prepare()
    assert "changed" not in caplog.text
    save_unigram(tmp_path / "house")
    mill.write({"more.txt": "more"})
    assert mill.prepare().manifest.tokenizer == first.manifest.tokenizer
    assert "tokenizer.source changed" in caplog.text
    unpin(mill.workspace, "test")
    assert mill.prepare().manifest.tokenizer != first.manifest.tokenizer


def test_special_tokens_in_a_document_are_text(tmp_path: Path) -> None:
    tokenizer = trained(tmp_path)
    text = "before <|endoftext|> after"
    (ids,), note = encode(tokenizer, [text])
    assert note == ""
    assert tokenizer.end_of_document not in ids[:-1]
    assert tokenizer.decode(ids[:-1]) == text
    settings = TokenizerSettings(vocab_size=400)
    control = pin_trained(tmp_path, TEXTS, settings, special_tokens_are_text=False)
    assert control.fingerprint != tokenizer.fingerprint
    (ids,), note = encode(control, [text])
    assert control.end_of_document in ids[:-1]


@given(st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=30))
@settings(deadline=None, max_examples=60)
def test_the_fast_path_equals_the_truth(texts: list[str]) -> None:
    texts = [text.replace("\0", "") or "x" for text in texts]
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    assert encode(BYTE_LEVEL, texts) == (expect(BYTE_LEVEL, texts), "")


def test_the_truth_equals_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = trained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / tokenizer.fingerprint))
    texts = ["the mill", "Mühle 水车 🌾", "  spaces   and\nlines\t", "<s>"]
    assert [ids.tolist() for ids in tokenizer.encode_batch(texts)] == [
        theirs.encode(text, add_special_tokens=False) for text in texts
    ]
    assert theirs.eos_token_id == tokenizer.end_of_document


def test_a_mismatch_falls_back_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = trained(tmp_path)
    texts = ["the mill", "水车"]
    original = Encoder._encode_fast

    def wrong(self: Encoder, raw: list[bytes]) -> Encoded:
        encoded = original(self, raw)
        encoded.tokens[1][0] += 1
        return encoded

    monkeypatch.setattr(Encoder, "_encode_fast", wrong)
    ids, note = encode(tokenizer, texts)
    assert ids == expect(tokenizer, texts)
    assert "gigatoken and tokenizers differ on '水车'" in note


def test_the_sample_takes_rare_scripts_and_special_tokens_first() -> None:
    texts = [b"plain"] * 1000
    texts[500] = "水车磨坊".encode()
    texts[700] = b"a <|endoftext|> b"
    characters = np.array([len(text.decode()) for text in texts])
    chosen = choose_sample(texts, characters, ["<|endoftext|>"])
    assert {500, 700} <= set(chosen)
    assert len(chosen) == len(set(chosen)) <= 24


def save_word_piece(folder: Path) -> None:
    truth = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    truth.normalizer = normalizers.BertNormalizer()
    truth.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    truth.train_from_iterator([text.decode() for text in TEXTS], trainer)
    truth.enable_truncation(5)
    truth.enable_padding(length=9)
    truth.save(str(folder / "tokenizer.json"))


def save_unigram(folder: Path) -> None:
    truth = tokenizers.Tokenizer(models.Unigram())
    truth.pre_tokenizer = pre_tokenizers.Metaspace()
    truth.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    truth.train_from_iterator([text.decode() for text in TEXTS], trainer)
    truth.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": {"content": "</s>"}, "unk_token": "<unk>"}')


def save_vocab_and_merges(folder: Path) -> None:
    model = json.loads(BYTE_LEVEL.raw)["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')


def save_bare_vocab_and_merges(folder: Path) -> None:
    save_vocab_and_merges(folder)
    (folder / "tokenizer_config.json").unlink()


def save_bare_word_piece(folder: Path) -> None:
    save_word_piece(folder)
    vocab = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    (folder / "vocab.txt").write_text("\n".join(sorted(vocab, key=vocab.__getitem__)) + "\n")
    (folder / "tokenizer.json").unlink()


def sentencepiece_model(kind: str) -> bytes:
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for text in TEXTS for line in text.decode().splitlines()),
        model_writer=written,
        vocab_size=300,
        model_type=kind,
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return written.getvalue()


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_sentencepiece_model_gives_what_its_own_library_gives(tmp_path: Path, kind: str) -> None:
    import sentencepiece

    raw = sentencepiece_model(kind)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "house.model").write_bytes(raw)
    settings = TokenizerSettings(source=str(tmp_path / "source"))
    tokenizer = import_tokenizer(tmp_path / "pinned", settings, special_tokens_are_text=True)
    judge = sentencepiece.SentencePieceProcessor(model_proto=raw)
    texts = ["the mill grinds grain", "Mühle 水车 🌾 naïve", " two  spaces", *make_texts(40)]
    ids, _ = encode(tokenizer, texts)
    assert [list(document) for document in ids] == [[*judge.encode(text), tokenizer.end_of_document] for text in texts]
    assert tokenizer.end_of_document == judge.piece_to_id("</s>")


@pytest.mark.parametrize(
    ("save", "end", "unknown"),
    [
        (save_bare_vocab_and_merges, "<|endoftext|>", None),
        (save_bare_word_piece, "[SEP]", "[UNK]"),
        (save_word_piece, "[SEP]", "[UNK]"),
        (save_unigram, "</s>", "<unk>"),
        (save_vocab_and_merges, "<|endoftext|>", None),
    ],
)
def test_tokenizers_of_other_kinds(tmp_path: Path, save: Any, end: str, unknown: str | None) -> None:
    (tmp_path / "source").mkdir()
    save(tmp_path / "source")
    settings = TokenizerSettings(source=str(tmp_path / "source"))
    tokenizer = import_tokenizer(tmp_path / "pinned", settings, special_tokens_are_text=True)
    assert tokenizer.end_of_document == tokenizer.truth.token_to_id(end)
    if unknown:
        assert tokenizer.use.unknown == tokenizer.truth.token_to_id(unknown)
    texts = ["the mill grinds grain", "Mühle 水车 🌾 naïve", *make_texts(40)]
    ids, _ = encode(tokenizer, texts)
    assert ids == expect(tokenizer, texts)
    assert max(map(len, ids)) > 9  # neither truncated nor padded


def test_mistakes_are_named(tmp_path: Path) -> None:
    def source(**options: Any) -> Tokenizer:
        settings = TokenizerSettings.model_validate(options)
        return import_tokenizer(tmp_path / "pinned", settings, special_tokens_are_text=True)

    with pytest.raises(UserError, match="is not a folder"):
        source(source="./missing")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UserError, match="holds no tokenizer; it needs"):
        source(source=str(tmp_path / "nothing"))
    with pytest.raises(UserError, match="pin the hub name 'org/name' to a commit"):
        source(source="org/name", revision="main")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"is no tokenizer\.json"):
        source(source=str(tmp_path / "empty"))
    save_word_piece(tmp_path)
    with pytest.raises(UserError, match="'<none>' is not a token"):
        source(source=str(tmp_path), end_of_document="<none>")
    with pytest.raises(UserError, match="cannot be read"):
        load_tokenizer(tmp_path / "nowhere")
    tokenizer = trained(tmp_path / "pinned")
    path = tmp_path / "pinned" / tokenizer.fingerprint / "tokenizer.json"
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(UserError, match="not the one it was pinned as"):
        load_tokenizer(path.parent)


@pytest.fixture(scope="module", autouse=True)
def _byte_level(tmp_path_factory: pytest.TempPathFactory) -> None:
    global BYTE_LEVEL
    BYTE_LEVEL = trained(tmp_path_factory.mktemp("byte-level"))


BYTE_LEVEL: Tokenizer
