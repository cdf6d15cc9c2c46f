"""One second of a machine, of one process on it, and of its GPUs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tokenmill.telemetry.gpu import Gpu, GpuReader


@dataclass(frozen=True)
class Sample:
    """One second. Rates are means since the sample before. What begins with `device` is of the GPUs, None without."""

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
    process_share_pct: float = 0.0
    """Of the processor time that the process is allowed: its cores, or its control group's quota."""
    others_cpu_pct: float = 0.0
    """Of all cores together, what other processes (and other machines on the same host) take."""
    group_memory_pct: float | None = None
    """Of the control group's memory limit, where there is one."""
    device_pct: float | None = None
    """Mean utilisation."""
    device_lowest_pct: float | None = None
    device_memory_pct: float | None = None
    """Of the fullest."""
    device_memory_bytes: int | None = None
    """Sum."""
    device_power_watts: float | None = None
    """Sum."""
    device_temperature_celsius: float | None = None
    """Of the hottest."""
    device_throttled: int | None = None
    """How many run at a clock held down for heat or by the hardware."""
    device_ecc_errors: int | None = None
    """Uncorrected ones since the driver was loaded, sum."""

    @property
    def busy_pct(self) -> float:
        """Of what is paid for: the GPUs, or the processor where there are none."""
        return self.process_share_pct if self.device_pct is None else self.device_pct


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

    def __init__(self, pid: int, gpus: GpuReader | None = None) -> None:
        self._process = psutil.Process(pid)
        self._gpus = gpus
        self._cores = psutil.cpu_count() or 1
        self._allowed_cores = allowed_cores(len(self._process.cpu_affinity()))
        psutil.cpu_percent(None)
        self._before = _Counters.read(self._process)

    def sample(self) -> Sample:
        with self._process.oneshot():
            now, before = _Counters.read(self._process), self._before
            memory_bytes = self._process.memory_info().rss
            threads = self._process.num_threads()
        self._before = now
        memory = psutil.virtual_memory()
        cpu_pct = psutil.cpu_percent(None)
        process_pct = 100.0 * now.rate(before, "process_cpu_seconds")
        return Sample(
            time=time.time(),
            cpu_pct=cpu_pct,
            process_cpu_pct=process_pct,
            process_memory_bytes=memory_bytes,
            process_threads=threads,
            memory_used_pct=memory.percent,
            memory_available_bytes=memory.available,
            disk_read_bytes_per_second=now.rate(before, "disk_read_bytes"),
            disk_write_bytes_per_second=now.rate(before, "disk_write_bytes"),
            network_received_bytes_per_second=now.rate(before, "network_received_bytes"),
            network_sent_bytes_per_second=now.rate(before, "network_sent_bytes"),
            process_share_pct=min(100.0, process_pct / self._allowed_cores),
            others_cpu_pct=max(0.0, cpu_pct - process_pct / self._cores),
            group_memory_pct=group_memory_pct(),
            **_of_gpus(self._gpus.read() if self._gpus is not None else []),
        )


def _of_gpus(gpus: list[Gpu]) -> dict[str, Any]:
    if not gpus:
        return {}
    watts = [gpu.power_watts for gpu in gpus if gpu.power_watts is not None]
    celsius = [gpu.temperature_celsius for gpu in gpus if gpu.temperature_celsius is not None]
    errors = [gpu.ecc_errors for gpu in gpus if gpu.ecc_errors is not None]
    return {
        "device_pct": sum(gpu.utilisation_pct for gpu in gpus) / len(gpus),
        "device_lowest_pct": min(gpu.utilisation_pct for gpu in gpus),
        "device_memory_pct": max(gpu.memory_used_pct for gpu in gpus),
        "device_memory_bytes": sum(gpu.memory_used_bytes for gpu in gpus),
        "device_power_watts": sum(watts) if watts else None,
        "device_temperature_celsius": max(celsius, default=None),
        "device_throttled": sum(gpu.throttled for gpu in gpus),
        "device_ecc_errors": sum(errors) if errors else None,
    }


def allowed_cores(affinity: int, group: Path = Path("/sys/fs/cgroup")) -> float:
    """Cores that a process may keep busy: those it may run on, or its control group's quota (v2, v1) if smaller."""
    quota, period = (_words(group / "cpu.max") or ["max", "1"])[:2]
    if quota == "max":
        quota = (_words(group / "cpu" / "cpu.cfs_quota_us") or ["-1"])[0]
        period = (_words(group / "cpu" / "cpu.cfs_period_us") or ["100000"])[0]
    cores = int(quota) / int(period)
    return min(float(affinity), cores) if cores > 0 else float(affinity)


def group_memory_pct(group: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Use of the control group's memory limit, page cache that could go left out; None where there is no limit (v2)."""
    limit, used = _words(group / "memory.max"), _words(group / "memory.current")
    if not limit or not used or limit[0] == "max":
        return None
    cache = dict(zip(*[iter(_words(group / "memory.stat"))] * 2, strict=False)).get("inactive_file", "0")
    return 100.0 * max(0, int(used[0]) - int(cache)) / int(limit[0])


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []
