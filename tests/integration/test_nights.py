"""Nights that meet, fail, die or lose their machine under a real `serve`: `make test-nights` (minutes)."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.embedded import EmbeddedServer
from tests.integration.commands import start, tokenmill, write_pipelines
from tests.integration.serving import (
    Server,
    commits,
    eventually,
    free_port,
    newest_invocation,
    served,
    stage_pid,
    weights,
)
from tests.integration.test_whole_flow import TRAINING, write_corpus

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1500)]

CHECKS = {"max_refused_pct": 50}


@pytest.fixture
def received() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A webhook receiver on loopback: its URL, and what it was sent."""
    messages: list[dict[str, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", messages
    server.shutdown()
    server.server_close()
    thread.join()


def add_pipeline(folder: Path, name: str, **changes: Any) -> None:
    """A pipeline beside `small`, like it."""
    path = folder / "pipelines.yaml"
    content = yaml.safe_load(path.read_text())
    content["pipelines"][name] = {**content["pipelines"]["small"], **changes}
    path.write_text(yaml.safe_dump(content))


def logs(server: Server, flow_run: str) -> str:
    found = server.call("/logs/filter", {"logs": {"flow_run_id": {"any_": [flow_run]}}})
    return "\n".join(line["message"] for line in found)


def test_nights_that_meet_fail_and_die(tmp_path: Path, received: tuple[str, list[dict[str, Any]]]) -> None:
    url, messages = received
    write_corpus(tmp_path)
    write_pipelines(
        tmp_path, training={**TRAINING, "length": {"steps": 9000}, "threads": 1}, checks=CHECKS, notify={"webhook": url}
    )
    add_pipeline(tmp_path, "minutely", workspace="./second", schedule={"cron": "* * * * *"})
    with served(tmp_path, free_port()) as (serve, server):
        # The schedule comes round while a night that a person started runs: it is skipped, and says so.
        first = server.start_night("minutely")
        skipped = eventually(lambda: [run for run in server.runs() if run["state"]["name"] == "Skipped"], serve)[0]
        assert skipped["auto_scheduled"]
        assert "is running already" in skipped["state"]["message"]
        # With `wait` the second one runs when the first has ended.
        second = server.start_night("minutely", settings=["schedule.when_running=wait"])
        eventually(lambda: "waiting for its end" in logs(server, second), serve)
        assert server.state(first) == "Running"
        server.set_state(first, type="CANCELLING")
        eventually(lambda: server.state(first) == "Cancelled", serve)
        # The next one by schedule may have been quicker to go on with the run.
        eventually(lambda: server.state(second) in ("Completed", "AlreadyTrained"), serve)
        # A night with nothing new ends in seconds, costs no training, and says so.
        trained = eventually(lambda: [run for run in server.runs() if run["state"]["name"] == "AlreadyTrained"], serve)
        assert "nothing new" in trained[0]["state"]["message"]
        assert trained[0]["total_run_time"] < 120
        # A night that fails tells someone.
        wrong = server.start_night("small", settings=["checks.suite=own.py"])
        eventually(lambda: messages, serve)
        assert messages[0]["subject"] == "tokenmill, small: failure"
        assert "UserError" in messages[0]["body"]
        assert "own.py' does not exist" in messages[0]["body"]
        # What was wrong is mended, and the same flow run is retried, as the UI's button does.
        (tmp_path / "own.py").write_text("def suite():\n    return []\n")
        server.set_state(wrong, type="SCHEDULED", name="AwaitingRetry")
        eventually(lambda: server.state(wrong) == "Completed", serve)
        assert server.call(f"/flow_runs/{wrong}")["run_count"] == 2
        # A flow that dies at each start is not started again for ever.
        server.start_night("small", overrides={"seed": 5})
        pids: set[int] = set()

        def three_killed() -> bool:
            found = newest_invocation(tmp_path)
            if found["outcome"] == "running" and found["stages"] and found["pid"] not in pids:
                pids.add(found["pid"])
                os.kill(found["pid"], signal.SIGKILL)
            return len(pids) == 3

        eventually(three_killed, serve)
        eventually(lambda: any("died 3 times" in str(run["state"]["message"]) for run in server.runs()), serve)
        runs = len(server.runs())
        time.sleep(10)
        of_small = [run for run in server.runs()[runs:] if run["parameters"].get("pipeline") == "small"]
        assert not of_small


def test_a_lost_machine_is_noticed_and_a_healthy_night_is_not_taken_for_lost(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    write_pipelines(tmp_path, training={**TRAINING, "length": {"steps": 6000}, "threads": 1}, checks=CHECKS)
    add_pipeline(
        tmp_path,
        "long",
        workspace="./second",
        training={**TRAINING, "length": {"steps": 9_000_000}, "threads": 1, "checkpoint": {"every_seconds": 30}},
    )
    port = free_port()
    prefect = EmbeddedServer(tmp_path / "prefect", ui_port=port)
    try:
        prefect.wait_until_healthy()
        with served(tmp_path, port, PREFECT_API_URL=prefect.api_url) as (serve, server):
            begun = time.monotonic()
            # From the command line: the runner's end is not its own.
            with (tmp_path / "long.log").open("w") as log:
                alive = start(tmp_path, "run", "long", output=log, PREFECT_API_URL=prefect.api_url)
            healthy = eventually(server.runs, serve)[0]["id"]
            lost = server.start_night("small")
            eventually(lambda: commits(tmp_path), serve)
            # The machine of `small` is gone: its runner, its flow and its stage at once, without a word.
            invocation = newest_invocation(tmp_path)
            for pid in (serve.pid, invocation["pid"], stage_pid(tmp_path, invocation)):
                os.kill(pid, signal.SIGKILL)
            serve.wait()
        assert server.state(lost) == "Running"
        eventually(lambda: server.state(lost) == "Crashed")
        assert "no heartbeat" in server.call(f"/flow_runs/{lost}")["state"]["message"]
        again = eventually(lambda: [run for run in server.runs() if run["state"]["type"] == "SCHEDULED"])[0]
        assert again["parameters"]["pipeline"] == "small"
        with served(tmp_path, port, PREFECT_API_URL=prefect.api_url) as (serve, server):
            eventually(lambda: server.state(again["id"]) == "Completed", serve)
            # Three windows of silence have passed over the healthy one.
            while time.monotonic() < begun + 3 * 90 + 15:
                assert server.state(healthy) == "Running"
                time.sleep(1)
            stopped = tokenmill(tmp_path, "stop", "long")
            assert stopped.returncode == 0, stopped.stderr
            assert alive.wait(120) == 0
            assert server.state(healthy) == "Cancelled"
    finally:
        prefect.close()
    whole = tokenmill(tmp_path, "run", "small", "--set", f"workspace={tmp_path / 'whole'}")
    assert whole.returncode == 0, whole.stderr
    assert weights(tmp_path / "workspace") == weights(tmp_path / "whole")
