"""Processor time of the observer beside a training: seconds of a core a second, over a minute.

make bench-observer
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tokenmill.cost.ledger import LedgerWriter
from tokenmill.stages.observer import ObserverConfig
from tokenmill.telemetry.settings import TelemetrySettings

WARM_UP_SECONDS = 5
SECONDS = 120


def main() -> None:
    """Around a process that sleeps: what is watched makes no difference to what watching costs."""
    with tempfile.TemporaryDirectory() as folder:
        victim = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        ledger = LedgerWriter(Path(folder) / "ledger.jsonl")
        ledger.write("spawned", usd_per_hour="1")
        config = ObserverConfig(
            pid=victim.pid,
            run_id="bench",
            run_folder=Path(folder),
            attempt=1,
            ledger=Path(folder) / "ledger.jsonl",
            settings=TelemetrySettings(),
        )
        command = [sys.executable, "-m", "tokenmill.stages.observer", config.model_dump_json()]
        observer = subprocess.Popen(command, stdin=subprocess.PIPE)
        time.sleep(WARM_UP_SECONDS)
        before = _cpu_seconds(observer.pid)
        for step in range(SECONDS * 2):
            time.sleep(0.5)
            ledger.write("phases", seconds={"step": 0.5}, current="step")
            ledger.write("steps", step=step, cursor=step)
        used = _cpu_seconds(observer.pid) - before
        victim.communicate(b"\n")
        observer.communicate()
    print(f"{100 * used / SECONDS:.3f} % of a core over {SECONDS} s (mark: under 0.5 %); {before:.2f} s to start")


def _cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main()
