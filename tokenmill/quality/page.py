"""One self-contained HTML page about a validation: no scripts, no network, light and dark, wide and narrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tokenmill.quality.artifacts import ORDER, ordered
from tokenmill.quality.rules import number
from tokenmill.quality.verdict import Verdict

HEADLINES = {"pass": "May be trained on", "warn": "May be trained on, with warnings", "fail": "Refused"}
OUTCOME_WORDS = {"pass": "pass", "warn": "warn", "fail": "fail", "not_measured": "not measured"}


def render(verdict: Verdict, summary: dict[str, Any]) -> str:
    """The page; `summary` is what summary.json holds. All text from the corpus is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    return environment.get_template("page.html").render(
        verdict=verdict,
        violated=[finding for finding in ordered(verdict) if finding.outcome in {"fail", "warn"}],
        others=[finding for finding in ordered(verdict) if finding.outcome not in {"fail", "warn"}],
        headline=HEADLINES[verdict.verdict],
        words=OUTCOME_WORDS,
        counts=[(OUTCOME_WORDS[name], name, verdict.counts()[name]) for name in ORDER],
        summary=summary,
        tiles=_tiles(summary),
        lengths=_length_bars(summary["length_histogram"]),
        bands=_band_rows(summary),
    )


def _tiles(summary: dict[str, Any]) -> list[tuple[str, str, str]]:
    documents, tokens = summary["documents"], summary["tokens"]
    return [
        ("documents", number(documents["kept"]), f"of {number(documents['in'])} read"),
        ("train tokens", number(tokens["train"]), f"{number(documents['train'])} documents"),
        ("eval tokens", number(tokens["eval"]), f"{number(documents['eval'])} documents"),
        ("bytes per token", number(summary["bytes_per_token"]), f"vocabulary of {number(summary['vocab_size'])}"),
        ("unigram entropy", f"{number(summary['unigram_entropy_nats'])} nats", "the loss to get below"),
        (
            "padding",
            f"{number(summary['train_padding_pct'])} %",
            f"rows of {number(summary['sequence_length'])} tokens",
        ),
    ]


def _length_bars(histogram: list[int]) -> list[dict[str, Any]]:
    """Bar n holds the documents of 2^n to 2^(n+1) - 1 tokens; empty ones at both ends are left out."""
    filled = [index for index, count in enumerate(histogram) if count]
    if not filled:
        return []
    most = max(histogram)
    return [
        {"label": _power_of_two(index), "count": histogram[index], "pct": 100.0 * histogram[index] / most}
        for index in range(filled[0], filled[-1] + 1)
    ]


def _power_of_two(exponent: int) -> str:
    """8 · 512 · 4k · 2M."""
    suffix, divisor = ("M", 20) if exponent >= 20 else ("k", 10) if exponent >= 10 else ("", 0)
    return f"{2 ** (exponent - divisor)}{suffix}"


def _band_rows(summary: dict[str, Any]) -> list[dict[str, Any]]:
    now, before = summary["band_shares_pct"], summary["reference_band_shares_pct"]
    names = ["10 most frequent tokens", "next 90", "next 900", "next 9,000", "all others"]
    return [
        {"name": names[index], "now": share, "before": before[index] if before else None}
        for index, share in enumerate(now)
    ]
