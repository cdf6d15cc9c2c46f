"""Report → report.html (one file, no network), report.md for Prefect. Everything comes from the report alone."""

from __future__ import annotations

import json
import statistics
from decimal import Decimal
from importlib import resources
from typing import Any

import jinja2

from tokenmill.cost import words
from tokenmill.cost.accounting import STILL_OPEN
from tokenmill.cost.money import format_rate, format_usd
from tokenmill.cost.plots import MIDDLE, NARROW, WIDE, data_uri, inline, plots
from tokenmill.cost.report_model import Figure, Report

_TEMPLATES = resources.files("tokenmill.cost").joinpath("templates")
_TILES = ("usd_per_million_tokens", "total_usd", "usd_per_tenth_nat", "tokens_per_second", "lost_work_usd")


def render_html(report: Report) -> str:
    drawings = {
        title: {"wide": inline(draw(WIDE), f"{title} w"), "narrow": inline(draw(NARROW), f"{title} n")}
        for title, draw in plots(report).items()
    }
    return _template("report.html", autoescape=True).render(
        **_context(report), css=_TEMPLATES.joinpath("report.css").read_text(encoding="utf-8"), drawings=drawings
    )


def render_markdown(report: Report) -> str:
    images = {title: data_uri(draw(MIDDLE), title) for title, draw in plots(report).items()}
    return _template("report.md", autoescape=False).render(**_context(report), images=images)


def _template(name: str, *, autoescape: bool) -> jinja2.Template:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, autoescape=autoescape, keep_trailing_newline=True
    )
    return environment.from_string(_TEMPLATES.joinpath(name).read_text(encoding="utf-8"))


def _context(report: Report) -> dict[str, Any]:
    return {
        "report": report,
        "tiles": _tiles(report),
        "money_title": "Where the time went" if report.cost.total_usd is None else "Where the money went",
        "receipt": json.dumps(report.receipt, indent=2, ensure_ascii=False),
        "proof": _proof(report.receipt),
        "environment": [(key, _plain(item)) for key, item in report.environment.items()],
        "summary": _trainer(report.summary),
        "prices": _prices(report),
        "usd": format_usd,
        "rate": lambda usd: "unpriced" if usd is None else format_rate(usd),
        "tight": lambda text: text.replace(" %", "\N{NO-BREAK SPACE}%"),
        "exact": lambda usd: "n/a" if usd is None else f"{usd:f}",
        "value": figure_value,
        "continuation": _continuation,
        "fenced": lambda sample: (sample["prompt"] + _continuation(sample)).replace("```", "'''"),
        "duration": words.duration,
        "count": words.count,
        "moment": words.moment,
        "clock": lambda unix: words.moment(unix).removesuffix(" UTC"),
        "ending": lambda reason: "writing this" if reason == STILL_OPEN else words.phrase(reason),
        "phrase": words.phrase,
    }


def figure_value(figure: Figure) -> str:
    if figure.value is None:
        return "n/a"
    if figure.unit.startswith("USD"):
        return format_usd(figure.value)
    return f"{words.count(float(figure.value))} {figure.unit}"


_TRAINER = ("architecture", "parameters", "flops_per_token", "threads", "tokens_per_second", "skipped_updates")


def _trainer(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """What a reader wants of the trainer's summary, in words."""
    frozen = summary.get("frozen") or {}
    shown = [(key, _plain(summary[key])) for key in _TRAINER if summary.get(key) is not None]
    for key in ("precision", "xla"):
        if key in frozen:
            reason = frozen.get(f"{key}_reason")
            shown.append((key, f"{frozen[key]}{f' ({reason})' if reason else ''}"))
    if "micro_batch_size" in frozen:
        shown.append(("micro_batch_size", f"{frozen['micro_batch_size']} sequences"))
    if devices := summary.get("devices"):
        shown.append(("devices", _plain(devices)))
    if memory := summary.get("peak_memory_bytes"):
        shown.append(("peak memory", f"{memory / 2**30:.2f} GiB"))
    if seconds := summary.get("compile_seconds"):
        shown.append(("build and compile", words.duration(seconds)))
    for key, label in (
        ("checkpoint_stall_seconds", "training stood still"),
        ("checkpoint_save_seconds", "saving took"),
    ):
        if values := words.measurements(summary.get(key)):
            middle = words.duration(statistics.median(values))
            shown.append((f"checkpoints: {label}", f"{middle} (median of {len(values)})"))
    return shown


def _tiles(report: Report) -> list[dict[str, str]]:
    by_key = {figure.key: figure for figure in report.figures}
    shown = [by_key[key] for key in _TILES if key in by_key and by_key[key].value]
    tiles = [
        {"label": figure.label.lower(), "value": figure_value(figure).removesuffix(" tokens / s")} for figure in shown
    ]
    tiles.append({"label": "billed", "value": words.duration(report.cost.billed_seconds)})
    if report.cost.train_goodput_pct is not None:
        tiles.append({"label": "goodput of training", "value": f"{report.cost.train_goodput_pct:.1f} %"})
    if report.evaluations:
        tiles.append({"label": "evaluation loss, nats", "value": f"{report.evaluations[-1].loss:.3f}"})
    return tiles


def _proof(receipt: dict[str, Any] | None) -> str:
    """The receipt in words."""
    if not receipt or "epochs" not in receipt:
        return ""
    epochs = receipt["epochs"]
    skipped = sum(epoch["skipped"]["rows"] for epoch in epochs)
    verdict = (
        "and in each epoch the rows seen and skipped are exactly those of the order, by count, sum and hash: nothing "
        "was lost, nothing was trained twice."
        if receipt["balanced"]
        else "but the rows seen and skipped are NOT those of the order: rows were lost or trained twice."
    )
    rows = receipt["rows"]
    return (
        f"The model was made from {receipt['cursor']:,} sequences, {receipt['cursor'] / rows:.2f} epochs of "
        f"{rows:,} rows ({skipped:,} skipped), {verdict}"
    )


def _prices(report: Report) -> list[str]:
    seen: dict[str, None] = {}
    for row in report.attempts:
        if row.usd_per_hour is not None:
            day = f", read on {row.price_as_of}" if row.price_as_of else ""
            note = f" ({row.price_note})" if row.price_note else ""
            rate = format_rate(row.usd_per_hour)
            seen[f"Price: {rate} an hour for {row.machine_type}, from {row.price_source}{day}{note}."] = None
    return list(seen)


def _continuation(sample: dict[str, str]) -> str:
    """What the model added: some writers give the text with its prompt, some without."""
    prompt, text = sample["prompt"], sample["text"]
    return text[len(prompt) :] if text.startswith(prompt) else text


def _plain(item: Any) -> str:
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, int) and abs(item) >= 10_000:
        return f"{item:,}"
    if isinstance(item, float):
        return f"{item:,.4g}"
    if isinstance(item, dict):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in item.items())
    if isinstance(item, list):
        return ", ".join(_plain(inner) for inner in item)
    return str(item if not isinstance(item, Decimal) else f"{item:f}")
