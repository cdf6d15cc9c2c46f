"""A real `tokenmill serve` and what a test wants to know of it: its API, its flow runs, the workspace's files."""

from __future__ import annotations

import base64
import json
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.commands import start
from tests.integration.test_whole_flow import only, read


class Server:
    """The Prefect API of a running `serve`, with the standard library alone."""

    def __init__(self, port: int, auth: str | None = None) -> None:
        self._base = f"http://127.0.0.1:{port}/api"
        self._headers = {"Content-Type": "application/json"}
        if auth is not None:
            self._headers["Authorization"] = f"Basic {base64.b64encode(auth.encode()).decode()}"

    def call(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._base}{path}", data, self._headers)
        for patience in (1, 2, 4, 8, 0):
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as error:
                if error.code != 503 or not patience:  # Prefect's word for a database that is busy: clients try again
                    raise
                error.close()
                time.sleep(patience)
        raise AssertionError

    def start_night(self, pipeline: str = "small", **parameters: Any) -> str:
        deployment = self.call("/deployments/name/retrain/on-demand")
        body = {"parameters": {"pipeline": pipeline, **parameters}}
        return str(self.call(f"/deployments/{deployment['id']}/create_flow_run", body)["id"])

    def state(self, flow_run: str) -> str:
        return str(self.call(f"/flow_runs/{flow_run}")["state"]["name"])

    def set_state(self, flow_run: str, **state: Any) -> None:
        self.call(f"/flow_runs/{flow_run}/set_state", {"state": state})

    def runs(self) -> list[dict[str, Any]]:
        """All flow runs that have a state, oldest first."""
        found = [run for run in self.call("/flow_runs/filter", {}) if run["state"]]
        return sorted(found, key=lambda run: str(run["created"]))

    def states(self) -> list[str]:
        return [run["state"]["name"] for run in self.runs()]


@contextmanager
def served(
    folder: Path, port: int, auth: str | None = None, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], Server]]:
    log = (folder / "serve.log").open("a")
    process = start(folder, "serve", "--port", str(port), "--files-port", "0", output=log, **environment)
    server = Server(port, auth)
    try:
        eventually(lambda: server.call("/deployments/name/retrain/on-demand"), process)
        yield process, server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        log.close()


def eventually(condition: Callable[[], Any], process: subprocess.Popen[str] | None = None, seconds: float = 240) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = condition()
        except OSError:
            found = None
        if found:
            return found
        assert process is None or process.poll() is None, "serve has ended"
        assert time.monotonic() < deadline, condition
        time.sleep(0.1)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def commits(folder: Path) -> list[int]:
    paths = folder.glob("workspace/runs/*/checkpoints/step-*/COMMIT")
    return sorted(int(path.parent.name.removeprefix("step-")) for path in paths)


def newest_invocation(folder: Path, pipeline: str = "small") -> dict[str, Any]:
    found: dict[str, Any] = read(max(folder.glob(f"workspace/invocations/*-{pipeline}-*/invocation.json")))
    return found


def run_file(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = read(only(folder, "workspace/runs/*/run.json"))
    return found


def a_new_commit(folder: Path) -> Callable[[], bool]:
    before = max(commits(folder), default=0)
    return lambda: max(commits(folder), default=0) > before


def stage_pid(folder: Path, invocation: dict[str, Any]) -> int:
    """Of the newest stage of an invocation."""
    from tokenmill.cost.ledger import read_records

    return int(next(read_records(folder / "workspace" / invocation["stages"][-1]["ledger"]))["pid"])


def weights(workspace: Path) -> bytes:
    return only(workspace, "runs/*/model/model.safetensors").read_bytes()
