"""The budget guard: refuse what is estimated over the budget, warn at a share of it, stop before it is passed.

The guard is plain arithmetic on billed seconds, so that a trainer can ask it between two steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from tokenmill.cost.money import format_usd

LEAST_SHARE = 50
"""A fiftieth of the tokens must be done before the rest is projected from them."""


@dataclass(frozen=True)
class BudgetLook:
    """What the guard saw."""

    state: Literal["ok", "warn", "stop"]
    spent_usd: Decimal
    projected_usd: Decimal | None
    """For the whole run: what is spent, and the rest at this attempt's price per token; None while that is unknown."""
    sentence: str


@dataclass(frozen=True)
class BudgetGuard:
    """Of one attempt."""

    budget_usd: Decimal
    usd_per_hour: Decimal
    spent_before_usd: Decimal = Decimal(0)
    """By earlier attempts and stages of the run."""
    warn_pct: float = 80.0
    reserve_seconds: float = 0.0
    """Kept back for what follows the decision: the last save, evaluation, export, report."""

    @property
    def allowed_seconds(self) -> float:
        """Billed seconds of this attempt after which it must stop; may be negative."""
        left = self.budget_usd - self.spent_before_usd
        if self.usd_per_hour == 0:
            return float("inf") if left >= 0 else 0.0
        return float(left / self.usd_per_hour) * 3600 - self.reserve_seconds

    def look(
        self, billed_seconds: float, tokens_done: int, tokens_in_all: int, *, begin: tuple[float, int] = (0.0, 0)
    ) -> BudgetLook:
        """`billed_seconds` of this attempt so far; tokens count since the run's start.

        `begin` is an earlier moment (billed seconds, tokens) since which the attempt has only trained: a token's cost
        is measured from there, so that starting and compiling are not counted again with every token.
        """
        spent = self.spent_before_usd + self._usd(billed_seconds)
        projected = None
        seconds, tokens = billed_seconds - begin[0], tokens_done - begin[1]
        if tokens * LEAST_SHARE >= tokens_in_all and tokens > 0:
            projected = spent + self._usd(seconds / tokens * max(0, tokens_in_all - tokens_done))
        share = 100 * float(spent / self.budget_usd)
        text = f"{format_usd(spent)} of a budget of {format_usd(self.budget_usd)} ({share:.0f} %) is spent"
        if projected is not None:
            text += f"; at this pace the whole run comes to {format_usd(projected)}"
        if billed_seconds >= self.allowed_seconds:
            return BudgetLook("stop", spent, projected, text)
        warn = share >= self.warn_pct or (projected is not None and projected > self.budget_usd)
        return BudgetLook("warn" if warn else "ok", spent, projected, text)

    def _usd(self, seconds: float) -> Decimal:
        return Decimal(repr(seconds)) / 3600 * self.usd_per_hour
