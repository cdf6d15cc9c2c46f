"""TensorBoards on loopback, one a workspace, each started when someone first asks for it; they end with `serve`."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
import urllib.request
from pathlib import Path
from types import TracebackType

from flows.board import board_command

START_SECONDS = 60.0


class Boards:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Path, tuple[subprocess.Popen[bytes], str]] = {}

    def __enter__(self) -> Boards:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, _ in self._running.values():
            process.terminate()
        for process, _ in self._running.values():
            process.wait()

    def url(self, workspace: Path) -> str:
        """Where the workspace's TensorBoard answers; starts it if none runs."""
        with self._lock:
            running = self._running.get(workspace)
            if running is None or running[0].poll() is not None:
                running = self._running[workspace] = _start(workspace / "runs")
        return running[1]


def _start(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = board_command(folder, port)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/"
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=1):
                break
        except OSError:
            time.sleep(0.2)
    return process, url
