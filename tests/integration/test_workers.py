"""`training.workers: 2` on loopback: the losses of one, a worker taken away, a worker killed, and the run's end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.commands import start, tokenmill, write_pipelines
from tests.integration.test_whole_flow import TRAINING, only, write_corpus
from tokenmill.cost.ledger import read_records

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def pipeline(folder: Path, **training: Any) -> Path:
    folder.mkdir(exist_ok=True)
    write_corpus(folder)
    write_pipelines(folder, training={**TRAINING, "length": {"steps": 800}, **training}, checks={"max_refused_pct": 50})
    return folder


def losses(folder: Path) -> list[float]:
    lines = only(folder, "workspace/runs/*/evaluation.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def training_processes(folder: Path) -> list[int]:
    """Ids of the running train stages over this folder's workspace, by worker."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                told = dict(
                    item.split(b"=", 1) for item in (entry / "environ").read_bytes().split(b"\0") if b"=" in item
                )
            except OSError:
                continue
            if b"tokenmill.stages.train" in command and str(folder).encode() in b"".join(command):
                found.append((json.loads(told[b"TF_CONFIG"])["task"]["index"], int(entry.name)))
    return [pid for _, pid in sorted(found)]


def newest_step(folder: Path) -> int:
    commits = folder.glob("workspace/runs/*/checkpoints/step-*/COMMIT")
    return max((int(path.parent.name.removeprefix("step-")) for path in commits), default=0)


def wait_for_progress(folder: Path, night: subprocess.Popen[str], attempt: int) -> None:
    """Until that attempt has committed a step of its own."""
    ledger = f"workspace/runs/*/ledger/{attempt:04d}.jsonl"
    while not list(folder.glob(ledger)):
        assert night.poll() is None
        time.sleep(0.1)
    before = newest_step(folder)
    while newest_step(folder) <= before:
        assert night.poll() is None
        time.sleep(0.1)


def endings(folder: Path) -> list[str]:
    ledgers = sorted(folder.glob("workspace/runs/*/ledger/*.jsonl"))
    return [record["reason"] for path in ledgers for record in read_records(path) if record["kind"] == "reaped"]


def test_workers_have_the_losses_of_one_whatever_happens_to_them(tmp_path: Path) -> None:
    alone, crew = pipeline(tmp_path / "one"), pipeline(tmp_path / "crew", workers=2)
    expected = tokenmill(alone, "run", "small")
    assert expected.returncode == 0, expected.stdout + expected.stderr

    night = start(crew, "run", "small")
    wait_for_progress(crew, night, attempt=1)
    os.kill(training_processes(crew)[1], signal.SIGTERM)  # taken away: all save, and start again
    wait_for_progress(crew, night, attempt=2)
    os.kill(training_processes(crew)[1], signal.SIGKILL)  # a crash: the chief's end is bounded
    night.terminate()
    night.communicate(timeout=60)
    assert endings(crew) == ["interrupted", "killed"]

    pipeline(crew, workers=1)
    done = tokenmill(crew, "run", "small")
    assert done.returncode == 0, done.stdout + done.stderr
    assert endings(crew)[-1] == "completed"
    assert json.loads(only(crew, "workspace/runs/*/receipt.json").read_text())["balanced"]
    assert losses(crew)[-1] == pytest.approx(losses(alone)[-1], rel=1e-3)
