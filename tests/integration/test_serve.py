"""Nights that nobody watches: a real `serve` with its server, and signals to its real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.commands import start, tokenmill, write_pipelines
from tests.integration.test_whole_flow import TRAINING, only, read, write_corpus

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

STEPS = 6000


class Server:
    """The Prefect API of a running `serve`, with the standard library alone."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}/api"

    def call(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._base}{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    def start_night(self) -> str:
        deployment = self.call("/deployments/name/retrain/on-demand")
        made = self.call(f"/deployments/{deployment['id']}/create_flow_run", {"parameters": {"pipeline": "small"}})
        return str(made["id"])

    def states(self) -> list[str]:
        """The names of all flow runs' states, oldest first."""
        runs = self.call("/flow_runs/filter", {"sort": "START_TIME_ASC"})
        return [run["state"]["name"] for run in sorted(runs, key=lambda run: run["created"])]


@contextmanager
def served(folder: Path, port: int) -> Iterator[tuple[subprocess.Popen[str], Server]]:
    log = (folder / "serve.log").open("a")
    process = start(folder, "serve", "--port", str(port), output=log)
    server = Server(port)
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


def newest_invocation(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = read(max(folder.glob("workspace/invocations/*/invocation.json")))
    return found


def run_file(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = read(only(folder, "workspace/runs/*/run.json"))
    return found


def a_new_commit(folder: Path) -> Callable[[], bool]:
    before = max(commits(folder), default=0)
    return lambda: max(commits(folder), default=0) > before


def test_a_night_survives_its_flow_and_its_serve_and_can_be_cancelled(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    write_pipelines(
        tmp_path, training={**TRAINING, "length": {"steps": STEPS}, "threads": 1}, checks={"max_refused_pct": 50}
    )
    port = free_port()
    with served(tmp_path, port) as (serve, server):
        server.start_night()
        eventually(lambda: commits(tmp_path), serve)
        # The flow's process is killed: the runner sees it at once, the automation starts the pipeline again.
        os.kill(newest_invocation(tmp_path)["pid"], signal.SIGKILL)
        eventually(lambda: "Crashed" in server.states(), serve)
        eventually(lambda: run_file(tmp_path)["attempts"] == 2, serve)
        eventually(a_new_commit(tmp_path), serve)
        # The stage's process is killed: its supervisor starts it again, in the same flow run.
        stage = [record for record in newest_invocation(tmp_path)["stages"] if record["stage"] == "train"][-1]
        os.kill(spawned_pid(tmp_path / "workspace" / stage["ledger"]), signal.SIGKILL)
        eventually(lambda: run_file(tmp_path)["attempts"] == 3, serve)
        eventually(a_new_commit(tmp_path), serve)
        # A person cancels: a valid checkpoint stays, and nothing goes on by itself.
        (running,) = (run for run in server.call("/flow_runs/filter", {}) if run["state"]["type"] == "RUNNING")
        server.call(f"/flow_runs/{running['id']}/set_state", {"state": {"type": "CANCELLING"}})
        eventually(lambda: run_file(tmp_path)["status"] == "cancelled", serve)
        eventually(lambda: server.states()[-1] == "Cancelled", serve)
        time.sleep(8)
        assert newest_invocation(tmp_path)["outcome"] == "cancelled"
        assert run_file(tmp_path)["attempts"] == 3
        # Started again by hand, and `serve` goes away in the middle.
        server.start_night()
        eventually(lambda: run_file(tmp_path)["attempts"] == 4, serve)
        eventually(a_new_commit(tmp_path), serve)
        serve.send_signal(signal.SIGTERM)
        serve.wait(60)
    assert newest_invocation(tmp_path)["outcome"] == "interrupted"
    assert run_file(tmp_path)["status"] == "open"
    with served(tmp_path, port) as (serve, server):
        eventually(lambda: run_file(tmp_path)["status"] == "completed", serve)
        eventually(lambda: server.states()[-1] == "Completed", serve)
    assert run_file(tmp_path)["committed_step"] == STEPS
    # The same pipeline without any interruption has the same weights.
    whole = tmp_path / "whole"
    tokenmill_whole = tokenmill(tmp_path, "run", "small", "--set", f"workspace={whole}")
    assert tokenmill_whole.returncode == 0, tokenmill_whole.stdout + tokenmill_whole.stderr
    weights = [
        only(folder, "runs/*/model/model.safetensors").read_bytes() for folder in (tmp_path / "workspace", whole)
    ]
    assert weights[0] == weights[1]


def spawned_pid(ledger: Path) -> int:
    from tokenmill.cost.ledger import read_records

    return int(next(read_records(ledger))["pid"])
