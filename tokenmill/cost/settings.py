"""The `cost` section of pipelines.yaml."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

from tokenmill.config import Section, operational

Unpriced = Literal["unpriced"]


class CostSettings(Section):
    machine_type: str | None = operational(None)
    """Key of the price table; none means what the cloud's metadata says."""
    market: Literal["on_demand", "spot"] = operational("on_demand")
    usd_per_hour: Decimal | None = operational(None, ge=0)
    """A price of your own, instead of the table's."""
    price_note: str | None = operational(None)
    """Said beside the price in every report, such as 'example, edit me'."""
    price_as_of: str | None = operational(None, pattern=r"^\d{4}-\d{2}-\d{2}$")
    budget_usd: Decimal | None = operational(None, gt=0)
    """Refuses a run that is estimated over it, and stops one before it is passed."""
