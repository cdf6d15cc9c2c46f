"""A profiler's trace in numbers, by `xprof`, offline and without TensorFlow.

    python -m tokenmill.telemetry.trace host.xplane.pb

prints a `Trace` as JSON. It is run in a process of its own: the converter is a large library that logs as it likes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

TIMEOUT_SECONDS = 300.0
TOP = 10
_OPERATION = re.compile(r"^[^ :]+:(?P<type>[A-Za-z_]\w*)$")
_COMMUNICATION = re.compile(
    r"nccl|all.?reduce|all.?gather|reduce.?scatter|collective|^_?(send|recv)$|_Host(Send|Recv)", re.I
)
_LOW_PRECISION = re.compile(r"bf16|bfloat16|f16|half|hmma|fp8|e4m3|e5m2", re.I)
_CONTROL = {
    "While",
    "StatelessWhile",
    "If",
    "StatelessIf",
    "PartitionedCall",
    "StatefulPartitionedCall",
    "_Retval",
    "_Arg",
}
Span = tuple[float, float]


class Operation(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """TensorFlow's type of operation, such as MatMul."""
    seconds: float
    share_pct: float
    """Of the time of all operations."""
    count: int
    flops_per_second: float | None
    """Where the profiler knows it: on accelerators."""


class Trace(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    devices: int
    """Accelerators with kernels in the trace; 0 means that the processor computes."""
    compute_seconds: float
    """In which a device computes, mean over devices."""
    communication_seconds: float
    """In which a device communicates and does not compute."""
    host_seconds: float
    """In which the devices do nothing, and the host runs operations (0 where the processor is the device)."""
    kernels: int
    low_precision_pct: float | None
    """Of kernel time, in tensor cores or with a 16 or 8 bit type in its name; None on a processor, whose trace has no
    types."""
    operations: list[Operation]
    """The largest first."""


def read_trace(path: Path) -> Trace | str:
    """The trace, or one sentence about why there is none."""
    command = [sys.executable, "-m", "tokenmill.telemetry.trace", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"the trace {path.name} took longer than {TIMEOUT_SECONDS:g} s to convert"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return f"the trace {path.name} cannot be converted: {last}"
    return Trace.model_validate_json(done.stdout.splitlines()[-1])


def convert(path: Path) -> Trace:
    from xprof.profile_data import ProfileData

    host: list[tuple[str, float, float]] = []
    devices: list[list[tuple[str, float, float]]] = []
    for plane in ProfileData.from_file(str(path)).planes:
        if plane.name.startswith("/device:GPU"):
            kernels = [event for line in plane.lines if line.name.startswith("Stream") for event in _events(line)]
            if kernels:
                devices.append(kernels)
        elif plane.name.startswith("/host:CPU"):
            host += [event for line in plane.lines for event in _events(line) if _is_work(event[0])]
    computing, exposed = [], []
    for events in devices or [host]:
        compute = union((a, b) for name, a, b in events if not _communicates(name))
        busy = union((a, b) for _, a, b in events)
        computing.append(length(compute))
        exposed.append(length(busy) - length(compute))
    kernel_events = [event for events in devices for event in events]
    return Trace(
        devices=len(devices),
        compute_seconds=sum(computing) / len(computing),
        communication_seconds=sum(exposed) / len(exposed),
        host_seconds=_host_alone(host, devices),
        kernels=len(kernel_events or host),
        low_precision_pct=_low_precision(kernel_events, path) if devices else None,
        operations=_operations(path, "Device" if devices else "Host"),
    )


def union(spans: Iterable[Span]) -> list[Span]:
    """The same time in spans that neither meet nor overlap.

    >>> union([(0, 2), (1, 3), (5, 6)])
    [(0, 3), (5, 6)]
    """
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def length(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans)


def _host_alone(host: list[tuple[str, float, float]], devices: list[list[tuple[str, float, float]]]) -> float:
    """Seconds in which only the host is at work."""
    if not devices:
        return 0.0
    busy = [(a, b) for events in devices for _, a, b in events]
    return length(union([*busy, *((a, b) for _, a, b in host)])) - length(union(busy))


def _events(line: Any) -> Iterator[tuple[str, float, float]]:
    for event in line.events:
        if event.duration_ns > 0:
            yield event.name, event.start_ns / 1e9, (event.start_ns + event.duration_ns) / 1e9


def _is_work(name: str) -> bool:
    """An operation, and none that only holds others."""
    found = _OPERATION.match(name)
    return found is not None and found["type"] not in _CONTROL


def _communicates(name: str) -> bool:
    return _COMMUNICATION.search(name.rpartition(":")[2]) is not None


def _low_precision(kernels: list[tuple[str, float, float]], path: Path) -> float:
    tensor_cores = {row["kernel_name"] for row in _table(path, "kernel_stats") if row["is_kernel_using_tensor_core"]}
    low = sum(b - a for name, a, b in kernels if name in tensor_cores or _LOW_PRECISION.search(name))
    return 100.0 * low / sum(b - a for _, a, b in kernels)


def _operations(path: Path, where: str) -> list[Operation]:
    seconds: dict[str, float] = {}
    count: dict[str, float] = {}
    flops: dict[str, float] = {}
    for row in _table(path, "framework_op_stats"):
        if row["host_or_device"] != where or row["type"] == "IDLE" or row["type"] in _CONTROL:
            continue
        name, spent = row["type"].removeprefix("_Mkl").removeprefix("Native"), row["total_self_time"] / 1e6
        seconds[name] = seconds.get(name, 0.0) + spent
        count[name] = count.get(name, 0) + row["occurrences"]
        flops[name] = flops.get(name, 0.0) + 1e9 * (row["model_flop_rate"] or 0.0) * spent
    whole = sum(seconds.values())
    largest = sorted(seconds, key=lambda name: -seconds[name])[:TOP]
    return [
        Operation(
            name=name,
            seconds=seconds[name],
            share_pct=100 * seconds[name] / whole,
            count=round(count[name]),
            flops_per_second=flops[name] / seconds[name] if flops[name] and seconds[name] else None,
        )
        for name in largest
        if seconds[name] > 0
    ]


def _table(path: Path, tool: str) -> list[dict[str, Any]]:
    """One of xprof's tables, as rows by column id."""
    from xprof.convert.raw_to_tool_data import xspace_to_tool_data

    text, _ = xspace_to_tool_data([str(path)], tool, {"use_saved_result": False})
    if not text:
        raise ValueError(f"xprof makes no {tool} of it")
    found = json.loads(text)
    table = found[0] if isinstance(found, list) else found
    names = [column["id"] for column in table["cols"]]
    return [dict(zip(names, (cell["v"] for cell in row["c"]), strict=True)) for row in table["rows"]]


if __name__ == "__main__":
    print(convert(Path(sys.argv[1])).model_dump_json())
