"""Every format and every refusal: what a file holds is either a document or a row that says why not."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenmill.corpus import compression, lines
from tokenmill.corpus.files import CorpusFile, raw_fingerprint
from tokenmill.corpus.options import ReadOptions
from tokenmill.corpus.reading import read_files
from tokenmill.corpus.spool import content_digest, identity_hash

CODECS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda raw: raw,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


class Read:
    """One file, read."""

    def __init__(self, folder: Path, name: str, content: bytes, **options: Any) -> None:
        path = folder / name
        path.write_bytes(content)
        file = CorpusFile("all", name, str(path), len(content))
        spool = folder / "spool.txt"
        (outcome,), index = read_files([file], [raw_fingerprint(file)], ReadOptions(**options), spool)
        self.index = index
        self.filtered = outcome.filtered
        self.refused = [(refusal.position, refusal.reason.value) for refusal in outcome.refused]
        self.excerpts = [refusal.excerpt for refusal in outcome.refused]
        raw = spool.read_bytes()
        self.texts = [text.decode() for text in raw.split(b"\0")[:-1]]
        assert outcome.documents == len(index) == len(self.texts)
        assert [content_digest(text.encode()) for text in self.texts] == index["digest"].tolist()
        assert index["bytes"].tolist() == [len(text.encode()) for text in self.texts]
        assert index["characters"].tolist() == [len(text) for text in self.texts]


def json_lines(*records: Any) -> bytes:
    return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)


@pytest.mark.parametrize("codec", CODECS)
def test_text_a_file_a_document(tmp_path: Path, codec: str) -> None:
    read = Read(tmp_path, "a.txt" + codec, CODECS[codec]("Zeile 1\nZeile 2 – ü 水\n".encode()))
    assert read.texts == ["Zeile 1\nZeile 2 – ü 水\n"]
    assert read.index["position"].tolist() == [1]
    assert not read.refused


@pytest.mark.parametrize("separator", ["%", "\n---\n", "<|doc|>"])
@pytest.mark.parametrize("chunk", [1, 3, 1 << 18])
def test_text_split_by_a_separator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, separator: str, chunk: int) -> None:
    monkeypatch.setattr(compression, "READ_BYTES", chunk)
    read = Read(tmp_path, "a.txt", separator.join(["one", "two two", " ", "three"]).encode(), separator=separator)
    assert read.texts == ["one", "two two", "three"]
    assert read.index["position"].tolist() == [1, 2, 4]
    assert read.refused == [(3, "empty")]
    assert Read(tmp_path, "b.txt", f"one{separator}".encode(), separator=separator).texts == ["one"]


@given(st.lists(st.text("ab-", max_size=6), max_size=6), st.integers(1, 5))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_separator_may_straddle_chunks(parts: list[str], chunk: int) -> None:
    whole = "--".join(parts).encode()
    chunks = [whole[at : at + chunk] for at in range(0, len(whole), chunk)]
    expected = whole.split(b"--")
    if not expected[-1]:
        expected.pop()
    assert list(lines._pieces(chunks, b"--", 1000)) == expected


def test_byte_order_mark_and_other_encodings(tmp_path: Path) -> None:
    assert Read(tmp_path, "a.txt", b"\xef\xbb\xbfhello").texts == ["hello"]
    assert Read(tmp_path, "b.txt", "grün".encode("latin-1"), encoding="latin-1").texts == ["grün"]
    read = Read(tmp_path, "c.jsonl", '{"text": "水"}\n'.encode("utf-16"), encoding="utf-16")
    assert read.texts == ["水"]
    assert Read(tmp_path, "d.txt", b"\xff\xff\xff", encoding="shift_jis").refused == [(0, "invalid_encoding")]


@pytest.mark.parametrize("codec", CODECS)
def test_json_lines_with_every_fault(tmp_path: Path, codec: str) -> None:
    content = (
        json_lines({"text": "good"}, {"text": None}, {"text": 3}, {"other": 1}, [1], {"text": ""}, {"text": " \t\n"})
        + b'{"text": "broken\n'
        + b"\n"
        + b'{"text": "\xff"}\n'
        + b'{"text": "lone \\ud800"}\n'
        + b'{"text": "nul \\u0000"}\n'
        + json_lines({"text": "x" * 200})
        + b'{"text": "no line feed at the end"}'
    )
    read = Read(tmp_path, "a.jsonl" + codec, CODECS[codec](content), max_document_bytes=100)
    assert read.texts == ["good", "no line feed at the end"]
    assert read.index["position"].tolist() == [1, 14]
    assert read.refused == [
        (2, "null_text"),
        (3, "text_not_a_string"),
        (4, "missing_text"),
        (5, "missing_text"),
        (6, "empty"),
        (7, "empty"),
        (8, "broken_json"),
        (10, "invalid_encoding"),
        (11, "broken_json"),
        (12, "nul_byte"),
        (13, "too_large"),
    ]
    assert all(len(text) <= 80 for text in read.excerpts)


def test_json_lines_with_ids_and_a_filter(tmp_path: Path) -> None:
    content = json_lines(
        {"body": "a", "key": "x", "lang": "de"},
        {"body": "b", "key": 7, "lang": "de"},
        {"body": "c", "key": None, "lang": "de"},
        {"body": "d", "lang": "de"},
        {"body": "e", "key": "y", "lang": "fr"},
    )
    read = Read(tmp_path, "a.ndjson", content, text_column="body", id_column="key", where={"lang": "de"})
    assert read.texts == ["a", "b"]
    assert read.index["identity"].tolist() == [identity_hash("x"), identity_hash("7")]
    assert read.refused == [(3, "missing_id"), (4, "missing_id")]
    assert read.filtered == 1


def test_a_huge_line_does_not_fill_memory(tmp_path: Path) -> None:
    content = b'{"text": "' + b"x" * (3 << 20) + b'"}\n' + json_lines({"text": "after"})
    read = Read(tmp_path, "a.jsonl", content, max_document_bytes=100)
    assert read.texts == ["after"]
    assert read.refused == [(1, "too_large")]


def test_csv_and_tsv(tmp_path: Path) -> None:
    content = 'id,text\n1,"two\nlines, ""quoted"""\n2,plain\n3\n4,\n5,bad \udcff\n6,last'.encode(
        "utf-8", "surrogateescape"
    )
    read = Read(tmp_path, "a.csv", content, id_column="id")
    assert read.texts == ['two\nlines, "quoted"', "plain", "last"]
    assert read.refused == [(3, "broken_csv"), (4, "empty"), (5, "invalid_encoding")]
    assert Read(tmp_path, "a.tsv", b"text\tn\na, b\t1\nc\t2\n", where={"n": 1}).texts == ["a, b"]
    assert Read(tmp_path, "b.csv", b"x,y\n1,2\n").refused == [(0, "missing_text")]
    assert Read(tmp_path, "c.csv", b"").refused == [(0, "empty")]
    assert Read(tmp_path, "d.csv", b'text\n"never closed\n').refused == [(0, "broken_csv")]
    assert Read(tmp_path, "e.csv", b"text\n" + b"x" * (1 << 18), max_document_bytes=9).refused == [(0, "too_large")]


def columnar(path: Path, kind: str, columns: dict[str, list[Any]]) -> bytes:
    table = pa.table(columns)
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=2)
    else:
        make = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
        with make(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    return path.read_bytes()


@pytest.mark.parametrize(("kind", "name"), [("parquet", "a.parquet"), ("stream", "a.arrow"), ("file", "b.arrow")])
def test_columnar_files(tmp_path: Path, kind: str, name: str) -> None:
    columns = {"id": ["a", "b", "c", None, "e"], "text": ["one", None, "three", "four", ""], "n": [1, 1, 2, 1, 1]}
    content = columnar(tmp_path / "made", kind, columns)
    read = Read(tmp_path, name, content, id_column="id", where={"n": 1})
    assert read.texts == ["one"]
    assert read.refused == [(2, "null_text"), (4, "missing_id"), (5, "empty")]
    assert read.filtered == 1
    assert Read(tmp_path, name, content, text_column="n").refused[0] == (1, "text_not_a_string")
    assert Read(tmp_path, name, content, text_column="no").refused == [(0, "missing_text")]
    assert Read(tmp_path, name, content[: len(content) // 2]).refused[-1][1] == "corrupt_file"
    assert Read(tmp_path, name, b"no such thing").refused == [(0, "corrupt_file")]


@pytest.mark.parametrize("codec", [".gz", ".bz2", ".xz", ".zst"])
def test_archives_that_are_cut_or_corrupt(tmp_path: Path, codec: str) -> None:
    content = json_lines(*({"text": f"document {number} {np.sqrt(number)}"} for number in range(300)))
    whole = CODECS[codec](content)
    assert len(Read(tmp_path, "a.jsonl" + codec, whole).texts) == 300
    assert len(Read(tmp_path, "a.jsonl" + codec, whole + CODECS[codec](content)).texts) == 600
    for cut in (1, len(whole) // 2, len(whole) - 1):
        read = Read(tmp_path, "a.jsonl" + codec, whole[:cut])
        assert (read.texts, read.refused) == ([], [(0, "corrupt_archive")])
    assert Read(tmp_path, "a.jsonl" + codec, b"not an archive at all").refused == [(0, "corrupt_archive")]
    assert Read(tmp_path, "a.jsonl" + codec, whole + b"trailing garbage").refused == [(0, "corrupt_archive")]


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(json_lines({"text": "before"}))
    file = CorpusFile("all", "a.jsonl", str(path), 0)
    seen = raw_fingerprint(file)
    path.write_bytes(json_lines({"text": "after"}))
    (outcome,), index = read_files([file], [seen], ReadOptions(), tmp_path / "spool")
    assert [refusal.reason for refusal in outcome.refused] == ["changed_while_read"]
    assert not len(index)
    assert (tmp_path / "spool").read_bytes() == b""


def test_files_share_a_spool_and_one_bad_file_leaves_no_trace(tmp_path: Path) -> None:
    files = []
    for name, content in [("a.txt", b"one"), ("b.jsonl.gz", gzip.compress(b"x")[:9]), ("c.txt", b"three")]:
        (tmp_path / name).write_bytes(content)
        files.append(CorpusFile("all", name, str(tmp_path / name), len(content)))
    raw = [raw_fingerprint(file) for file in files]
    outcomes, index = read_files(files, raw, ReadOptions(), tmp_path / "spool")
    assert [outcome.documents for outcome in outcomes] == [1, 0, 1]
    assert (tmp_path / "spool").read_bytes() == b"one\0three\0"
    assert len(index) == 2


@given(st.integers(1, 5), st.lists(st.one_of(st.text(max_size=20), st.none(), st.integers()), max_size=12))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_record_is_a_document_or_a_refusal(tmp_path: Path, batch: int, texts: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_BATCH_LINES", batch)
        check_every_record(tmp_path, texts)


def check_every_record(tmp_path: Path, texts: list[Any]) -> None:
    read = Read(tmp_path, "a.jsonl", b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts))
    assert len(read.texts) + len(read.refused) == len(texts)
    positions = [*read.index["position"].tolist(), *(position for position, _ in read.refused)]
    assert sorted(positions) == list(range(1, len(texts) + 1))
    good = [text for text in texts if isinstance(text, str) and text.strip() and "\0" not in text]
    assert read.texts == good
