"""Money and billed time, exactly: microseconds are integers, dollars are fractions until they are rounded once.

Rounded parts always add up to the rounded sum (largest remainders), so every table of a report has the same total.

>>> from fractions import Fraction
>>> split_rounded({"a": Fraction(1, 3), "b": Fraction(1, 3), "c": Fraction(1, 3)}, Decimal("0.01"))
{'a': Decimal('0.34'), 'b': Decimal('0.33'), 'c': Decimal('0.33')}
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from typing import TypeVar

MICRO = 1_000_000
MICROSECONDS_PER_HOUR = 3600 * MICRO
QUANTUM_USD = Decimal("0.000001")
"""Dollars are rounded to a millionth: a night on two cores costs less than a cent."""
_WIDE = Context(prec=60, rounding=ROUND_HALF_EVEN)

K = TypeVar("K")


def to_microseconds(seconds: float) -> int:
    return round(seconds * MICRO)


def usd_of(microseconds: int, usd_per_hour: Decimal) -> Fraction:
    """The exact price of a stretch of time."""
    return Fraction(microseconds, MICROSECONDS_PER_HOUR) * Fraction(usd_per_hour)


def round_usd(usd: Fraction, quantum: Decimal = QUANTUM_USD) -> Decimal:
    """Half to even."""
    return _units(round(usd / Fraction(quantum)), quantum)


def split_rounded(parts: Mapping[K, Fraction], quantum: Decimal = QUANTUM_USD) -> dict[K, Decimal]:
    """Each of the non-negative `parts` rounded to `quantum`, so that they sum to the rounded exact sum."""
    unit = Fraction(quantum)
    floors = {key: part // unit for key, part in parts.items()}
    left = round(sum(parts.values(), Fraction()) / unit) - sum(floors.values())
    by_remainder = sorted(parts, key=lambda key: floors[key] * unit - parts[key])
    for key in by_remainder[:left]:
        floors[key] += 1
    return {key: _units(count, quantum) for key, count in floors.items()}


def _units(count: int, quantum: Decimal) -> Decimal:
    return _WIDE.multiply(Decimal(count), quantum)


def format_usd(usd: Decimal | Fraction | float | None) -> str:
    """For people: cents from a dollar on, else three significant digits.

    >>> [format_usd(Decimal(x)) for x in ("1234.5", "0.4266666", "0.1", "0.0005551", "0")]
    ['$1,234.50', '$0.427', '$0.10', '$0.000555', '$0']
    """
    if usd is None:
        return "n/a"
    value = round_usd(usd, Decimal("1e-12")) if isinstance(usd, Fraction) else Decimal(str(usd))
    if value == 0:
        return "$0"
    sign, value = ("-", -value) if value < 0 else ("", value)
    if value >= Decimal("0.995"):
        return f"{sign}${value:,.2f}"
    rounded = Context(prec=3, rounding=ROUND_HALF_EVEN).plus(value)
    in_cents = rounded.quantize(Decimal("0.01"))
    rounded = in_cents if in_cents == rounded else rounded
    return f"{sign}${rounded:f}"


def format_rate(usd: Decimal) -> str:
    """A price as it was given, with two decimals at least.

    >>> [format_rate(Decimal(x)) for x in ("0.1", "22", "21.957642")]
    ['$0.10', '$22.00', '$21.957642']
    """
    cents = usd.quantize(Decimal("0.01"))
    return f"${cents if cents == usd else usd.normalize():f}"
