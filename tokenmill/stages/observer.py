"""The observer of a train stage: a process of its own that samples the machine once a second and raises alarms.

Of its own, so that it goes on while the trainer compiles, hangs or is stopped, and takes no time of it:

    with Observer(ObserverConfig(...)):
        train()

It reads the trainer's ledger, writes `event` records with alarms into it, and says them on the stage's standard output.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
from pydantic import BaseModel, ConfigDict, TypeAdapter

from tokenmill.cost.ledger import LedgerTail, LedgerWriter, read_records
from tokenmill.protocol import LogLine
from tokenmill.telemetry.alarm import Alarm, Alarms, Pulse, slow_worker
from tokenmill.telemetry.channels import EventFile, PrometheusEndpoint
from tokenmill.telemetry.gpu import open_gpus
from tokenmill.telemetry.sampler import SampleFiles
from tokenmill.telemetry.samples import SampleSource
from tokenmill.telemetry.settings import TelemetrySettings
from tokenmill.telemetry.watch import Joiner, Second
from tokenmill.workspace import read_json, write_atomic

INTERVAL_SECONDS = 1.0
WRITE_SECONDS = 30.0
PULSE_SECONDS = 10.0
STALE_PULSES = 6
"""Pulses older than so many intervals are of an attempt that is over."""


class ObserverConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    pid: int
    """The trainer's."""
    run_id: str
    run_folder: Path
    attempt: int
    ledger: Path
    settings: TelemetrySettings
    worker: int = 0
    workers: int = 1
    devices: int = 1
    crowded_pct: float = 15.0
    """See `tokenmill.telemetry.alarm`."""


class Observer:
    """Runs the observing process for a block. It ends with the block, or with this process, however that ends."""

    def __init__(self, config: ObserverConfig) -> None:
        self._config = config
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Observer:
        command = [sys.executable, "-m", "tokenmill.stages.observer", self._config.model_dump_json()]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


class Watch:
    """What is done each second."""

    def __init__(self, config: ObserverConfig) -> None:
        self._config = config
        settings = config.settings
        folder = config.run_folder / "utilisation"
        if config.worker:
            folder = folder / f"worker-{config.worker:02d}"
        self._source = SampleSource(config.pid, open_gpus())
        self._files = SampleFiles(folder, config.attempt)
        self._events = EventFile(config.run_folder / "tensorboard", config.attempt)
        self._tail = LedgerTail(config.ledger)
        self._ledger = LedgerWriter(config.ledger)
        self._joiner = Joiner()
        self._alarms = Alarms(
            settings,
            usd_per_hour=_usd_per_hour(config.ledger),
            several=config.workers * config.devices > 1,
            crowded_pct=config.crowded_pct,
        )
        self._pulse: list[Second] = []
        self._slow_said = False
        self._unwritten: list[Second] = []
        self._endpoint: PrometheusEndpoint | None = None
        if settings.prometheus_port is not None:
            labels = {"run": config.run_id, "worker": str(config.worker)}
            try:
                self._endpoint = PrometheusEndpoint(settings.prometheus_port, labels)
            except OSError as error:
                self._say(f"telemetry.prometheus_port: {settings.prometheus_port} cannot be served: {error}", None)

    def second(self) -> None:
        """Raises `psutil.NoSuchProcess` when the trainer is gone."""
        second = self._joiner.join(self._source.sample(), self._tail.read())
        self._files.add(second.sample)
        self._unwritten.append(second)
        for alarm in self._alarms.see(second):
            self._raise(alarm)
        if self._config.workers > 1:
            self._compare(second)
        if self._endpoint is not None:
            self._endpoint.show(second.sample, self._joiner.step)

    def write(self) -> None:
        """A full disk costs the record, not the watch."""
        with suppress(OSError):
            self._files.write()
            self._events.add(second.sample for second in self._unwritten)
        self._unwritten = []

    def _raise(self, alarm: Alarm) -> None:
        fields: dict[str, Any] = {
            "name": "alarm",
            "alarm": alarm.kind,
            "cause": alarm.cause,
            "sentence": alarm.sentence,
            "usd_per_hour_wasted": alarm.usd_per_hour_wasted,
            "worker": self._config.worker,
        }
        with suppress(OSError):
            self._ledger.write("event", sync=True, **fields)
        self._say(f"alarm: {alarm.sentence}", fields)
        if self._endpoint is not None:
            self._endpoint.count(alarm.kind)

    def _say(self, message: str, event: dict[str, Any] | None) -> None:
        line = LogLine(level="WARNING", message=message, time=time.time(), event=event)
        with suppress(OSError):  # the supervisor is gone: the ledger has it
            os.write(1, line.model_dump_json().encode() + b"\n")

    def _compare(self, second: Second) -> None:
        """Tell the other workers how this one does; the chief looks for a slow one among them."""
        if second.stepping:
            self._pulse.append(second)
        if sum(item.seconds for item in self._pulse) < PULSE_SECONDS:
            return
        whole = sum(item.seconds for item in self._pulse)
        mine = Pulse(
            self._config.worker,
            sum(item.input_share * item.seconds for item in self._pulse) / whole,
            sum(item.sample.busy_pct * item.seconds for item in self._pulse) / whole,
        )
        self._pulse = []
        folder = self._config.run_folder / "utilisation"
        with suppress(OSError):
            write_atomic(folder / f"pulse-{mine.worker:02d}.json", _pulse_bytes(mine))
            if self._config.worker == 0 and not self._slow_said:
                alarm = slow_worker(list(read_pulses(folder, time.time() - STALE_PULSES * PULSE_SECONDS)))
                if alarm is not None:
                    self._slow_said = True
                    self._raise(alarm)


def _usd_per_hour(ledger: Path) -> float | None:
    """The price by which this attempt is billed, as its supervisor wrote it down; None for an unpriced pipeline."""
    spawned = next((record for record in read_records(ledger) if record["kind"] == "spawned"), {})
    price = spawned.get("usd_per_hour")
    return None if price is None else float(price)


def _pulse_bytes(pulse: Pulse) -> bytes:
    return TypeAdapter(Pulse).dump_json(pulse)


def read_pulses(folder: Path, since: float) -> list[Pulse]:
    """The workers' newest words about themselves, none older than `since` (Unix seconds)."""
    fresh = (path for path in sorted(folder.glob("pulse-*.json")) if path.stat().st_mtime >= since)
    return [Pulse(**read_json(path)) for path in fresh]


def main() -> None:
    """Watch until standard input ends or the trainer is gone. Signals are the trainer's business, not ours."""
    parser = argparse.ArgumentParser(prog="python -m tokenmill.stages.observer")
    parser.add_argument("config", type=ObserverConfig.model_validate_json)
    config: ObserverConfig = parser.parse_args().config
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    due = written = time.monotonic()
    try:
        watch = Watch(config)
    except psutil.NoSuchProcess:
        return
    with suppress(psutil.NoSuchProcess):  # it died; what was seen until then is what is wanted
        while True:
            due = max(due + INTERVAL_SECONDS, time.monotonic())
            if select.select([0], [], [], max(0.0, due - time.monotonic()))[0] and not os.read(0, 4096):
                break
            watch.second()
            if time.monotonic() - written >= WRITE_SECONDS:
                watch.write()
                written = time.monotonic()
    watch.write()


if __name__ == "__main__":
    main()
