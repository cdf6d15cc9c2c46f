"""A tokenizer by hub name. A small hub on loopback stands in for the real one, which no test can reach."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from small_mill import make_texts

from tokenmill.tokens.make_tokenizer import pin_trained
from tokenmill.tokens.settings import TokenizerSettings
from tokenmill.tokens.tokenizer import Tokenizer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
IMPORT = """
import sys
from pathlib import Path
from tokenmill.errors import UserError
from tokenmill.tokens.make_tokenizer import import_tokenizer
from tokenmill.tokens.settings import TokenizerSettings
settings = TokenizerSettings(source="mill/house", revision=sys.argv[2])
try:
    tokenizer = import_tokenizer(Path(sys.argv[1]), settings, special_tokens_are_text=True)
    print(tokenizer.encode_batch(["grain"])[0].tolist())
except UserError as error:
    print("UserError:", error)
"""


class Hub(ThreadingHTTPServer):
    daemon_threads = True
    files: dict[str, bytes]
    asked: list[str]


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        prefix = f"/mill/house/resolve/{COMMIT}/"
        content = self.server.files.get(self.path.removeprefix(prefix)) if self.path.startswith(prefix) else None
        if content is None:
            self.send_response(404)
            known = f"/{COMMIT}" in self.path
            self.send_header("X-Error-Code", "EntryNotFound" if known else "RevisionNotFound")
            content = b""
        else:
            self.send_response(200)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[Hub, Tokenizer]]:
    texts = [text.encode() for text in make_texts(200)]
    settings = TokenizerSettings(vocab_size=400)
    tokenizer = pin_trained(tmp_path / "made", texts, settings, special_tokens_are_text=True)
    server = Hub(("127.0.0.1", 0), Handler)
    server.files = {
        "tokenizer.json": tokenizer.raw,
        "tokenizer_config.json": b'{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}',
    }
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server, tokenizer
    server.shutdown()
    server.server_close()


def imported(hub: Hub, folder: Path, revision: str) -> str:
    environment = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(folder / "home")}
    command = [sys.executable, "-c", IMPORT, str(folder / "pinned"), revision]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.integration
def test_a_hub_name_is_loaded_at_its_pinned_commit(hub: tuple[Hub, Tokenizer], tmp_path: Path) -> None:
    server, tokenizer = hub
    assert imported(server, tmp_path, COMMIT) == str(tokenizer.encode_batch(["grain"])[0].tolist())
    assert server.asked
    assert all("main" not in path for path in server.asked)


@pytest.mark.integration
def test_a_commit_that_the_hub_does_not_have_is_a_sentence(hub: tuple[Hub, Tokenizer], tmp_path: Path) -> None:
    said = imported(hub[0], tmp_path, "f" * 40)
    assert said.startswith("UserError: tokenizer.source: 'mill/house' cannot be loaded:")
    assert "\n" not in said
