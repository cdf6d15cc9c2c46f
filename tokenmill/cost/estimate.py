"""What a run will cost, before it starts: from measured runs like it, else from a few timed steps, else not at all.

No data, no estimate: with neither a baseline nor a calibration there are steps and tokens, and no time or money.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from pydantic import BaseModel, ConfigDict

from tokenmill.cost.baseline import BaselineRow, Configuration, like
from tokenmill.cost.money import format_usd, round_usd, to_microseconds, usd_of
from tokenmill.cost.prices import Price
from tokenmill.cost.spot import (
    break_even_interruptions_per_hour,
    checkpoint_interval_seconds,
    expected_interruptions,
    spot_overhead,
)
from tokenmill.cost.words import count, duration, plural
from tokenmill.errors import UserError

WIDE_PCT = 25.0
"""Half-width of the interval while fewer than three runs are known."""
LEAST_PCT = 5.0
"""No interval is narrower: corpora and machines differ from night to night."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Calibration(_Part):
    """A few dozen timed steps on the machine itself, compile and warm-up apart."""

    step_seconds: tuple[float, ...]
    start_seconds: float = 0.0
    """Start and compile, once an attempt."""


class Timing(_Part):
    """Measured facts about saving and starting, for the Spot arithmetic."""

    save_seconds: float
    restart_seconds: float


class Interval(_Part):
    low: float
    middle: float
    high: float


class Estimate(_Part):
    steps: int
    tokens_per_step: int
    """global_batch_size × sequence_length, padding included."""
    processed_tokens: int
    source: Literal["baseline", "calibration", "none"]
    runs: int
    """Measured runs that it rests on."""
    seconds: Interval | None = None
    usd: tuple[Decimal, Decimal, Decimal] | None = None
    """Low, middle, high."""
    checkpoint_interval_seconds: float | None = None
    expected_interruptions: float | None = None
    break_even_interruptions_per_hour: float | None = None
    sentences: tuple[str, ...]


def tokens_per_step(global_batch_size: int, sequence_length: int) -> int:
    """
    >>> tokens_per_step(512, 64)
    32768
    """
    return global_batch_size * sequence_length


def estimate(
    configuration: Configuration,
    steps: int,
    price: Price | None,
    history: Sequence[BaselineRow],
    calibration: Calibration | None = None,
    timing: Timing | None = None,
) -> Estimate:
    """Steps are those still to do. `history` is the whole database; what is like this run is picked here."""
    per_step = tokens_per_step(configuration.global_batch_size, configuration.sequence_length)
    tokens = per_step * steps
    known = [row for row in like(history, configuration) if row.tokens_per_second is not None]
    same = [row for row in known if row.configuration.knobs() == configuration.knobs()]
    # A knob that is still `auto` is unknown before the run: then every run like it counts.
    chosen = same or known
    # Whole runs tell of all that a run takes; sweep points of its steps and start alone.
    rows = ([row for row in chosen if row.kind == "run"] or chosen)[-20:]
    facts: dict[str, object] = {"steps": steps, "tokens_per_step": per_step, "processed_tokens": tokens}
    sentences = [f"{plural(steps, 'step')} of {per_step:,} tokens: {count(tokens)} tokens in all"]
    if rows:
        seconds, source = _from_runs(rows, tokens), "baseline"
        what = "measured run" if rows[0].kind == "run" else "short trial"
        sentences.append(f"time and cost from {plural(len(rows), what)} like it")
    elif calibration is not None and calibration.step_seconds:
        seconds, source = _from_calibration(calibration, steps), "calibration"
        sentences.append(f"time and cost from a calibration of {plural(len(calibration.step_seconds), 'step')}")
    else:
        sentences.append("no run like it is known here, so there is no estimate of its time and cost yet")
        return Estimate.model_validate({**facts, "source": "none", "runs": 0, "sentences": tuple(sentences)})
    facts |= {"source": source, "runs": len(rows)}
    if price is not None:
        seconds, more = _on_this_market(seconds, price, timing, facts)
        usd = tuple(
            round_usd(usd_of(to_microseconds(part), price.usd_per_hour))
            for part in (seconds.low, seconds.middle, seconds.high)
        )
        facts["usd"] = usd
        sentences.append(f"{format_usd(usd[1])}, between {format_usd(usd[0])} and {format_usd(usd[2])}")
        sentences += more
    sentences.append(f"{duration(seconds.middle)}, between {duration(seconds.low)} and {duration(seconds.high)}")
    return Estimate.model_validate({**facts, "seconds": seconds, "sentences": tuple(sentences)})


def check_budget(made: Estimate, budget_usd: Decimal | None, spent_usd: Decimal = Decimal(0)) -> None:
    """Raise `UserError` for a run whose middle estimate, with what it has cost so far, is over the budget."""
    if budget_usd is None or made.usd is None:
        return
    expected = made.usd[1] + spent_usd
    if expected > budget_usd:
        low, high = format_usd(made.usd[0] + spent_usd), format_usd(made.usd[2] + spent_usd)
        raise UserError(
            f"cost.budget_usd: the run is estimated at {format_usd(expected)} ({low} to {high}), over the budget of "
            f"{format_usd(budget_usd)}; raise the budget, or shorten training.length"
        )


def _from_runs(rows: Sequence[BaselineRow], tokens: int) -> Interval:
    """Stepping at the runs' median speed, plus the median of their other time (stages around it, compile, saves)."""
    speeds = [row.tokens_per_second or 0.0 for row in rows]
    other = statistics.median(row.billed_seconds - row.stepping_seconds for row in rows)
    middle = other + tokens / statistics.median(speeds)
    half = WIDE_PCT / 100
    if len(rows) >= 3:
        half = max(LEAST_PCT / 100, 2 * statistics.stdev(speeds) / statistics.mean(speeds))
    return _around(middle, half)


def _from_calibration(calibration: Calibration, steps: int) -> Interval:
    times = calibration.step_seconds
    middle = calibration.start_seconds + statistics.mean(times) * steps
    half = WIDE_PCT / 100
    if len(times) >= 3:
        half = max(2 * LEAST_PCT / 100, 2 * statistics.stdev(times) / statistics.mean(times) / math.sqrt(len(times)))
    return _around(middle, half)


def _around(middle: float, half: float) -> Interval:
    return Interval(low=middle * max(0.0, 1 - half), middle=middle, high=middle * (1 + half))


def _on_this_market(
    seconds: Interval, price: Price, timing: Timing | None, facts: dict[str, object]
) -> tuple[Interval, list[str]]:
    rate = price.interruptions_per_hour
    if price.market != "spot":
        return seconds, []
    if not rate:
        return seconds, ["interruptions are not counted: set cost.interruptions_per_hour to what you expect"]
    if timing is None:
        return seconds, ["interruptions are not counted: saving and restarting have not been measured yet"]
    interval = checkpoint_interval_seconds(timing.save_seconds, rate)
    factor = 1 + spot_overhead(timing.save_seconds, timing.restart_seconds, rate)
    longer = Interval(low=seconds.low, middle=seconds.middle * factor, high=seconds.high * factor)
    expected = expected_interruptions(longer.middle / 3600, rate)
    facts |= {"checkpoint_interval_seconds": interval, "expected_interruptions": expected}
    sentences = [f"about {expected:.1f} interruptions, so a checkpoint every {duration(interval)} is best"]
    if price.on_demand_usd_per_hour is not None:
        limit = break_even_interruptions_per_hour(
            price.on_demand_usd_per_hour, price.usd_per_hour, timing.save_seconds, timing.restart_seconds
        )
        facts["break_even_interruptions_per_hour"] = limit
        if limit is not None:
            verdict = "pays" if rate < limit else "does not pay"
            sentences.append(
                f"Spot {verdict}: it breaks even at {limit:.2f} interruptions an hour, {rate:.2f} are expected"
            )
    return longer, sentences


def usd_for_tokens(tokens: int, tokens_per_hour: float, usd_per_hour: Decimal) -> Decimal:
    """
    >>> usd_for_tokens(100_000_000, 48_000_000, Decimal("1.85"))  # 2.083 hours
    Decimal('3.854167')
    """
    return round_usd(Fraction(tokens) / Fraction(tokens_per_hour) * Fraction(usd_per_hour))


def usd_per_million_at(tokens_per_second: float, usd_per_hour: Decimal) -> Decimal:
    """
    >>> [usd_per_million_at(speed, Decimal("7.68")) for speed in (5_000, 6_250)]
    [Decimal('0.426667'), Decimal('0.341333')]
    """
    return usd_for_tokens(1_000_000, tokens_per_second * 3600, usd_per_hour)
