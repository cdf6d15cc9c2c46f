"""The contract between supervisor and stage, with real processes and containers: result, words, SIGTERM, SIGKILL of
either side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tasks.runtime import ProcessRuntime, Runtime, StageCommand
from tasks.stopping import StopRequest
from tasks.supervisor import Attempt, Ending, Supervised, parse_line
from tests.containers.engine import chown_all, needs_engine
from tokenmill.cost.ledger import read_records
from tokenmill.pipelines import Pipeline
from tokenmill.protocol import LogLine, ProgressLine, StageName, StageSpec

ROOT = Path(__file__).parents[2]
PIPELINE = {
    "corpus": {"sources": [{"name": "notes", "root": "/nowhere"}]},
    "training": {"length": {"steps": 1}},
    "cost": "unpriced",
}


@pytest.fixture(autouse=True, params=["process", pytest.param("docker", marks=[pytest.mark.containers, needs_engine])])
def runtime_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment, so that a supervisor in a process of its own takes the same."""
    monkeypatch.setenv("TOKENMILL_TEST_RUNTIME", request.param)
    if request.param == "docker":
        monkeypatch.setenv("TOKENMILL_TEST_LOCK", str(request.getfixturevalue("image_lock")))


@dataclass
class Heard:
    """A listener that remembers, and may call back at a word."""

    on: dict[str, Any] = field(default_factory=dict)
    lines: list[LogLine | ProgressLine] = field(default_factory=list)

    def log(self, line: LogLine) -> None:
        self.lines.append(line)
        if line.message in self.on:
            self.on[line.message]()

    def progress(self, line: ProgressLine) -> None:
        self.lines.append(line)


def attempt(folder: Path, order: str = "complete", grace_seconds: float = 10.0, **more: Any) -> Attempt:
    """A start of the fake prepare stage that follows `order`."""
    (folder / "script").mkdir(exist_ok=True)
    (folder / "script" / "prepare").write_text(order)
    (folder / "notes").mkdir(exist_ok=True)
    spec = StageSpec(
        stage=StageName.PREPARE, pipeline_name="p", pipeline=PIPELINE, invocation_id="i", ledger="ledger.jsonl"
    )
    (folder / "SPEC.json").write_text(spec.model_dump_json())
    roots = {"workspace": str(folder), "corpus.notes": str(folder / "notes")}
    variables = {"PYTHONPATH": str(ROOT)}
    if os.environ.get("TOKENMILL_TEST_RUNTIME", "process") == "docker":
        (folder / "ledger.jsonl").touch()
        chown_all(folder)
        roots["code"] = str(ROOT)
        variables = {"PYTHONPATH": "/roots/code"}
    command = StageCommand(StageName.PREPARE, folder / "SPEC.json", roots, variables)
    return Attempt(command, folder / "ledger.jsonl", {"attempt_id": "i/1"}, grace_seconds, **more)


def supervise(what: Attempt, stop: StopRequest | None = None, heard: Heard | None = None) -> Ending:
    return Supervised(runtime(what.command.spec.parent), what).wait(
        StopRequest() if stop is None else stop, heard or Heard()
    )


def runtime(folder: Path, **docker: Any) -> Runtime:
    package = "tests.orchestration.fake_stages"
    if os.environ.get("TOKENMILL_TEST_RUNTIME", "process") == "process":
        return ProcessRuntime(package)
    from tasks.docker_runtime import DockerRuntime

    places = {"workspace": str(folder), "image": {"lock": os.environ["TOKENMILL_TEST_LOCK"]}}
    return DockerRuntime(Pipeline.model_validate({**PIPELINE, **places, "runtime": {"docker": docker}}), "p", package)


def kinds(folder: Path) -> list[str]:
    return [record["kind"] for record in read_records(folder / "ledger.jsonl")]


def test_a_result_comes_back_with_the_stages_words_and_a_ledger(tmp_path: Path) -> None:
    heard = Heard()
    ending = supervise(attempt(tmp_path), heard=heard)
    assert (ending.exit_code, ending.reason, ending.stop_asked) == (0, "completed", False)
    assert ending.result is not None
    assert ending.result.outputs["documents"] == 0
    assert next(line for line in heard.lines if isinstance(line, ProgressLine)).unit == "documents"
    records = list(read_records(tmp_path / "ledger.jsonl"))
    assert records[0]["kind"] == "spawned"
    assert records[0]["attempt_id"] == "i/1"
    assert records[-1]["kind"] == "reaped"
    assert records[-1]["exit_code"] == 0


@pytest.mark.parametrize(
    ("order", "code", "reason"),
    [("fail", 1, "crashed"), ("mend", 2, "user_error"), ("preempt", 75, "interrupted"), ("die", -9, "killed")],
)
def test_each_exit_code_has_its_meaning(tmp_path: Path, order: str, code: int, reason: str) -> None:
    ending = supervise(attempt(tmp_path, order))
    assert (ending.exit_code, ending.reason) == (code, reason)
    assert list(read_records(tmp_path / "ledger.jsonl"))[-1]["reason"] == reason


def test_a_stop_is_passed_on_once_and_the_stage_ends_by_itself(tmp_path: Path) -> None:
    stop = StopRequest()
    ending = supervise(attempt(tmp_path, "wait"), stop, Heard(on={"waiting": lambda: stop.interrupt("Ctrl-C")}))
    assert (ending.exit_code, ending.reason, ending.stop_asked) == (75, "interrupted", True)
    assert kinds(tmp_path).count("event") >= 1
    assert "reaped" in kinds(tmp_path)


def test_a_stage_that_does_not_end_is_killed_after_the_grace(tmp_path: Path) -> None:
    stop = StopRequest()
    what = attempt(tmp_path, "deaf", grace_seconds=0.5)
    ending = supervise(what, stop, Heard(on={"waiting": lambda: stop.interrupt("SIGTERM")}))
    assert (ending.exit_code, ending.reason) == (-9, "killed")
    assert "killed" in [record.get("name") for record in read_records(tmp_path / "ledger.jsonl")]


def test_a_second_ctrl_c_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    stop = StopRequest()

    def twice() -> None:
        stop.interrupt("Ctrl-C")
        threading.Timer(0.5, lambda: stop.interrupt("Ctrl-C")).start()

    ending = supervise(attempt(tmp_path, "deaf", grace_seconds=600), stop, Heard(on={"waiting": twice}))
    assert ending.exit_code == -9


def test_stopping_by_hand_is_seen_and_told_from_an_interruption(tmp_path: Path) -> None:
    asked = threading.Event()
    stop = StopRequest()
    ending = supervise(attempt(tmp_path, "wait", asked=asked.is_set), stop, Heard(on={"waiting": asked.set}))
    assert ending.exit_code == 75
    assert stop.cancelled


def test_heartbeats_come_at_least_once_a_second(tmp_path: Path) -> None:
    stop = StopRequest()
    later = Heard(on={"waiting": lambda: threading.Timer(2.5, lambda: stop.interrupt("enough")).start()})
    supervise(attempt(tmp_path, "wait"), stop, later)
    of_supervisor = ("spawned", "heartbeat", "reaped")
    beats = [r["monotonic"] for r in read_records(tmp_path / "ledger.jsonl") if r["kind"] in of_supervisor]
    assert len(beats) >= 5
    assert beats == sorted(beats)


def test_a_stage_saves_and_ends_when_its_supervisor_is_killed(tmp_path: Path) -> None:
    attempt(tmp_path, "wait")
    code = f"""
from tests.orchestration.test_supervisor import *
supervise(attempt(Path({str(tmp_path)!r}), "wait"), heard=Heard(on={{"waiting": lambda: print("now", flush=True)}}))
"""
    supervisor = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert supervisor.stdout is not None
    with supervisor, supervisor.stdout:
        assert supervisor.stdout.readline() == "now\n"
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
    spawned = next(read_records(tmp_path / "ledger.jsonl"))
    deadline = time.monotonic() + 30
    while _lives(spawned["pid"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert json.loads((tmp_path / "RESULT.json").read_text())["status"] == "interrupted"
    assert "reaped" not in kinds(tmp_path)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_words_that_are_not_of_the_protocol_become_log_lines_and_noise_is_dropped() -> None:
    assert parse_line(b"\n", "INFO") is None
    assert (
        parse_line(b"2026-01-01 I external/x.cc:1] oneDNN custom operations are on. You may see\n", "WARNING") is None
    )
    line = parse_line(b"Traceback (most recent call last):\n", "WARNING")
    assert isinstance(line, LogLine)
    assert (line.level, line.message) == ("WARNING", "Traceback (most recent call last):")
    broken = parse_line(b'{"type": "progress"}\n', "INFO")
    assert isinstance(broken, LogLine)
    assert isinstance(
        parse_line(b'{"type":"progress","label":"a","done":1,"total":null,"unit":"rows"}', "INFO"), ProgressLine
    )
