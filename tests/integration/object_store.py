"""A real S3 server (moto) on loopback, behind a proxy that answers with faults when a test says so."""

from __future__ import annotations

import http.client
import os
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
}


class FaultyProxy:
    """Passes requests on, or, one for each word of `faults`, answers `500`, `slow` (503), or cuts the connection
    before (`cut`) or after (`lost`) the request has reached the server. `down` cuts everything."""

    def __init__(self, host: str, port: int) -> None:
        self.faults: deque[str] = deque()
        self.down = False
        self.requests: list[str] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with suppress(ConnectionError):
                    super().handle_one_request()

            def _serve(self) -> None:
                body = self._body()
                proxy.requests.append(f"{self.command} {self.path}")
                fault = "cut" if proxy.down else proxy.faults.popleft() if proxy.faults else ""
                if fault == "cut":
                    self._cut()
                elif fault in ("500", "slow"):
                    status, code = (500, "InternalError") if fault == "500" else (503, "SlowDown")
                    text = f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
                    self._answer(status, [("Content-Type", "application/xml")], text)
                else:
                    self._pass_on(body, lose_answer=fault == "lost")

            def _pass_on(self, body: bytes, *, lose_answer: bool) -> None:
                connection = http.client.HTTPConnection(host, port, timeout=60)
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                data = answer.read()
                connection.close()
                if lose_answer:
                    self._cut()
                else:
                    self._answer(answer.status, answer.getheaders(), data)

            def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
                self.send_response_only(status)
                for name, value in headers:
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                length = str(len(data))
                if self.command == "HEAD":
                    length = {k.lower(): v for k, v in headers}.get("content-length", "0")
                    data = b""
                self.send_header("Content-Length", length)
                self.end_headers()
                self.wfile.write(data)

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length", 0)))
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                while self.rfile.readline().strip():
                    pass
                del self.headers["Transfer-Encoding"]
                return b"".join(parts)

            def _cut(self) -> None:
                self.close_connection = True
                with suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def object_store(bucket: str) -> Iterator[FaultyProxy]:
    """An S3 server with one bucket; `AWS_*` in the environment lead to its proxy."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    proxy = FaultyProxy(host, port)
    before = dict(os.environ)
    os.environ.update({**ENVIRONMENT, "AWS_ENDPOINT_URL": proxy.url})
    boto3.client("s3", endpoint_url=f"http://{host}:{port}").create_bucket(Bucket=bucket)
    try:
        yield proxy
    finally:
        os.environ.clear()
        os.environ.update(before)
        proxy.close()
        server.stop()
