from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tokenmill.telemetry.sampler import FILE_SECONDS, SampleFiles, read_utilisation
from tokenmill.telemetry.samples import Sample, SampleSource

SAMPLE = Sample(
    time=1_000.0,
    cpu_pct=50.0,
    process_cpu_pct=100.0,
    process_memory_bytes=1 << 30,
    process_threads=8,
    memory_used_pct=25.0,
    memory_available_bytes=1 << 34,
    disk_read_bytes_per_second=0.0,
    disk_write_bytes_per_second=4096.0,
    network_received_bytes_per_second=0.0,
    network_sent_bytes_per_second=0.0,
)


def spin(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_a_busy_process_is_seen_to_be_busy() -> None:
    source = SampleSource(psutil.Process().pid)
    spin(0.3)
    sample = source.sample()
    assert sample.process_cpu_pct > 10
    assert sample.process_memory_bytes > 1 << 20
    assert sample.process_threads >= 1
    assert 0 <= sample.cpu_pct <= 100
    assert 0 < sample.memory_used_pct < 100
    assert min(sample.disk_read_bytes_per_second, sample.network_sent_bytes_per_second) >= 0


def test_a_process_that_is_gone_is_said_to_be_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    source = SampleSource(child.pid)
    child.communicate(b"\n")
    with pytest.raises(psutil.NoSuchProcess):
        source.sample()


def test_samples_come_back_by_attempt_and_hour(tmp_path: Path) -> None:
    late = replace(SAMPLE, time=SAMPLE.time + FILE_SECONDS)
    for attempt, samples in ((2, [SAMPLE]), (1, [SAMPLE, replace(SAMPLE, time=1_001.0), late])):
        files = SampleFiles(tmp_path, attempt)
        for sample in samples:
            files.add(sample)
            files.write()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "0001-000.parquet",
        "0001-001.parquet",
        "0002-000.parquet",
    ]
    rows = list(read_utilisation(tmp_path))
    assert [(row["attempt"], row["time"]) for row in rows] == [(1, 1000.0), (1, 1001.0), (1, 4600.0), (2, 1000.0)]
    assert rows[0]["process_memory_bytes"] == 1 << 30


def test_no_folder_means_no_samples(tmp_path: Path) -> None:
    assert list(read_utilisation(tmp_path / "utilisation")) == []
