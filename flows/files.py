"""The files that Prefect's UI links to: reports, Data Docs and profiles, on loopback and read-only.

Browsers refuse `file:` links from a page of a server, so `serve` serves these folders, and no others:

    /<pipeline>/runs/<id>/{report,profile}/...        /<pipeline>/invocations/<id>/report/...
    /<pipeline>/validations/<snapshot>/<rules>/{report.html,data_docs/...}
    /<pipeline>/tensorboard                           starts a TensorBoard when it is first asked for, and goes there
"""

from __future__ import annotations

import html
import mimetypes
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from flows.boards import Boards
from tokenmill.errors import UserError
from tokenmill.workspace import Workspace

LOOPBACK = "127.0.0.1"
_FOLDERS = {("runs", "report"), ("runs", "profile"), ("invocations", "report")}
"""Where, and the folder below an id there."""


def find_file(root: Path, parts: list[str]) -> Path | None:
    """The file behind a path below a workspace, if it is one that may be seen: never outside its folder."""
    if len(parts) < 4 or any(part.startswith(".") or not part or "\0" in part for part in parts):
        return None
    of_a_validation = parts[0] == "validations" and (parts[3] == "data_docs" or parts[3:] == ["report.html"])
    if (parts[0], parts[2]) not in _FOLDERS and not of_a_validation:
        return None
    folder = root.joinpath(*parts[:3])
    path = root.joinpath(*parts)
    path = path / "index.html" if path.is_dir() else path
    whole = path.resolve()
    # A link inside the folder must not lead out of it.
    return whole if whole.is_file() and whole.is_relative_to(folder.resolve()) else None


class _Handler(BaseHTTPRequestHandler):
    server_version = "tokenmill"
    sys_version = ""

    def __init__(self, roots: Mapping[str, Path], boards: Boards, *arguments: object) -> None:
        self._roots = roots
        self._boards = boards
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        root = self._roots.get(parts[0])
        path = None if root is None else find_file(root, parts[1:])
        # Another name for this address in a browser is a page of someone else's that looks in.
        if urlsplit(f"//{self.headers.get('Host', '')}").hostname not in (LOOPBACK, "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN)
        elif parts == [""]:
            self._send(self._index().encode(), "text/html; charset=utf-8", body=body)
        elif root is not None and parts[1:] == ["tensorboard"]:
            self.send_response(HTTPStatus.FOUND)
            self.send_header("Location", self._boards.url(root))
            self.end_headers()
        elif path is None:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self._send_file(path, body=body)

    def _send_file(self, path: Path, *, body: bool) -> None:
        with path.open("rb") as file:
            self._head(_content_type(path), path.stat().st_size)
            if body:
                shutil.copyfileobj(file, self.wfile)

    def _send(self, content: bytes, kind: str, *, body: bool) -> None:
        self._head(kind, len(content))
        if body:
            self.wfile.write(content)

    def _head(self, kind: str, length: int) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()

    def _index(self) -> str:
        """Each pipeline's reports, newest first."""
        return "<!doctype html><title>tokenmill</title>" + "".join(
            f"<h1>{html.escape(name)}</h1><p><a href='/{name}/tensorboard'>TensorBoard</a></p><ul>"
            + "".join(f"<li><a href='/{name}/{quote(path)}'>{html.escape(path)}</a></li>" for path in _reports(root))
            + "</ul>"
            for name, root in sorted(self._roots.items())
        )

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def _content_type(path: Path) -> str:
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind


def _reports(root: Path) -> Iterator[str]:
    found = [path for where in ("runs", "invocations") for path in (root / where).glob("*/report/report.html")]
    for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True):
        yield Workspace(root).relative(path)


@contextmanager
def served_files(roots: Mapping[str, Path], port: int) -> Iterator[str]:
    """Serve the workspaces of pipelines in this block; the base URL. Port 0 takes a free one. `UserError` if taken."""
    with Boards() as boards:
        try:
            server = ThreadingHTTPServer((LOOPBACK, port), partial(_Handler, roots, boards))
        except OSError as error:
            raise UserError(
                f"port {port} cannot be used ({error.strerror}); choose another with --files-port"
            ) from None
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://{LOOPBACK}:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
