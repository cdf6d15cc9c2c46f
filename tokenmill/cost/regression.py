"""The regression gate: tonight's dollars per million tokens against the median of the nights like it.

A difference counts when it is larger than the noise of those nights.

Noise is robust: 1.4826 × the median absolute deviation estimates a standard deviation that one odd night cannot spoil
(Rousseeuw & Croux, 1993).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from decimal import Decimal

from tokenmill.cost.baseline import BaselineRow, cheapest, like
from tokenmill.cost.money import format_usd
from tokenmill.cost.report_model import BaselineVerdict
from tokenmill.cost.settings import RegressionSettings
from tokenmill.cost.words import phrase, plural

NEWEST = 20
"""Runs that make the baseline; older ones tell of another time."""
MAD_TO_SIGMA = 1.4826
LEAST_POINTS = 1.0
"""A phase whose share moved by less explains nothing."""


def judge_cost(tonight: BaselineRow, history: Sequence[BaselineRow], settings: RegressionSettings) -> BaselineVerdict:
    """`history` may hold tonight's own row and runs of other kinds; they are left out here."""
    if tonight.usd_per_million_tokens is None:
        return BaselineVerdict(status="unpriced", runs=0, sentence="Without a price there is no cost to compare.")
    known = [
        row
        for row in like(history, tonight.configuration)
        if row.kind == "run"
        and row.run_id != tonight.run_id
        and row.usd_per_million_tokens is not None
        and row.finished <= tonight.finished
        and row.configuration.global_batch_size == tonight.configuration.global_batch_size
    ][-NEWEST:]
    if len(known) < settings.least_runs:
        sentence = (
            f"{plural(len(known), 'run')} like this one (model, sequence length, batch, machine) "
            f"{'is' if len(known) == 1 else 'are'} known; {settings.least_runs} make a baseline."
        )
        return BaselineVerdict(status="no_data", runs=len(known), sentence=sentence)
    costs = [float(row.usd_per_million_tokens or 0) for row in known]
    median, noise = _centre(costs)
    cost = float(tonight.usd_per_million_tokens)
    least = max(settings.noise * noise, settings.least_pct / 100 * median)
    status = "dearer" if cost - median > least else "cheaper" if median - cost > least else "ok"
    change_pct = 100 * (cost / median - 1) if median else 0.0
    cause, phase, points = None, None, None
    if status != "ok":
        cause, phase, points = _cause(tonight, known, dearer=status == "dearer", change_pct=change_pct)
    suggestion = _suggestion(tonight, history, settings) if status == "dearer" else None
    noise_pct = 100 * least / median if median else 0.0
    sentence = (
        f"{format_usd(tonight.usd_per_million_tokens)} per million tokens against a median of {format_usd(median)} "
        f"over the last {plural(len(known), 'run')} like it: {change_pct:+.1f} %, where {noise_pct:.1f} % is noise"
        f"{f'; {cause}' if cause else ''}."
    )
    return BaselineVerdict(
        status=status,
        runs=len(known),
        median_usd_per_million_tokens=Decimal(repr(median)).quantize(Decimal("1e-9")),
        change_pct=round(change_pct, 2),
        noise_pct=round(noise_pct, 2),
        moved_phase=phase,
        moved_points=None if points is None else round(points, 2),
        cause=cause,
        suggestion=suggestion,
        sentence=sentence,
    )


def _centre(values: Sequence[float]) -> tuple[float, float]:
    median = statistics.median(values)
    return median, MAD_TO_SIGMA * statistics.median(abs(value - median) for value in values)


def _cause(
    tonight: BaselineRow, known: Sequence[BaselineRow], *, dearer: bool, change_pct: float
) -> tuple[str | None, str | None, float | None]:
    """The hour's price if that explains at least half; else the phase that moved most; else the pace of steps."""
    hours = [float(row.usd_per_hour) for row in known if row.usd_per_hour is not None]
    if hours and tonight.usd_per_hour is not None:
        before = statistics.median(hours)
        moved = 100 * (float(tonight.usd_per_hour) / before - 1) if before else 0.0
        if moved * change_pct > 0 and abs(moved) >= abs(change_pct) / 2:
            return f"an hour costs {format_usd(tonight.usd_per_hour)} instead of {format_usd(before)}", None, None
    names = {name for row in [tonight, *known] for name in row.phase_pct} - {"step"}
    moves = {
        name: tonight.phase_pct.get(name, 0.0) - statistics.median(row.phase_pct.get(name, 0.0) for row in known)
        for name in sorted(names)
    }
    moves["lost work"] = tonight.lost_pct - statistics.median(row.lost_pct for row in known)
    phase = max(moves, key=lambda name: moves[name] if dearer else -moves[name])
    points = moves[phase]
    if (points if dearer else -points) < LEAST_POINTS:
        return "no phase's share moved: the steps themselves took " + ("longer" if dearer else "less"), None, None
    return f"{phrase(phase)} {'rose' if points > 0 else 'fell'} by {abs(points):.0f} points", phase, points


def _suggestion(tonight: BaselineRow, history: Sequence[BaselineRow], settings: RegressionSettings) -> str | None:
    """A setting of the knobs that this database has seen to be cheaper by more than `least_pct`."""
    best = cheapest(history, tonight.configuration)
    if best is None or tonight.usd_per_million_tokens is None:
        return None
    if float(best.median_usd_per_million_tokens) > float(tonight.usd_per_million_tokens) * (
        1 - settings.least_pct / 100
    ):
        return None
    here, there = tonight.configuration.knobs(), best.configuration.knobs()
    changes = [f"{name} {there[name]}" for name in here if here[name] != there[name] and there[name] is not None]
    return f"try {', '.join(changes)}" if changes else None
