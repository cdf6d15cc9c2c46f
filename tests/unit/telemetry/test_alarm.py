"""Alarms over scripted seconds: each fault is named, and a healthy or a crowded machine is left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.telemetry.test_sampler import SAMPLE
from tokenmill.telemetry.alarm import Alarm, Alarms, Pulse, slow_worker
from tokenmill.telemetry.phases import PHASES
from tokenmill.telemetry.settings import TelemetrySettings
from tokenmill.telemetry.watch import STEPPING, Joiner, Second

SETTINGS = TelemetrySettings(low_utilisation_seconds=20)
HEALTHY = replace(SAMPLE, process_cpu_pct=190.0, process_share_pct=95.0, others_cpu_pct=2.0)
GPU = replace(HEALTHY, device_pct=93.0, device_memory_pct=80.0, device_throttled=0, device_ecc_errors=0)


def second(sample: Any = HEALTHY, *, stepping: bool = True, input_share: float = 0.01, steps: int = 4) -> Second:
    return Second(sample=sample, seconds=1.0, stepping=stepping, input_share=input_share, steps=steps)


def raised(seconds: list[Second], *, several: bool = False, usd: float | None = 10.0) -> list[Alarm]:
    alarms = Alarms(SETTINGS, usd_per_hour=usd, several=several)
    return [alarm for item in seconds for alarm in alarms.see(item)]


def low(pct: float, **changes: Any) -> Any:
    return replace(HEALTHY, process_share_pct=pct, process_cpu_pct=2 * pct, **changes)


def test_a_healthy_run_raises_none() -> None:
    assert raised([second()] * 300) == []
    assert raised([second(GPU)] * 300) == []


def test_waiting_for_input_is_named_with_its_price() -> None:
    (alarm,) = raised([second(low(40), input_share=0.38)] * 30)
    assert (alarm.kind, alarm.cause) == ("low_utilisation", "input_bound")
    assert alarm.usd_per_hour_wasted == pytest.approx(6.0)
    assert "processor utilisation was 40 % over 20 s of training, under 60 %" in alarm.sentence
    assert "38 % of the time spent waiting for input (about $6.00 an hour are wasted): input-bound" in alarm.sentence


def test_a_tiny_batch_is_small_kernels() -> None:
    (alarm,) = raised([second(low(50), input_share=0.02)] * 30)
    assert (alarm.kind, alarm.cause) == ("low_utilisation", "small_kernels")
    gpu = replace(GPU, device_pct=31.0, process_cpu_pct=99.0)
    (alarm,) = raised([second(gpu)] * 30)
    assert (alarm.cause, "GPU utilisation was 31 %" in alarm.sentence) == ("small_kernels", True)


def test_several_devices_that_wait_are_communication_and_one_that_sleeps_is_idle() -> None:
    assert [a.cause for a in raised([second(replace(GPU, device_pct=40.0))] * 30, several=True)] == ["communication"]
    assert [a.cause for a in raised([second(low(10), input_share=0.0)] * 30)] == ["idle"]


def test_an_unpriced_pipeline_has_no_dollars() -> None:
    (alarm,) = raised([second(low(10))] * 30, usd=None)
    assert alarm.usd_per_hour_wasted is None
    assert "$" not in alarm.sentence


def test_it_is_said_once_and_again_after_it_was_over() -> None:
    bad, good = [second(low(30))] * 60, [second()] * 60
    assert len(raised(bad)) == 1
    assert len(raised(bad + good + bad)) == 2


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=200))
def test_seconds_in_other_phases_never_raise_one(seconds: list[tuple[float, bool]]) -> None:
    """Training steps are busy; whatever comes in between may be as idle as it likes."""
    script = [second() if stepping else second(low(pct), stepping=False) for pct, stepping in seconds]
    assert raised(script) == []


@given(st.lists(st.floats(0, 100), min_size=100, max_size=200), st.floats(15.1, 100))
def test_on_a_crowded_processor_nobody_is_accused(shares: list[float], others: float) -> None:
    assert raised([second(low(share, others_cpu_pct=others), steps=1) for share in shares]) == []


def test_heat_is_said_after_ten_seconds_in_a_row() -> None:
    hot = second(replace(GPU, device_throttled=2, device_temperature_celsius=91.0))
    assert raised(([hot] * 9 + [second(GPU)]) * 5) == []
    (alarm,) = raised([hot] * 60)
    assert alarm.kind == "thermal_throttling"
    assert "2 GPUs run at a lower clock at 91 °C" in alarm.sentence


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"memory_used_pct": 97.0}, "machine's memory"),
        ({"group_memory_pct": 99.0}, "container's memory limit"),
        ({"device_memory_pct": 96.0}, "a GPU's memory"),
    ],
)
def test_memory_near_its_limit_is_named(changes: dict[str, float], where: str) -> None:
    (alarm,) = raised([second(replace(GPU, **changes))] * 30)
    assert alarm.kind == "memory"
    assert where in alarm.sentence


def test_a_memory_error_of_a_gpu_is_said_at_once() -> None:
    (alarm,) = raised(
        [second(GPU), second(replace(GPU, device_ecc_errors=1)), second(replace(GPU, device_ecc_errors=1))]
    )
    assert alarm.kind == "ecc_errors"


def test_steps_that_grow_longer_are_said() -> None:
    (alarm,) = raised([second(steps=10)] * 100 + [second(steps=5)] * 100)
    assert alarm.kind == "step_drift"
    assert "a step takes 0.2 s, 100 % longer than at its best (0.1 s)" in alarm.sentence
    assert raised([second(steps=10)] * 100 + [second(steps=5)] * 30 + [second(steps=10)] * 100) == []


def test_a_slow_worker_is_named_by_its_input_or_by_its_work() -> None:
    even = [Pulse(n, 0.02, 90.0) for n in range(4)]
    assert slow_worker(even) is None
    assert slow_worker(even[:1]) is None
    alarm = slow_worker([*even, Pulse(4, 0.5, 40.0)])
    assert alarm is not None
    assert (
        "worker 4 of 5 is slow, and the others wait for it: it waits 50 % of the time for its own input"
        in alarm.sentence
    )
    alarm = slow_worker([Pulse(0, 0.0, 40.0), Pulse(1, 0.0, 99.0), Pulse(2, 0.0, 45.0)])
    assert alarm is not None
    assert "worker 1 of 3 is slow" in alarm.sentence


def test_seconds_join_samples_with_the_trainers_words() -> None:
    joiner = Joiner()
    joiner.join(replace(SAMPLE, time=10.0), [{"kind": "steps", "step": 3}, {"kind": "heartbeat"}])
    said = [
        {"kind": "phases", "seconds": {"step": 0.75, "input_wait": 0.25}, "current": "step"},
        {"kind": "steps", "step": 7},
    ]
    found = joiner.join(replace(SAMPLE, time=11.5), said)
    assert (found.seconds, found.stepping, found.input_share, found.steps) == (1.5, True, 0.25, 4)
    assert joiner.join(replace(SAMPLE, time=12.5), []).stepping is False


@given(st.sampled_from(sorted(set(PHASES) - set(STEPPING))), st.booleans())
def test_a_second_with_anything_else_in_it_is_no_stepping(phase: str, now: bool) -> None:
    seconds = {"step": 0.99} if now else {"step": 0.99, phase: 0.01}
    record = {"kind": "phases", "seconds": seconds, "current": phase if now else "step"}
    assert Joiner().join(SAMPLE, [record]).stepping is False
