from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from tokenmill.cost.prices import Price, ledger_fields, own_usd_per_hour, price_table, resolve_price
from tokenmill.cost.settings import CostSettings, OwnHardware
from tokenmill.errors import UserError


def test_unpriced_is_no_price() -> None:
    assert resolve_price("unpriced") is None
    assert ledger_fields(None)["usd_per_hour"] is None


def test_every_machine_of_the_table_has_a_price_a_source_and_a_day() -> None:
    assert len(price_table()) >= 8
    for name in price_table():
        price = resolve_price(CostSettings(machine_type=name))
        assert price is not None
        assert price.usd_per_hour > 0
        assert price.as_of is not None
        assert price.source


def test_a_price_of_your_own_goes_first_and_says_so() -> None:
    cost = CostSettings(machine_type="g5.2xlarge", usd_per_hour="0.10", price_note="example, edit me")
    price = resolve_price(cost)
    assert price is not None
    assert (price.usd_per_hour, price.source, price.note) == (Decimal("0.10"), "cost.usd_per_hour", "example, edit me")
    assert price.on_demand_usd_per_hour == Decimal("1.212")


def test_metadata_goes_before_the_config() -> None:
    price = resolve_price(CostSettings(machine_type="g5.2xlarge"), machine_type="p5.48xlarge", market="on_demand")
    assert price is not None
    assert (price.machine_type, price.usd_per_hour) == ("p5.48xlarge", Decimal("55.04"))


def test_a_pipeline_may_override_and_extend_the_table() -> None:
    row = {"on_demand_usd_per_hour": "40", "spot_usd_per_hour": "11.5", "source": "contract 7", "as_of": "2026-11-01"}
    cost = CostSettings(machine_type="p5.48xlarge", market="spot", prices={"p5.48xlarge": row, "ours": row})
    price = resolve_price(cost)
    assert price is not None
    assert (price.usd_per_hour, price.on_demand_usd_per_hour) == (Decimal("11.5"), Decimal("40"))
    assert resolve_price(cost.model_copy(update={"machine_type": "ours"})) is not None


def test_own_hardware_is_write_off_and_power() -> None:
    own = OwnHardware(purchase_usd=87660, life_years=5, busy_pct=50, power_watts=2000, usd_per_kwh="0.25")
    assert own_usd_per_hour(own) == Decimal("4.5")  # 87,660 / (5 × 8766 × 0.5) = 4.00, and 2 kW × 0.25 = 0.50
    price = resolve_price(CostSettings(own_hardware=own))
    assert price is not None
    assert price.usd_per_hour == Decimal("4.5")


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (CostSettings(), ["cost.machine_type", "cost.usd_per_hour", "unpriced"]),
        (
            CostSettings(machine_type="p5.48xlrge"),
            ["p5.48xlrge", "did you mean 'p5.48xlarge'", "cost.prices.p5.48xlrge"],
        ),
        (
            CostSettings(machine_type="p5.48xlarge", market="spot"),
            ["Spot", "cost.prices.p5.48xlarge.spot_usd_per_hour"],
        ),
    ],
)
def test_no_price_names_the_machine_and_the_key(cost: CostSettings, words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        resolve_price(cost)
    for word in words:
        assert word in str(error.value)


def test_an_old_price_warns_with_its_age() -> None:
    price = Price(machine_type="m", market="spot", usd_per_hour="1", source="page", as_of="2026-01-01")
    assert price.warnings_at(datetime(2026, 4, 1, tzinfo=UTC).timestamp()) == []
    (sentence,) = price.warnings_at(datetime(2026, 4, 2, tzinfo=UTC).timestamp())
    assert "91 days" in sentence


def test_the_ledger_gets_plain_json_with_exact_decimals() -> None:
    fields = json.loads(json.dumps(ledger_fields(resolve_price(CostSettings(machine_type="p4d.24xlarge")))))
    assert fields["usd_per_hour"] == "21.957642"
    assert fields["price_as_of"] == "2026-08-26"
