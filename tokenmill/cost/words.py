"""Numbers as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


def count(number: float) -> str:
    """
    >>> [count(x) for x in (0, 950, 12_345, 1_234_567, 2_000_000_000)]
    ['0', '950', '12,345', '1.23 million', '2.00 billion']
    """
    for size, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if abs(number) >= size:
            return f"{number / size:.3g} {word}" if abs(number) >= 100 * size else f"{number / size:.2f} {word}"
    return f"{number:,.0f}"


def duration(seconds: float) -> str:
    """
    >>> [duration(x) for x in (0.25, 42.3, 185, 7265, 200_000)]
    ['0.25 s', '42.3 s', '3 min 5 s', '2 h 1 min', '2 d 7 h']
    """
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def moment(unix: float) -> str:
    """In UTC, to the second."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def phrase(name: str) -> str:
    """`input_wait` → `input wait`."""
    return name.replace("_", " ")


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def measurements(measured: float | list[float] | None) -> list[float]:
    """What was measured once, often, or not at all, as a list."""
    return measured if isinstance(measured, list) else [] if measured is None else [measured]
