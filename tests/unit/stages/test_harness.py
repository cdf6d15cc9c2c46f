"""The stage protocol from outside: real processes, real signals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tokenmill.cost.ledger import read_records
from tokenmill.protocol import ExitCode

PIPELINE = {
    "corpus": {"sources": [{"name": "notes", "root": "/nowhere"}]},
    "training": {"length": {"steps": 1}},
    "cost": "unpriced",
}
PREAMBLE = """
import hashlib, os, time
from tokenmill.errors import Interrupted, UserError
from tokenmill.protocol import StageName, StageResult
from tokenmill.stages.harness import main

def work(context):
{body}

main(StageName.PREPARE, work)
"""


class Stage:
    """A stage process of the test's own."""

    def __init__(self, folder: Path, body: str) -> None:
        self.folder = folder
        spec = {
            "stage": "prepare",
            "pipeline_name": "p",
            "pipeline": PIPELINE,
            "invocation_id": "i",
            "ledger": "ledger.jsonl",
            "inputs": {"n": 7},
        }
        (folder / "SPEC.json").write_text(json.dumps(spec))
        script = folder / "stage.py"
        script.write_text(PREAMBLE.format(body=textwrap.indent(textwrap.dedent(body), "    ")))
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(folder / "SPEC.json"), "--root", f"workspace={folder}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, text: str) -> list[dict[str, Any]]:
        assert self.process.stdout
        lines = []
        for line in self.process.stdout:
            lines.append(json.loads(line))
            if text in line:
                return lines
        raise AssertionError(f"the stage ended without saying {text!r}: {lines}")

    def end(self) -> tuple[int, list[dict[str, Any]]]:
        """Exit code and the JSON lines not yet read."""
        assert self.process.stdout
        lines = [json.loads(line) for line in self.process.stdout.read().splitlines()]
        return self.process.wait(timeout=60), lines

    @property
    def result(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.folder / "RESULT.json").read_bytes())
        return loaded

    def ledger(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in read_records(self.folder / "ledger.jsonl") if record["kind"] == kind]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream
            stream.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Any]:
    started: list[Stage] = []

    def start(body: str) -> Stage:
        started.append(Stage(tmp_path, body))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_libraries_that_talk_at_info_are_not_passed_on(stage: Any) -> None:
    one = stage("""
        import logging
        library = logging.getLogger("great_expectations.somewhere")
        library.setLevel(logging.INFO)
        library.info("my inner life")
        library.warning("something is wrong")
        logging.getLogger("tokenmill.tokens").info("ours")
        return StageResult(status="completed", outputs={})
    """)
    code, lines = one.end()
    assert code == ExitCode.DONE
    assert [line["message"] for line in lines if line["type"] == "log"] == ["something is wrong", "ours"]


def test_a_stage_gets_its_inputs_and_writes_its_result(stage: Any) -> None:
    one = stage("""
        for done in range(1, 4):
            context.progress("rows", done, 3, "rows")
        context.log.info("ready")
        return StageResult(status="completed", outputs={"n": context.spec.inputs["n"] + 1})
    """)
    code, lines = one.end()
    assert code == ExitCode.DONE
    assert one.result == {"status": "completed", "outputs": {"n": 8}, "message": ""}
    assert [line["message"] for line in lines if line["type"] == "log"] == ["ready"]
    assert [line["done"] for line in lines if line["type"] == "progress"][-1] == 3


def test_what_the_user_must_mend_is_one_sentence_and_exit_code_2(stage: Any) -> None:
    one = stage("""raise UserError("corpus.sources.0.include: '*.md' matches no file; mend the glob")""")
    code, lines = one.end()
    assert code == ExitCode.USER_ERROR
    assert [line["message"] for line in lines] == ["corpus.sources.0.include: '*.md' matches no file; mend the glob"]
    assert one.result["outputs"] == {"user_error": True}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("raise UserError('the disk is full: free some space')", ExitCode.USER_ERROR),
        ("return StageResult(status='completed')", ExitCode.CRASHED),
    ],
)
def test_a_result_that_cannot_be_written_is_said_in_a_sentence(
    stage: Any, tmp_path: Path, body: str, expected: ExitCode
) -> None:
    (tmp_path / "RESULT.json").mkdir()
    code, lines = stage(body).end()
    assert code == expected
    assert "the result of prepare cannot be written" in lines[-1]["message"]
    assert not any("Traceback" in line["message"] for line in lines)


def test_a_crash_keeps_its_traceback_in_the_log(stage: Any) -> None:
    one = stage("""raise RuntimeError("boom")""")
    code, lines = one.end()
    assert code == ExitCode.CRASHED
    assert "Traceback" in lines[0]["message"]
    assert one.result["message"] == "RuntimeError: boom"


WORK_UNTIL_STOPPED = """
    context.phases.switch("prepare")
    context.log.info("working")
    while True:
        context.stop.check()
        time.sleep(0.01)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_an_interruption(stage: Any, number: signal.Signals) -> None:
    one = stage(WORK_UNTIL_STOPPED)
    one.wait_for("working")
    one.process.send_signal(number)
    code, _ = one.end()
    assert code == ExitCode.INTERRUPTED
    assert one.result["status"] == "interrupted"
    assert number.name in one.result["message"]


def test_a_closed_lifeline_is_an_interruption(stage: Any) -> None:
    one = stage(WORK_UNTIL_STOPPED)
    one.wait_for("working")
    one.process.stdin.close()
    code, _ = one.end()
    assert code == ExitCode.INTERRUPTED
    assert "supervisor is gone" in one.result["message"]


def test_with_nothing_to_save_a_signal_ends_a_long_c_call(stage: Any) -> None:
    one = stage("""
        context.phases.switch("compile")
        with context.stop.nothing_to_save():
            context.log.info("compiling")
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)
    """)
    one.wait_for("compiling")
    time.sleep(0.1)
    one.process.send_signal(signal.SIGTERM)
    code, _ = one.end()
    assert code == ExitCode.INTERRUPTED
    event = one.ledger("event")[-1]
    assert (event["name"], event["during"]) == ("interrupted", "compile")


def test_the_ledger_has_the_phases_of_a_killed_stage_up_to_its_last_second(stage: Any) -> None:
    one = stage(WORK_UNTIL_STOPPED)
    one.wait_for("working")
    started = time.monotonic()
    time.sleep(2.5)
    one.process.kill()
    lived = time.monotonic() - started
    code, _ = one.end()
    assert code == -signal.SIGKILL
    prepare = sum(record["seconds"].get("prepare", 0) for record in one.ledger("phases"))
    assert lived - 1.5 <= prepare <= lived + 0.5


def test_the_phases_in_the_ledger_sum_to_the_life_of_the_stage(stage: Any) -> None:
    one = stage("""
        context.phases.switch("prepare")
        time.sleep(1.2)
        with context.phases.phase("export"):
            time.sleep(0.3)
        return StageResult(status="completed")
    """)
    one.end()
    records = one.ledger("phases")
    total = {}
    for record in records:
        for phase, seconds in record["seconds"].items():
            total[phase] = total.get(phase, 0) + seconds
    assert total["export"] == pytest.approx(0.3, abs=0.1)
    assert total["prepare"] == pytest.approx(1.2, abs=0.1)
    first = records[0]["monotonic"] - sum(records[0]["seconds"].values())
    assert sum(total.values()) == pytest.approx(records[-1]["monotonic"] - first, abs=0.05)
