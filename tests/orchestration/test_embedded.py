"""The embedded server's process and port, without waiting for Prefect."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlparse

import pytest

from flows.embedded import RESTARTS, EmbeddedServer


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def kill(server: EmbeddedServer) -> None:
    pid = server.pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: server.has_died or server.pid != pid)


def test_a_killed_server_comes_back_on_its_port_and_at_last_refuses_connections(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "prefect")
    try:
        port = urlparse(server.api_url).port
        assert port is not None
        for _ in range(RESTARTS):
            kill(server)
            assert not server.has_died
            socket.create_connection(("127.0.0.1", port), timeout=5).close()  # waits at the socket
        server.wait_until_healthy()
        kill(server)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
    finally:
        server.close()
