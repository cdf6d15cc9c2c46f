"""Nights that nobody watches: a real `serve` with its server, and signals to its real processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.integration.commands import tokenmill, write_pipelines
from tests.integration.serving import (
    a_new_commit,
    commits,
    eventually,
    free_port,
    newest_invocation,
    run_file,
    served,
    stage_pid,
    weights,
)
from tests.integration.test_whole_flow import TRAINING, write_corpus

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

STEPS = 6000


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
        os.kill(stage_pid(tmp_path, newest_invocation(tmp_path)), signal.SIGKILL)
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
    assert weights(tmp_path / "workspace") == weights(whole)
