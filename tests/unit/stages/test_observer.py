"""The observing process: what it leaves, what it says, and that it ends with whom it watches."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tokenmill.cost.ledger import LedgerWriter, read_records
from tokenmill.stages.observer import ObserverConfig, read_pulses
from tokenmill.telemetry.sampler import read_utilisation
from tokenmill.telemetry.settings import TelemetrySettings

pytestmark = pytest.mark.integration
DEADLINE_SECONDS = 60.0


@contextmanager
def observed(folder: Path, **changes: Any) -> Iterator[subprocess.Popen[bytes]]:
    """An observer of a process that sleeps, while a ledger says that it takes steps."""
    victim = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    config = {
        "pid": victim.pid,
        "run_id": "77c1",
        "run_folder": str(folder),
        "attempt": 7,
        "ledger": str(folder / "ledger.jsonl"),
        "settings": TelemetrySettings(low_utilisation_seconds=2).model_dump(),
        "crowded_pct": 100,
        **changes,
    }
    LedgerWriter(folder / "ledger.jsonl").write("spawned", usd_per_hour="2.50")
    command = [sys.executable, "-m", "tokenmill.stages.observer", json.dumps(config)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        yield child
    finally:
        child.stdin.close()
        victim.communicate(b"\n")
        child.wait(DEADLINE_SECONDS)
        child.stdout.close()


def until(folder: Path, done: Any) -> Any:
    """Go on as a trainer that takes steps until `done` gives something."""
    ledger = LedgerWriter(folder / "ledger.jsonl")
    deadline = time.monotonic() + DEADLINE_SECONDS
    step = 0
    while not (found := done()):
        assert time.monotonic() < deadline
        step += 1
        ledger.write("phases", seconds={"step": 0.1, "input_wait": 0.1}, current="step")
        ledger.write("steps", step=step, cursor=4 * step)
        time.sleep(0.2)
    return found


def alarms(folder: Path) -> list[dict[str, Any]]:
    return [record for record in read_records(folder / "ledger.jsonl") if record["kind"] == "event"]


def test_it_leaves_samples_scalars_and_the_alarm(tmp_path: Path) -> None:
    with observed(tmp_path) as child:
        (alarm,) = until(tmp_path, lambda: alarms(tmp_path))
        assert child.stdin is not None
        assert child.stdout is not None
        line = json.loads(child.stdout.readline())
    assert (alarm["name"], alarm["alarm"], alarm["cause"]) == ("alarm", "low_utilisation", "input_bound")
    assert 2.0 < alarm["usd_per_hour_wasted"] <= 2.5
    assert line["event"]["cause"] == "input_bound"
    assert line["message"] == f"alarm: {alarm['sentence']}"
    rows = list(read_utilisation(tmp_path / "utilisation"))
    assert {row["attempt"] for row in rows} == {7}
    assert all("device_pct" not in row for row in rows)
    assert len(scalars(tmp_path / "tensorboard", "utilisation/process_share_pct")) == len(rows)


def scalars(folder: Path, tag: str) -> list[Any]:
    """As TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (events,) = folder.glob("utilisation-*")
    accumulator = EventAccumulator(str(events)).Reload()
    return list(accumulator.Scalars(tag))


def test_prometheus_is_answered_on_loopback(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def scrape() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                text: str = answer.read().decode()
        except OSError:
            return ""
        return text if "tokenmill_step{" in text and "tokenmill_alarms_total{" in text else ""

    settings = TelemetrySettings(low_utilisation_seconds=2, prometheus_port=port)
    with observed(tmp_path, settings=settings.model_dump()):
        text = until(tmp_path, scrape)
    assert 'tokenmill_cpu_pct{run="77c1",worker="0"}' in text
    assert 'tokenmill_alarms_total{kind="low_utilisation",run="77c1",worker="0"} 1.0' in text


def test_a_worker_that_waits_for_its_own_input_is_named_by_the_chief(tmp_path: Path) -> None:
    folder = tmp_path / "utilisation"
    folder.mkdir()
    (folder / "pulse-01.json").write_text('{"worker": 1, "input_share": 0.95, "busy_pct": 1.0}')

    def slow() -> list[dict[str, Any]]:
        return [alarm for alarm in alarms(tmp_path) if alarm["alarm"] == "slow_worker"]

    with observed(tmp_path, workers=2):
        (alarm,) = until(tmp_path, slow)
    assert "worker 1 of 2 is slow" in alarm["sentence"]
    assert [pulse.worker for pulse in read_pulses(folder, 0.0)] == [0, 1]


def test_it_ends_with_the_process_it_watches(tmp_path: Path) -> None:
    code = (
        "import sys, time, os, signal\n"
        "from pathlib import Path\n"
        "from tokenmill.cost.ledger import LedgerWriter\n"
        "from tokenmill.stages.observer import Observer, ObserverConfig\n"
        "from tokenmill.telemetry.settings import TelemetrySettings\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "LedgerWriter(folder / 'ledger').write('spawned')\n"
        "config = ObserverConfig(pid=os.getpid(), run_id='r', run_folder=folder, attempt=1, ledger=folder / 'ledger',\n"
        "                        settings=TelemetrySettings())\n"
        "observer = Observer(config).__enter__()\n"
        "print(observer._child.pid, flush=True)\n"
        "input()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    victim = subprocess.Popen([sys.executable, "-c", code], text=True, **pipes)  # type: ignore[call-overload]
    assert victim.stdout is not None
    observer = psutil.Process(int(victim.stdout.readline()))
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not list((tmp_path / "tensorboard").glob("*/*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.5)
    victim.stdin.write("\n")
    victim.stdin.close()
    assert victim.wait(DEADLINE_SECONDS) == -signal.SIGKILL
    psutil.wait_procs([observer], timeout=DEADLINE_SECONDS)
    assert not observer.is_running() or observer.status() == psutil.STATUS_ZOMBIE
    victim.stdout.close()
    assert list(read_utilisation(tmp_path / "utilisation"))


def test_the_config_survives_the_command_line(tmp_path: Path) -> None:
    config = ObserverConfig(
        pid=1, run_id="r", run_folder=tmp_path, attempt=1, ledger=tmp_path / "l", settings=TelemetrySettings()
    )
    assert ObserverConfig.model_validate_json(config.model_dump_json()) == config
