"""Verdicts from windows and traces made by hand: what no GPU is needed for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.telemetry.trace import Trace, length, read_trace, union
from tokenmill.telemetry.verdict import Window, judge

WINDOW = Window(
    first_step=8,
    steps=4,
    step_seconds=9.5,
    input_seconds=0.5,
    own_cpu_seconds=19.0,
    other_cpu_seconds=0.2,
    processed_tokens=1000,
    trace="t.xplane.pb",
    time=0.0,
    device="gpu",
    cores=2,
    flops_per_token=10**9,
    precision="bfloat16",
    precision_reason="compute capability 9.0",
)
TRACE = Trace(
    devices=8,
    compute_seconds=9.0,
    communication_seconds=0.3,
    host_seconds=0.1,
    kernels=80_000,
    low_precision_pct=88.0,
    operations=[],
)


def verdict(window: dict[str, Any] | None = None, trace: dict[str, Any] | None = None) -> Any:
    return judge(WINDOW.model_copy(update=window or {}), TRACE.model_copy(update=trace or {}))


def test_a_healthy_gpu_is_bound_by_compute() -> None:
    found = verdict()
    assert found.bottleneck == "compute"
    assert found.shares_pct == {"compute": 90.0, "communication": 3.0, "host": 1.0, "idle": 1.0, "input": 5.0}
    assert found.seconds_per_step == 2.5
    assert found.model_flops_per_second == 1e11
    assert "88 % of kernel time is in low precision (the run asks for bfloat16)." in found.sentences


LATE = {"step_seconds": 6.2, "input_seconds": 3.8}
PROCESSOR = {"devices": 0, "communication_seconds": 0.0}


@pytest.mark.parametrize(
    ("window", "trace", "bottleneck", "words"),
    [
        (LATE, {"compute_seconds": 6.0}, "input", "The device waits 38 % of the time for input: keep"),
        ({}, {"compute_seconds": 5.0, "communication_seconds": 4.0}, "communication", "40 % of the time for other dev"),
        ({}, {"compute_seconds": 5.0, "host_seconds": 4.0}, "host", "40 % of the time for the host to launch work"),
        ({}, {"compute_seconds": 3.0}, "idle", "61 % of the device does nothing while steps run"),
        ({}, {"kernels": 8_000_000}, "compute", "in pieces too small for it: give each step more work"),
        ({"device": "cpu", "own_cpu_seconds": 9.5}, PROCESSOR, "idle", "% of the processor does nothing"),
    ],
)
def test_the_bottleneck_is_named(window: Any, trace: Any, bottleneck: str, words: str) -> None:
    found = verdict(window, trace)
    assert found.bottleneck == bottleneck
    assert words in found.sentences[0]


@pytest.mark.parametrize(("own", "other"), [(9.5, 10.0), (2.3, 17.9), (1.0, 25.0)])
def test_cores_in_other_hands_are_not_called_idle(own: float, other: float) -> None:
    crowded = {"device": "cpu", "own_cpu_seconds": own, "other_cpu_seconds": other}
    found = verdict(crowded, PROCESSOR)
    assert found.bottleneck == "compute"
    assert "Other processes took" in found.sentences[-1]


def test_a_gpus_trace_without_kernels_means_that_profiling_is_not_permitted() -> None:
    found = verdict(None, {"devices": 0})
    assert not found.traced
    assert "NVreg_RestrictProfilingToAdminUsers" in found.sentences[-1]
    assert found.shares_pct == {"input": 5.0, "compute": 95.0}


@given(
    st.floats(0.001, 100), st.floats(0, 100), st.floats(0, 100), st.floats(0, 100), st.floats(0, 100),
    st.floats(0, 1000), st.floats(0, 1000), st.sampled_from([0, 1, 8]),
)  # fmt: skip
def test_shares_sum_to_a_hundred(
    step: float, wait: float, compute: float, talk: float, host: float, own: float, other: float, devices: int
) -> None:
    window = {"step_seconds": step, "input_seconds": wait, "own_cpu_seconds": own, "other_cpu_seconds": other}
    window |= {"device": "gpu" if devices else "cpu"}
    trace = {"devices": devices, "compute_seconds": compute, "communication_seconds": talk, "host_seconds": host}
    shares = verdict(window, trace).shares_pct
    assert sum(shares.values()) == pytest.approx(100)
    assert min(shares.values()) >= -0.3  # of rounding


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)).map(lambda p: (p[0], p[0] + p[1]))))
def test_a_union_covers_what_its_spans_cover(spans: list[tuple[int, int]]) -> None:
    covered = {point for begin, end in spans for point in range(begin, end)}
    assert length(union(spans)) == len(covered)


def test_a_broken_trace_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(b"no trace")
    found = read_trace(path)
    assert isinstance(found, str)
    assert "host.xplane.pb cannot be converted" in found
