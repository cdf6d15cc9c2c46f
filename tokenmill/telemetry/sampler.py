"""Utilisation of the machine and of one process, once a second, as Parquet.

A process of its own, so that it goes on while the trainer compiles, hangs or is stopped, and takes no time of it:

    with Sampler(run_folder / "utilisation", attempt=3):
        train()

writes ``utilisation/0003-000.parquet``, a new file each hour of the attempt. The newest file is rewritten whole twice a
minute, so a machine that is taken away costs at most the last half minute of samples.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

INTERVAL_SECONDS = 1.0
WRITE_SECONDS = 30.0
FILE_SECONDS = 3600.0


@dataclass(frozen=True)
class Sample:
    """One second. Rates are means since the sample before."""

    time: float
    """Unix seconds."""
    cpu_pct: float
    """Of all cores of the machine together."""
    process_cpu_pct: float
    """Of one core: 200 means that the process kept two cores busy."""
    process_memory_bytes: int
    """Resident."""
    process_threads: int
    memory_used_pct: float
    memory_available_bytes: int
    disk_read_bytes_per_second: float
    disk_write_bytes_per_second: float
    network_received_bytes_per_second: float
    network_sent_bytes_per_second: float


@dataclass(frozen=True)
class _Counters:
    """Sums since the machine or the process started."""

    monotonic: float
    process_cpu_seconds: float
    disk_read_bytes: int
    disk_write_bytes: int
    network_received_bytes: int
    network_sent_bytes: int

    @classmethod
    def read(cls, process: psutil.Process) -> _Counters:
        cpu = process.cpu_times()
        disk, network = psutil.disk_io_counters(), psutil.net_io_counters()
        return cls(
            monotonic=time.monotonic(),
            process_cpu_seconds=cpu.user + cpu.system,
            disk_read_bytes=disk.read_bytes if disk else 0,
            disk_write_bytes=disk.write_bytes if disk else 0,
            network_received_bytes=network.bytes_recv if network else 0,
            network_sent_bytes=network.bytes_sent if network else 0,
        )

    def rate(self, before: _Counters, name: str) -> float:
        """Per second since `before`; 0 where a counter was reset."""
        change = float(getattr(self, name)) - float(getattr(before, name))
        return max(0.0, change) / max(1e-9, self.monotonic - before.monotonic)


class SampleSource:
    """Takes samples of one process and its machine. Raises `psutil.NoSuchProcess` when the process is gone."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        psutil.cpu_percent(None)
        self._before = _Counters.read(self._process)

    def sample(self) -> Sample:
        with self._process.oneshot():
            now, before = _Counters.read(self._process), self._before
            memory_bytes = self._process.memory_info().rss
            threads = self._process.num_threads()
        self._before = now
        memory = psutil.virtual_memory()
        return Sample(
            time=time.time(),
            cpu_pct=psutil.cpu_percent(None),
            process_cpu_pct=100.0 * now.rate(before, "process_cpu_seconds"),
            process_memory_bytes=memory_bytes,
            process_threads=threads,
            memory_used_pct=memory.percent,
            memory_available_bytes=memory.available,
            disk_read_bytes_per_second=now.rate(before, "disk_read_bytes"),
            disk_write_bytes_per_second=now.rate(before, "disk_write_bytes"),
            network_received_bytes_per_second=now.rate(before, "network_received_bytes"),
            network_sent_bytes_per_second=now.rate(before, "network_sent_bytes"),
        )


class SampleFiles:
    """The Parquet files of one attempt."""

    def __init__(self, folder: Path, attempt: int) -> None:
        self._folder, self._attempt, self._number = folder, attempt, 0
        self._samples: list[Sample] = []
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, sample: Sample) -> None:
        if self._samples and sample.time - self._samples[0].time >= FILE_SECONDS:
            self.write()
            self._samples, self._number = [], self._number + 1
        self._samples.append(sample)

    def write(self) -> None:
        """Put all samples of the current file on disk, whole or not at all."""
        if not self._samples:
            return
        final = self._folder / f"{self._attempt:04d}-{self._number:03d}.parquet"
        beside = final.with_name(f".{final.name}")
        columns = {field.name: [getattr(sample, field.name) for sample in self._samples] for field in fields(Sample)}
        pq.write_table(pa.table(columns), beside)
        beside.replace(final)


def read_utilisation(folder: Path) -> Iterator[dict[str, float]]:
    """All attempts' samples by attempt and time: `Sample`'s fields and `attempt`. None if there is no folder."""
    for path in sorted(folder.glob("[0-9]*.parquet")):
        attempt = int(path.name.split("-")[0])
        for row in pq.ParquetFile(path).read().to_pylist():
            yield {**row, "attempt": attempt}


class Sampler:
    """Runs the sampling process for a block. It ends with the block, or with this process, however that ends."""

    def __init__(self, folder: Path, attempt: int, *, pid: int | None = None) -> None:
        self._arguments = ["--folder", str(folder), "--attempt", str(attempt), "--pid", str(pid or os.getpid())]
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Sampler:
        command = [sys.executable, "-m", "tokenmill.telemetry.sampler", *self._arguments]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
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


def main() -> None:
    """Sample until standard input ends or the process is gone. Signals are the trainer's business, not ours."""
    parser = argparse.ArgumentParser(prog="python -m tokenmill.telemetry.sampler")
    parser.add_argument("--pid", type=int, required=True, help="process to watch")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--attempt", type=int, required=True)
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    files = SampleFiles(arguments.folder, arguments.attempt)
    due = time.monotonic()
    written = due
    try:
        source = SampleSource(arguments.pid)
        while True:
            due = max(due + INTERVAL_SECONDS, time.monotonic())
            if select.select([0], [], [], max(0.0, due - time.monotonic()))[0] and not os.read(0, 4096):
                break
            files.add(source.sample())
            if time.monotonic() - written >= WRITE_SECONDS:
                files.write()
                written = time.monotonic()
    except psutil.NoSuchProcess:
        pass  # it died; what was seen until then is what is wanted
    files.write()


if __name__ == "__main__":
    main()
