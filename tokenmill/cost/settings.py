"""The `cost` section of pipelines.yaml."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Literal, Self

from pydantic import Field, model_validator

from tokenmill.config import Section, operational

Market = Literal["on_demand", "spot"]


class MachinePrice(Section):
    """One machine type of the price table, or of a pipeline's own `cost.prices`."""

    on_demand_usd_per_hour: Decimal = operational(ge=0)
    spot_usd_per_hour: Decimal | None = operational(None, ge=0)
    devices: int | None = operational(None, ge=1)
    """Accelerators in the machine."""
    interruptions_per_hour: float | None = operational(None, ge=0)
    """How often the provider takes a Spot machine away, where it is known."""
    currency: Literal["USD"] = operational("USD")
    region: str | None = operational(None)
    source: str = operational(min_length=1)
    """Where the price was read: a page, a contract."""
    as_of: date = operational()
    """The day on which it was read."""


class OwnHardware(Section):
    """A machine that was bought: its price an hour is write-off plus electricity."""

    purchase_usd: Decimal = operational(gt=0)
    life_years: Decimal = operational(gt=0)
    """Years until it is written off."""
    busy_pct: Decimal = operational(Decimal(100), gt=0, le=100)
    """Share of its life in which it works; the idle hours are carried by the busy ones."""
    power_watts: Decimal = operational(ge=0)
    """Mean draw at the plug under load, cooling included."""
    usd_per_kwh: Decimal = operational(ge=0)


class RegressionSettings(Section):
    """When a night counts as dearer than its baseline: beyond `noise` times the spread, and beyond `least_pct`."""

    on_regression: Literal["warn", "fail", "ignore"] = operational("warn")
    noise: float = operational(3.0, gt=0)
    """In robust standard deviations (1.4826 × median absolute deviation) of the baseline."""
    least_pct: float = operational(5.0, ge=0)
    """A rise smaller than this is never a regression."""
    least_runs: int = operational(3, ge=2)
    """With fewer runs in the baseline there is no verdict."""


class CostSettings(Section):
    machine_type: str | None = operational(None)
    """Key of the price table; none means what the cloud's metadata says."""
    market: Market = operational("on_demand")
    usd_per_hour: Decimal | None = operational(None, ge=0)
    """A price of your own, instead of the table's."""
    price_note: str | None = operational(None)
    """Said beside the price in every report, such as 'example, edit me'."""
    price_as_of: str | None = operational(None, pattern=r"^\d{4}-\d{2}-\d{2}$")
    prices: dict[str, MachinePrice] = Field(default_factory=dict)
    """Machine types of your own (negotiated prices); they go before the table that ships with tokenmill."""
    own_hardware: OwnHardware | None = Field(None)
    """A machine that you bought, instead of a price an hour."""
    interruptions_per_hour: float | None = operational(None, ge=0)
    """What you expect of the Spot market, instead of the table's rate."""
    budget_usd: Decimal | None = operational(None, gt=0)
    """Refuses a run that is estimated over it, and stops one before it is passed."""
    budget_warn_pct: float = operational(80.0, gt=0, le=100)
    """Share of the budget from which reports and logs warn."""
    regression: RegressionSettings = Field(default_factory=RegressionSettings)

    @model_validator(mode="after")
    def _one_price(self) -> Self:
        if self.usd_per_hour is not None and self.own_hardware is not None:
            raise ValueError("give usd_per_hour or own_hardware, not both")
        if self.price_as_of is not None:
            date.fromisoformat(self.price_as_of)
        return self
