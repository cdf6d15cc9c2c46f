"""Law 6, inside a stage: the phases tile the time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.telemetry.phases import PHASES, PhaseClock


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_hand_computed_day() -> None:
    now = Clock()
    clock = PhaseClock("start", now)
    now.now += 2
    clock.switch("step")
    now.now += 5
    with clock.phase("input_wait"):
        now.now += 1
    assert clock.current == "step"
    now.now += 3
    assert clock.totals() == {"start": 2, "step": 8, "input_wait": 1}


def test_a_phase_that_fails_gives_the_clock_back() -> None:
    now = Clock()
    clock = PhaseClock("idle", now)
    with pytest.raises(RuntimeError), clock.phase("evaluate"):
        now.now += 4
        raise RuntimeError
    assert clock.current == "idle"
    assert clock.totals() == {"evaluate": 4, "idle": 0}


@given(
    st.lists(st.tuples(st.sampled_from(PHASES), st.integers(0, 1000), st.booleans())),
)
def test_drained_seconds_sum_to_the_elapsed_time(moves: list[tuple[str, int, bool]]) -> None:
    now = Clock()
    clock = PhaseClock("start", now)
    drained = 0.0
    for phase, seconds, drain in moves:
        clock.switch(phase)  # type: ignore[arg-type]
        now.now += seconds
        if drain:
            drained += sum(clock.drain().values())
    drained += sum(clock.drain().values())
    assert drained == now.now - 100.0 == sum(clock.totals().values())
    assert sum(clock.drain().values()) == 0
