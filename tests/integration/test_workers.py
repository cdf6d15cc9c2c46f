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
    write_pipelines(folder, training={**TRAINING, **training}, checks={"max_refused_pct": 50})
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


def wait_for_checkpoint(folder: Path, process: subprocess.Popen[str], after: int = 0) -> int:
    """The newest committed step, once it is beyond `after`."""
    while process.poll() is None:
        commits = folder.glob("workspace/runs/*/checkpoints/step-*/COMMIT")
        newest = max((int(path.parent.name.removeprefix("step-")) for path in commits), default=0)
        if newest > after:
            return newest
        time.sleep(0.1)
    raise AssertionError(process.communicate())


def test_two_workers_have_the_losses_of_one_whatever_happens_to_them(tmp_path: Path) -> None:
    alone = pipeline(tmp_path / "one", length={"steps": 400}, workers=1)
    two = pipeline(tmp_path / "two", length={"steps": 400}, workers=2)
    expected = tokenmill(alone, "run", "small")
    assert expected.returncode == 0, expected.stdout + expected.stderr

    running = start(two, "run", "small")
    step = wait_for_checkpoint(two, running)
    os.kill(training_processes(two)[1], signal.SIGTERM)  # taken away: all save, and the night starts them again
    step = wait_for_checkpoint(two, running, after=step + 1)
    os.kill(training_processes(two)[1], signal.SIGKILL)  # a crash
    out, err = running.communicate(timeout=300)
    assert running.returncode == 0, out + err

    ledgers = sorted(two.glob("workspace/runs/*/ledger/*.jsonl"))
    reaped = [record for path in ledgers for record in read_records(path) if record["kind"] == "reaped"]
    assert [record["reason"] for record in reaped] == ["interrupted", "killed", "completed"]
    assert json.loads(only(two, "workspace/runs/*/receipt.json").read_text())["balanced"]
    assert losses(two)[-1] == pytest.approx(losses(alone)[-1], rel=1e-3)
    summary = json.loads(only(two, "workspace/runs/*/summary.json").read_text())
    assert summary["devices"]["workers"] == 2
