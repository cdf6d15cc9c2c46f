"""Corpora on servers: an S3 server (moto) and a plain web server on loopback, both really spoken to."""

from __future__ import annotations

import functools
import gzip
import json
import os
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.tokens.small_mill import Mill, make_texts
from tokenmill.corpus.files import list_files, raw_fingerprint
from tokenmill.corpus.options import ReadOptions
from tokenmill.corpus.reading import read_files
from tokenmill.corpus.refusals import Reason
from tokenmill.errors import UserError
from tokenmill.workspace import Workspace

pytestmark = pytest.mark.integration

BUCKET = f"mill-{os.getpid()}"
TEXTS = make_texts(60, longest=20)


def write_corpus(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"text": text}).encode() for text in TEXTS]
    (folder / "a.jsonl").write_bytes(b"\n".join(lines[:20]))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(b"\n".join(lines[20:40]), mtime=0))
    pq.write_table(pa.table({"text": TEXTS[40:]}), folder / "c.parquet")
    (folder / "ignored.bin").write_bytes(b"\0")


def mill_on(folder: Path, root: str) -> Mill:
    mill = Mill(folder / "corpus", Workspace.open(str(folder / "workspace")))
    mill.corpus = {"sources": [{"name": "all", "root": root, "include": ["*.jsonl", "*.gz", "*.parquet"]}]}
    return mill


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The snapshot of the same files on this disk."""
    folder = tmp_path_factory.mktemp("here")
    write_corpus(folder / "corpus")
    return mill_on(folder, str(folder / "corpus")).prepare().snapshot


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    system = fsspec.filesystem("s3", skip_instance_cache=True)
    system.mkdir(BUCKET)
    yield system
    system.rm(BUCKET, recursive=True)
    server.stop()
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def test_a_corpus_on_s3_gives_the_same_snapshot_and_is_known_again_by_its_etags(
    s3: Any, here: str, tmp_path: Path
) -> None:
    write_corpus(tmp_path / "files")
    s3.put(str(tmp_path / "files") + "/", f"{BUCKET}/corpus/", recursive=True)
    mill = mill_on(tmp_path, f"s3://{BUCKET}/corpus")
    first = mill.prepare()
    assert first.snapshot == here
    assert mill.prepare().built_shards == 0
    # The same size, another content: only the ETag tells.
    changed = (tmp_path / "files" / "a.jsonl").read_bytes().replace(b"mill", b"MILL", 1)
    s3.pipe(f"{BUCKET}/corpus/a.jsonl", changed)
    assert mill.prepare().snapshot != here


def test_an_object_that_changes_between_listing_and_reading_is_refused(s3: Any, tmp_path: Path) -> None:
    write_corpus(tmp_path / "files")
    s3.put(str(tmp_path / "files") + "/", f"{BUCKET}/corpus/", recursive=True)
    source = mill_on(tmp_path, f"s3://{BUCKET}/corpus").request().corpus.sources[0]
    files = list_files(source, source.root).files
    raw = [raw_fingerprint(file) for file in files]
    # One that is read as a stream, and one by random access.
    s3.pipe(f"{BUCKET}/corpus/a.jsonl", (tmp_path / "files" / "a.jsonl").read_bytes() + b"\n")
    pq.write_table(pa.table({"text": TEXTS[41:]}), tmp_path / "files" / "c.parquet")
    s3.put_file(str(tmp_path / "files" / "c.parquet"), f"{BUCKET}/corpus/c.parquet")
    outcomes, _ = read_files(files, raw, ReadOptions.of(source, 1 << 20), tmp_path / "spool")
    reasons = [[refusal.reason for refusal in outcome.refused] for outcome in outcomes]
    assert reasons == [[Reason.CHANGED_WHILE_READ], [], [Reason.CHANGED_WHILE_READ]]


def test_a_bucket_that_is_not_there_is_named(s3: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"corpus source 'all': .*s3://nobodys/corpus"):
        mill_on(tmp_path, "s3://nobodys/corpus").prepare()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    write_corpus(tmp_path / "site" / "corpus")
    handler = functools.partial(Quiet, directory=str(tmp_path / "site"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_corpus_on_a_web_server_gives_the_same_snapshot(web: str, here: str, tmp_path: Path) -> None:
    mill = mill_on(tmp_path, f"{web}/corpus/")
    assert mill.prepare().snapshot == here
    assert mill.prepare().built_shards == 0


def test_one_file_of_a_web_server(web: str, tmp_path: Path) -> None:
    mill = mill_on(tmp_path, f"{web}/corpus/b.jsonl.gz")
    assert mill.prepare().manifest.documents_kept == 20


def test_a_page_that_is_not_there_is_named(web: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"corpus source 'all': .*/nowhere"):
        mill_on(tmp_path, f"{web}/nowhere/").prepare()
