"""The report's plots as SVG, by matplotlib: the only module here that imports it (about a second).

In a page that carries the palette as CSS variables, a plot follows the page's light or dark theme; on its own (Prefect
shows it as an image) it stands on white. Text stays text, so plots are small, and readers can search them.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Mapping, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tokenmill.cost.money import format_usd
from tokenmill.cost.report_model import Report
from tokenmill.cost.words import count, duration, phrase

PALETTE = {
    "ink": "#1b2126",
    "soft": "#66707a",
    "grid": "#d9dee3",
    "paper": "#ffffff",
    "goodput": "#1f7a4d",
    "overhead": "#4c78a8",
    "lost": "#c0392b",
    "waiting": "#b9a26a",
    "second": "#b3641f",
}
"""Light colours by role; report.css holds the dark ones under the same names."""

WIDE, MIDDLE, NARROW = 7.6, 6.2, 3.7
"""Inches of a plot on a desk, of one that must serve everywhere, and on a phone."""


def plots(report: Report) -> dict[str, Callable[[float], Canvas]]:
    """What there is to draw in this report, by title; each takes its width in inches."""
    chosen: dict[str, Callable[[float], Canvas]] = {}
    if report.cost.phases:
        chosen["Where the time went" if report.cost.total_usd is None else "Where the money went"] = lambda width: (
            _phases(report, width)
        )
    if len(report.attempts) > 0:
        chosen["When it ran"] = lambda width: _timeline(report, width)
    if any(point.loss is not None for point in report.curve):
        chosen["Loss"] = lambda width: _loss(report, width)
    if any(point.tokens_per_second for point in report.curve):
        chosen["Tokens a second"] = lambda width: _speed(report, width)
    if report.utilisation:
        chosen["Utilisation"] = lambda width: _utilisation(report, width)
    if sum(night.usd_per_million_tokens is not None for night in report.nights) > 1:
        chosen["Cost per million tokens, night by night"] = lambda width: _nights(report, width)
    return chosen


def svg(canvas: Canvas, salt: str) -> str:
    """The SVG element alone, the same bytes for the same plot; `salt` keeps the ids of one page's plots apart."""
    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        canvas.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    return re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL).strip()


def inline(canvas: Canvas, salt: str) -> str:
    """For a page: scales with its container, and takes its colours from the page's CSS variables."""
    text = re.sub(r' (width|height)="[\d.]+pt"', "", svg(canvas, salt), count=2)
    for role, colour in PALETTE.items():
        text = text.replace(colour, f"var(--{role})")
    return re.sub(r"font: ([\d.]+px) '[^;]*", r"font: \1 var(--font)", text)


def data_uri(canvas: Canvas, salt: str) -> str:
    """For Markdown: an image on its own."""
    canvas.patch.set_alpha(1)
    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        canvas.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, facecolor=PALETTE["paper"])
    return "data:image/svg+xml;base64," + base64.b64encode(out.getvalue().encode()).decode()


def _canvas(width: float, height: float) -> tuple[Canvas, Axes]:
    canvas = Canvas(figsize=(width, height), layout="constrained")
    axes = canvas.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(PALETTE["grid"])
    axes.tick_params(colors=PALETTE["soft"], labelsize=9, length=3)
    axes.xaxis.label.set_color(PALETTE["soft"])
    axes.yaxis.label.set_color(PALETTE["soft"])
    return canvas, axes


def _phases(report: Report, width: float) -> Canvas:
    rows = [row for row in report.cost.phases if row.share_pct >= 0.05][::-1]
    canvas, axes = _canvas(width, 0.5 + 0.3 * len(rows))
    axes.barh(
        [phrase(row.phase) for row in rows],
        [row.share_pct for row in rows],
        color=[PALETTE[row.kind] for row in rows],
        height=0.66,
    )
    for index, row in enumerate(rows):
        amount = duration(row.seconds) if row.usd is None else format_usd(row.usd)
        axes.annotate(
            f"{amount} · {row.share_pct:.1f} %",
            (row.share_pct, index),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=PALETTE["ink"],
        )
    axes.set_xlim(0, max(row.share_pct for row in rows) * (1.28 if width > 5 else 1.75))
    axes.tick_params(axis="y", labelcolor=PALETTE["ink"], length=0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} %"))
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="x", bottom=False, labelbottom=False)
    return canvas


def _timeline(report: Report, width: float) -> Canvas:
    stages = list(dict.fromkeys(row.stage for row in report.attempts))
    canvas, axes = _canvas(width, 0.75 + 0.32 * len(stages))
    origin = min(row.started for row in report.attempts)
    last = max(row.ended for row in report.attempts)
    unit, name = _time_unit(last - origin)
    for begin, end in report.cost.waiting:
        if end - begin > (last - origin) / 100:
            axes.axvspan(
                (begin - origin) / unit, (end - origin) / unit, color=PALETTE["waiting"], alpha=0.25, linewidth=0
            )
            middle = ((begin + end) / 2 - origin) / unit
            if end - begin > (last - origin) / 8:
                axes.text(
                    middle, len(stages) - 0.5, "waiting", fontsize=8, ha="center", va="top", color=PALETTE["soft"]
                )
    for row in report.attempts:
        colour = "lost" if row.exit_code not in {0, None} or (row.estimated and row.reason != "running") else "overhead"
        place = len(stages) - 1 - stages.index(row.stage)
        length = max(row.ended - row.started, (last - origin) / 400)
        axes.barh(place, length / unit, left=(row.started - origin) / unit, height=0.6, color=PALETTE[colour])
    axes.set_yticks(range(len(stages)), stages[::-1])
    axes.tick_params(axis="y", labelcolor=PALETTE["ink"], length=0)
    axes.set_xlabel(f"{name} since the first start", fontsize=9)
    return canvas


def _attempt_marks(axes: Axes, report: Report) -> None:
    """A line wherever another attempt took over."""
    for before, after in zip(report.curve, report.curve[1:], strict=False):
        if after.attempt != before.attempt:
            axes.axvline(after.step, color=PALETTE["lost"], linewidth=0.9, linestyle=(0, (4, 3)))
            axes.annotate(
                f"attempt {after.attempt}",
                (after.step, 0),
                xycoords=("data", "axes fraction"),
                xytext=(3, 3),
                textcoords="offset points",
                fontsize=8,
                va="bottom",
                color=PALETTE["lost"],
            )


def _by_attempt(report: Report, value: str) -> Mapping[int, tuple[Sequence[int], Sequence[float]]]:
    lines: dict[int, tuple[list[int], list[float]]] = {}
    for point in report.curve:
        number = getattr(point, value)
        if number is not None:
            steps, numbers = lines.setdefault(point.attempt, ([], []))
            steps.append(point.step)
            numbers.append(number)
    return lines


def _loss(report: Report, width: float) -> Canvas:
    canvas, axes = _canvas(width, 2.6)
    for index, (steps, losses) in enumerate(_by_attempt(report, "loss").values()):
        axes.plot(steps, losses, color=PALETTE["overhead"], linewidth=1.3, label="train" if index == 0 else None)
    if report.evaluations:
        axes.plot(
            [row.step for row in report.evaluations],
            [row.loss for row in report.evaluations],
            color=PALETTE["second"],
            marker="o",
            markersize=4,
            linewidth=1,
            label="held-out documents",
        )
    if report.unigram_entropy_nats is not None:
        axes.axhline(
            report.unigram_entropy_nats, color=PALETTE["soft"], linewidth=1, linestyle=":", label="unigram entropy"
        )
    _attempt_marks(axes, report)
    _steps_axis(axes)
    axes.legend(fontsize=8.5, frameon=False, labelcolor=PALETTE["ink"])
    return canvas


def _speed(report: Report, width: float) -> Canvas:
    canvas, axes = _canvas(width, 2.0)
    for steps, speeds in _by_attempt(report, "tokens_per_second").values():
        axes.plot(steps, speeds, color=PALETTE["goodput"], linewidth=1.3)
    axes.set_ylim(0, 1.25 * max(point.tokens_per_second or 0.0 for point in report.curve))
    _attempt_marks(axes, report)
    _steps_axis(axes)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    return canvas


def _utilisation(report: Report, width: float) -> Canvas:
    canvas, axes = _canvas(width, 2.0)
    origin = report.utilisation[0].time
    unit, name = _time_unit(report.utilisation[-1].time - origin)
    lines = (
        ("device_pct", "devices", "goodput"),
        ("cpu_pct", "processor", "overhead"),
        ("memory_used_pct", "memory", "second"),
    )
    for attribute, label, role in lines:
        for number, attempt in enumerate(dict.fromkeys(point.attempt for point in report.utilisation)):
            known = [p for p in report.utilisation if p.attempt == attempt and getattr(p, attribute) is not None]
            axes.plot(
                [(point.time - origin) / unit for point in known],
                [getattr(point, attribute) for point in known],
                color=PALETTE[role],
                linewidth=1.2,
                label=label if number == 0 and known else None,
            )
    axes.set_ylim(0, 128)
    axes.set_yticks(range(0, 101, 25))
    axes.set_xlabel(f"{name} since training began", fontsize=9)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} %"))
    axes.grid(axis="y", color=PALETTE["grid"], linewidth=0.6)
    axes.legend(fontsize=8.5, frameon=False, labelcolor=PALETTE["ink"], ncols=3, loc="upper center")
    return canvas


def _time_unit(seconds: float) -> tuple[int, str]:
    units = ((86_400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))
    return next((size, name) for size, name in units if size == 1 or seconds > 2 * size)


def _steps_axis(axes: Axes) -> None:
    axes.set_xlabel("step", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.grid(axis="y", color=PALETTE["grid"], linewidth=0.6)
    axes.set_axisbelow(True)


def _nights(report: Report, width: float) -> Canvas:
    nights = [night for night in report.nights if night.usd_per_million_tokens is not None]
    canvas, axes = _canvas(width, 2.2)
    costs = [float(night.usd_per_million_tokens or 0) for night in nights]
    axes.plot(range(1, len(costs) + 1), costs, color=PALETTE["overhead"], marker="o", markersize=4, linewidth=1.3)
    axes.plot([len(costs)], [costs[-1]], color=PALETTE["second"], marker="o", markersize=7)
    if report.baseline.median_usd_per_million_tokens is not None:
        axes.axhline(
            float(report.baseline.median_usd_per_million_tokens), color=PALETTE["soft"], linewidth=1, linestyle=":"
        )
    axes.set_ylim(0, 1.15 * max(costs))
    axes.grid(axis="y", color=PALETTE["grid"], linewidth=0.6)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("run, the newest on the right", fontsize=9)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_usd(value)))
    return canvas
