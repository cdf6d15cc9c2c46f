"""Interruptions as arithmetic: how often to save, how often to expect them, and when Spot stops paying."""

from __future__ import annotations

import math
from decimal import Decimal


def checkpoint_interval_seconds(save_seconds: float, interruptions_per_hour: float) -> float:
    """√(2 × save time × mean time between interruptions), which minimises time spent saving and repeating.

    Source: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974).

    >>> checkpoint_interval_seconds(2.0, 0.25)  # √(2 × 2 s × 14,400 s)
    240.0
    """
    if save_seconds <= 0 or interruptions_per_hour <= 0:
        raise ValueError("an interval needs a save time and an interruption rate above zero")
    return math.sqrt(2 * save_seconds * 3600 / interruptions_per_hour)


def expected_interruptions(hours: float, interruptions_per_hour: float) -> float:
    return hours * interruptions_per_hour


def spot_overhead(save_seconds: float, restart_seconds: float, interruptions_per_hour: float) -> float:
    """Extra time on Spot as a share of the useful time: saving, repeating half an interval, starting again."""
    if interruptions_per_hour <= 0:
        return 0.0
    rate = interruptions_per_hour / 3600
    return math.sqrt(2 * save_seconds * rate) + rate * restart_seconds


def break_even_interruptions_per_hour(
    on_demand_usd_per_hour: Decimal, spot_usd_per_hour: Decimal, save_seconds: float, restart_seconds: float
) -> float | None:
    """The rate from which Spot costs more than on demand, at the optimal checkpoint interval; None: it always pays.

    Solves spot × (1 + √(2·save·λ) + restart·λ) = on demand, a quadratic in √λ.
    """
    if spot_usd_per_hour <= 0:
        return None
    room = float(on_demand_usd_per_hour / spot_usd_per_hour) - 1
    if room <= 0:
        return 0.0
    linear, square = math.sqrt(2 * save_seconds), restart_seconds
    # The usual formula, turned over so that it does not cancel where restarting is quick.
    root_of = linear + math.sqrt(linear**2 + 4 * square * room)
    return (2 * room / root_of) ** 2 * 3600 if root_of > 0 else None
