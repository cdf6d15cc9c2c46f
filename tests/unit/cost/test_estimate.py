"""The known answers, and the arithmetic before and during a run."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cost.test_baseline import HERE, row
from tokenmill.cost.budget import BudgetGuard
from tokenmill.cost.estimate import (
    Calibration,
    Timing,
    check_budget,
    estimate,
    tokens_per_step,
    usd_for_tokens,
    usd_per_million_at,
)
from tokenmill.cost.figures import payback_steps, usd_per_million
from tokenmill.cost.money import format_usd
from tokenmill.cost.prices import Price
from tokenmill.cost.spot import (
    break_even_interruptions_per_hour,
    checkpoint_interval_seconds,
    expected_interruptions,
    spot_overhead,
)
from tokenmill.errors import UserError

PRICE = Price(machine_type="example-2-core", market="on_demand", usd_per_hour="3.60", source="test")


def test_512_rows_of_64_tokens_are_32768() -> None:
    assert tokens_per_step(512, 64) == 32_768


def test_100_million_tokens_at_48_million_an_hour_and_1_85_cost_3_85() -> None:
    assert format_usd(usd_for_tokens(100_000_000, 48_000_000, Decimal("1.85"))) == "$3.85"


@pytest.mark.parametrize(("speed", "said"), [(5_000, "$0.427"), (6_250, "$0.341")])
def test_7_68_an_hour_at_a_speed_is_so_much_a_million(speed: int, said: str) -> None:
    assert format_usd(usd_per_million_at(speed, Decimal("7.68"))) == said


def test_usd_per_million() -> None:
    assert usd_per_million(Decimal("3.85"), 100_000_000) == Decimal("0.0385")
    assert usd_per_million(None, 5) is None
    assert usd_per_million(Decimal(1), 0) is None


def test_no_data_no_estimate() -> None:
    made = estimate(HERE, 150, PRICE, [])
    assert (made.source, made.seconds, made.usd) == ("none", None, None)
    assert made.processed_tokens == 150 * 32 * 256
    assert "no estimate" in made.sentences[-1]
    check_budget(made, Decimal("0.01"))  # nothing to hold against it


def test_an_estimate_from_measured_runs() -> None:
    rows = [row(n, "1.00", stepping_seconds=150.0 + n) for n in range(5)]
    made = estimate(HERE, 300, PRICE, [*rows, row(9, configuration={"model": "other"})])
    assert (made.source, made.runs) == ("baseline", 5)
    assert made.seconds is not None
    assert made.usd is not None
    # 1,200,000 tokens in 152 s; 2,457,600 tokens to do; 48 s around it.
    assert made.seconds.middle == pytest.approx(48 + 2_457_600 / (1_200_000 / 152))
    assert made.usd[1] == pytest.approx(Decimal(made.seconds.middle) / 1000, abs=Decimal("0.00001"))
    assert made.usd[0] < made.usd[1] < made.usd[2]


def test_knobs_that_are_still_auto_use_every_run_like_it() -> None:
    auto = HERE.model_copy(update={"micro_batch_size": None, "precision": None, "xla": None, "devices": None})
    assert estimate(auto, 10, PRICE, [row(1), row(2)]).runs == 2


def test_an_estimate_from_a_calibration() -> None:
    made = estimate(HERE, 1000, PRICE, [], Calibration(step_seconds=(0.5, 0.51, 0.49, 0.5), start_seconds=30))
    assert made.source == "calibration"
    assert made.seconds is not None
    assert made.seconds.middle == pytest.approx(530)


def test_spot_is_longer_by_what_interruptions_cost() -> None:
    spot = PRICE.model_copy(
        update={"market": "spot", "interruptions_per_hour": 0.5, "on_demand_usd_per_hour": Decimal("10.80")}
    )
    timing = Timing(save_seconds=2.0, restart_seconds=90)
    calm, made = (estimate(HERE, 10_000, price, [row(1)], timing=timing) for price in (PRICE, spot))
    assert calm.seconds is not None
    assert made.seconds is not None
    assert made.seconds.middle == pytest.approx(calm.seconds.middle * (1 + spot_overhead(2.0, 90, 0.5)))
    assert made.checkpoint_interval_seconds == pytest.approx((2 * 2.0 * 7200) ** 0.5)
    assert made.expected_interruptions == pytest.approx(made.seconds.middle / 3600 * 0.5)
    assert made.break_even_interruptions_per_hour is not None
    assert any("Spot pays" in sentence for sentence in made.sentences)


def test_a_run_over_its_budget_is_refused() -> None:
    made = estimate(HERE, 300, PRICE, [row(1), row(2), row(3)])
    check_budget(made, Decimal(100))
    with pytest.raises(UserError, match=r"estimated at \$0\.357 \(\$0\.339 to \$0\.375\), over the budget of \$0\.30;"):
        check_budget(made, Decimal("0.30"))
    with pytest.raises(UserError):
        check_budget(made, Decimal("0.40"), spent_usd=Decimal("0.06"))


def test_young_interval() -> None:
    assert checkpoint_interval_seconds(2.0, 0.25) == 240.0
    with pytest.raises(ValueError, match="above zero"):
        checkpoint_interval_seconds(2.0, 0.0)
    assert expected_interruptions(8, 0.25) == 2.0


@given(st.floats(0.1, 60), st.floats(0, 600), st.decimals("0.1", 50, places=2), st.decimals("1.01", 10, places=2))
def test_at_the_break_even_rate_spot_costs_the_same(save: float, restart: float, spot: Decimal, ratio: Decimal) -> None:
    limit = break_even_interruptions_per_hour(spot * ratio, spot, save, restart)
    assert limit is not None
    assert 1 + spot_overhead(save, restart, limit) == pytest.approx(float(ratio), rel=1e-6)


def test_spot_that_is_not_cheaper_never_pays() -> None:
    assert break_even_interruptions_per_hour(Decimal(1), Decimal(1), 2, 60) == 0.0
    assert break_even_interruptions_per_hour(Decimal(1), Decimal(0), 2, 60) is None


def test_compiling_pays_back_after() -> None:
    assert payback_steps(30.0, 0.5, 0.4) == 300
    assert payback_steps(30.05, 0.5, 0.4) == 301
    assert payback_steps(30.0, 0.4, 0.5) is None


def test_the_budget_guard_projects_warns_and_stops_in_time() -> None:
    guard = BudgetGuard(
        budget_usd=Decimal(10), usd_per_hour=Decimal("3.60"), spent_before_usd=Decimal("1.00"), reserve_seconds=100
    )
    assert guard.allowed_seconds == pytest.approx(9_000 - 100)  # $9 left at $0.001 a second
    early = guard.look(1_000, tokens_done=250, tokens_in_all=1_000)
    assert (early.state, early.spent_usd, early.projected_usd) == ("ok", Decimal("2.000"), Decimal("5.000"))
    assert guard.look(1_000, tokens_done=100, tokens_in_all=1_000).state == "warn"  # projected: $2 and 9 × $1
    late_start = guard.look(1_000, tokens_done=100, tokens_in_all=1_000, begin=(900, 0))
    assert (late_start.state, late_start.projected_usd) == ("ok", Decimal("2.9"))  # compiling is not paid for again
    assert guard.look(7_000, tokens_done=900, tokens_in_all=1_000).state == "warn"  # $8 of $10
    assert guard.look(8_900, tokens_done=900, tokens_in_all=1_000).state == "stop"
    assert guard.look(10, tokens_done=19, tokens_in_all=1_000).projected_usd is None


@given(st.decimals("0.01", 100, places=2), st.decimals("0.01", 100, places=2), st.floats(0, 3600))
def test_a_stop_with_its_reserve_never_passes_the_budget(budget: Decimal, rate: Decimal, reserve: float) -> None:
    guard = BudgetGuard(budget_usd=budget, usd_per_hour=rate, reserve_seconds=reserve)
    end = max(guard.allowed_seconds, 0.0)
    look = guard.look(end, 0, 1)
    assert look.state == "stop"
    if guard.allowed_seconds >= 0:
        assert float(look.spent_usd) + reserve / 3600 * float(rate) <= float(budget) * (1 + 1e-9)
