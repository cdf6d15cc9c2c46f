"""What an hour of a machine costs. A price is resolved once, at an attempt's start, and frozen into its ledger.

Order: `cost.usd_per_hour`, then `cost.own_hardware`, then the machine type in `cost.prices`, then in the table that
ships with tokenmill. None of them is an error, never zero (law 7).
"""

from __future__ import annotations

import difflib
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from importlib import resources
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from tokenmill.cost.settings import CostSettings, MachinePrice, Market, OwnHardware
from tokenmill.errors import UserError

STALE_DAYS = 90
HOURS_PER_YEAR = Decimal(8766)
"""365.25 days."""


class Price(BaseModel):
    """The frozen price of an attempt."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    machine_type: str
    market: Market
    usd_per_hour: Decimal
    source: str
    currency: str = "USD"
    as_of: date | None = None
    note: str | None = None
    region: str | None = None
    devices: int | None = None
    interruptions_per_hour: float | None = None
    on_demand_usd_per_hour: Decimal | None = None
    """What the same machine costs on demand, where it is known: the counterfactual of a Spot attempt."""

    def warnings_at(self, unix: float) -> list[str]:
        """Sentences about what was doubtful in this price at that time (Unix seconds)."""
        if self.as_of is None:
            return []
        age = (datetime.fromtimestamp(unix, UTC).date() - self.as_of).days
        if age <= STALE_DAYS:
            return []
        return [f"the price of {self.machine_type} is {age} days old (read on {self.as_of}, {self.source}); check it"]


def resolve_price(
    cost: CostSettings | Literal["unpriced"],
    *,
    machine_type: str | None = None,
    market: Market | None = None,
) -> Price | None:
    """The price of an attempt that starts now; None for an unpriced pipeline.

    `machine_type` and `market` are what the cloud's metadata says, where there is a cloud; they go before the config.
    Raises `UserError` naming the machine and the key to add where there is no price.
    """
    if cost == "unpriced":
        return None
    machine = machine_type or cost.machine_type
    market = market or cost.market
    row = find_machine(cost, machine) if machine else None
    facts: dict[str, Any] = {
        "machine_type": machine or "this machine",
        "market": market,
        "note": cost.price_note,
        "region": row.region if row else None,
        "devices": row.devices if row else None,
        "interruptions_per_hour": _first(cost.interruptions_per_hour, row.interruptions_per_hour if row else None),
        "on_demand_usd_per_hour": row.on_demand_usd_per_hour if row else None,
    }
    if cost.usd_per_hour is not None:
        as_of = date.fromisoformat(cost.price_as_of) if cost.price_as_of else None
        return Price(usd_per_hour=cost.usd_per_hour, source="cost.usd_per_hour", as_of=as_of, **facts)
    if cost.own_hardware is not None:
        return Price(usd_per_hour=own_usd_per_hour(cost.own_hardware), source="cost.own_hardware", **facts)
    if machine is None:
        raise UserError(
            "cost: the machine type is unknown (the config names none and there is no cloud metadata here); set "
            "cost.machine_type, or your own price in cost.usd_per_hour, or write 'cost: unpriced'"
        )
    if row is None:
        close = difflib.get_close_matches(machine, [*cost.prices, *price_table()], n=1)
        hint = f" (did you mean '{close[0]}'?)" if close else ""
        raise UserError(
            f"cost: there is no price for the machine '{machine}'{hint}; add cost.prices.{machine}, or name your own "
            "price in cost.usd_per_hour, or write 'cost: unpriced'"
        )
    usd = row.on_demand_usd_per_hour if market == "on_demand" else row.spot_usd_per_hour
    if usd is None:
        raise UserError(
            f"cost: there is no Spot price for the machine '{machine}'; add "
            f"cost.prices.{machine}.spot_usd_per_hour, or name the price that you see in cost.usd_per_hour"
        )
    return Price(usd_per_hour=usd, source=row.source, as_of=row.as_of, currency=row.currency, **facts)


def ledger_fields(price: Price | None) -> dict[str, Any]:
    """The price's part of a `spawned` record, as plain JSON; amounts are decimal strings."""
    if price is None:
        return {"machine_type": None, "market": None, "usd_per_hour": None, "currency": None}
    plain = price.model_dump(mode="json")
    renamed = {"source": "price_source", "as_of": "price_as_of", "note": "price_note", "region": "price_region"}
    return {renamed.get(key, key): value for key, value in plain.items()}


def own_usd_per_hour(own: OwnHardware) -> Decimal:
    """Write-off plus electricity, exact to a hundred-thousandth of a dollar.

    >>> own = OwnHardware(purchase_usd=87660, life_years=5, busy_pct=50, power_watts=2000, usd_per_kwh="0.25")
    >>> own_usd_per_hour(own)
    Decimal('4.50000')
    """
    busy_hours = own.life_years * HOURS_PER_YEAR * own.busy_pct / 100
    usd = own.purchase_usd / busy_hours + own.power_watts / 1000 * own.usd_per_kwh
    return usd.quantize(Decimal("0.00001"))


def find_machine(cost: CostSettings, machine: str) -> MachinePrice | None:
    return cost.prices.get(machine) or price_table().get(machine)


@cache
def price_table() -> dict[str, MachinePrice]:
    """The table that ships with tokenmill, by machine type."""
    text = resources.files("tokenmill.cost").joinpath("prices.yaml").read_text(encoding="utf-8")
    return {name: MachinePrice.model_validate(row) for name, row in yaml.safe_load(text)["machines"].items()}


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
