"""The embedded server's process and port, without waiting for Prefect."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from urllib.parse import urlparse

import pytest

from flows.embedded import EmbeddedServer


def test_a_dead_server_refuses_connections_instead_of_keeping_them_waiting(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "prefect")
    try:
        port = urlparse(server.api_url).port
        assert port is not None
        socket.create_connection(("127.0.0.1", port), timeout=5).close()  # queued while it comes up
        os.kill(server.pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while not server.has_died and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
    finally:
        server.close()
