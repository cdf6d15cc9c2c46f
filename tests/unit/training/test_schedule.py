"""Learning rates and lengths, by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.training.schedule import learning_rate, total_steps
from tokenmill.training.settings import LengthSettings, OptimizerSettings


def rates(total: int, **changes: object) -> list[float]:
    settings = OptimizerSettings.model_validate(
        {"learning_rate": 1.0, "warmup_steps": 0, "final_fraction": 0.0, **changes}
    )
    return [learning_rate(settings, step, total) for step in range(total)]


def test_schedules_by_hand() -> None:
    assert rates(4, schedule="linear", warmup_steps=2) == [0.5, 1.0, 1.0, 0.5]
    assert rates(4, schedule="linear", final_fraction=0.2) == pytest.approx([1.0, 0.8, 0.6, 0.4])
    assert rates(4, schedule="cosine") == pytest.approx([1.0, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5])
    assert rates(5, schedule="wsd", warmup_steps=1, decay_fraction=0.4) == pytest.approx([1, 1, 1, 1, 0.5])
    assert rates(3, schedule="constant", warmup_steps=2) == [0.5, 1.0, 1.0]
    assert rates(2, schedule="cosine", warmup_steps=50) == [0.5, 1.0]


@given(
    schedule=st.sampled_from(["cosine", "linear", "wsd", "constant"]),
    total=st.integers(1, 200),
    warmup=st.integers(0, 250),
    final=st.floats(0, 1),
)
def test_rates_rise_then_never_rise_again(schedule: str, total: int, warmup: int, final: float) -> None:
    found = rates(total, schedule=schedule, warmup_steps=warmup, final_fraction=final)
    top = min(warmup, total)
    assert all(a < b for a, b in pairwise(found[:top]))
    assert all(a >= b - 1e-12 for a, b in pairwise(found[top:]))
    assert all(0 < rate <= 1 for rate in found[:top])
    assert all(final - 1e-12 <= rate <= 1 for rate in found[top:])


def test_lengths() -> None:
    def steps(**length: float) -> int:
        return total_steps(LengthSettings.model_validate(length), rows=100, tokens=6_400, global_batch_size=8)

    assert steps(steps=17) == 17
    assert steps(epochs=1) == 13
    assert steps(epochs=0.08) == 1
    assert steps(epochs=2) == 25
    assert steps(tokens=1_024) == 2
    assert steps(tokens=1_025) == 3
