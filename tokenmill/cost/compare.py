"""Several nights side by side, from their report.json files: what `tokenmill costs` shows."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from pydantic import BaseModel, ConfigDict

from tokenmill.cost import words
from tokenmill.cost.baseline import BaselineRow, cheapest, like
from tokenmill.cost.money import format_usd
from tokenmill.workspace import Workspace, read_json


class NightCost(BaseModel):
    """One report, in brief."""

    model_config = ConfigDict(frozen=True)

    generated: float
    """Unix seconds."""
    pipeline: str
    outcome: str
    run_id: str | None
    total_usd: Decimal | None
    usd_per_million_tokens: Decimal | None
    tokens: int
    billed_seconds: float
    goodput_pct: float
    eval_loss: float | None
    first_line: str
    folder: str
    """Of the report, relative to the workspace."""


HEADINGS = ("night", "pipeline", "outcome", "cost", "per 1 M tokens", "tokens", "billed", "goodput", "eval loss", "run")


def nights(workspace: Workspace, *, since: float = 0.0, pipeline: str | None = None) -> list[NightCost]:
    """Every report since then (Unix seconds), oldest first."""
    found = [
        _brief(read_json(path), workspace.relative(path.parent))
        for kind in ("runs", "invocations")
        for path in (workspace.root / kind).glob("*/report/report.json")
    ]
    chosen = [night for night in found if night.generated >= since and pipeline in (None, night.pipeline)]
    return sorted(chosen, key=lambda night: night.generated)


def table(rows: list[NightCost]) -> list[tuple[str, ...]]:
    """The cells under `HEADINGS`; the last line sums what was spent, where every night has a price."""
    lines: list[tuple[str, ...]] = [
        (
            words.moment(row.generated),
            row.pipeline,
            words.phrase(row.outcome),
            format_usd(row.total_usd),
            format_usd(row.usd_per_million_tokens),
            words.count(row.tokens),
            words.duration(row.billed_seconds),
            f"{row.goodput_pct:.1f} %",
            "" if row.eval_loss is None else f"{row.eval_loss:.3f}",
            row.run_id or "",
        )
        for row in rows
    ]
    if len(rows) > 1:
        amounts = [row.total_usd for row in rows]
        total = None if None in amounts else sum((usd for usd in amounts if usd is not None), Decimal(0))
        tokens, seconds = sum(row.tokens for row in rows), sum(row.billed_seconds for row in rows)
        lines.append(
            ("in all", "", "", format_usd(total), "", words.count(tokens), words.duration(seconds), "", "", "")
        )
    return lines


def cheapest_sentences(rows: list[BaselineRow], pipeline: str | None = None) -> list[str]:
    """For each kind of run (model, sequence length, hardware): the cheapest known setting, or that there is none."""
    chosen = [row for row in rows if pipeline in (None, row.pipeline) and not row.out_of_memory]
    sentences: list[str] = []
    while chosen:
        first = chosen[-1].configuration
        alike = like(chosen, first)
        chosen = [row for row in chosen if row not in alike]
        where = f"model {first.model}, {first.sequence_length} tokens a row, {first.machine_type or 'unknown machine'}"
        best = cheapest(alike, first)
        if best is None:
            sentences.append(f"{where}: {words.plural(len(alike), 'run')}, too few with one setting for an answer")
            continue
        knobs = ", ".join(f"{name} {value}" for name, value in best.configuration.knobs().items() if value is not None)
        low, high = best.low_usd_per_million_tokens, best.high_usd_per_million_tokens
        sentences.append(
            f"{where}: cheapest known is {knobs}, {format_usd(best.median_usd_per_million_tokens)} per million tokens "
            f"({words.plural(best.runs, 'run')}, {format_usd(low)} to {format_usd(high)})"
        )
    return sentences


def _brief(report: dict[str, Any], folder: str) -> NightCost:
    figures = {figure["key"]: figure["value"] for figure in report["figures"]}
    return NightCost(
        generated=report["generated"],
        pipeline=report["pipeline"],
        outcome=report["outcome"],
        run_id=report["run_id"],
        total_usd=report["cost"]["total_usd"],
        usd_per_million_tokens=figures.get("usd_per_million_tokens"),
        tokens=report["tokens"]["retained_nonpadding"] if report["tokens"] else 0,
        billed_seconds=report["cost"]["billed_seconds"],
        goodput_pct=report["cost"]["goodput_pct"],
        eval_loss=report["evaluations"][-1]["loss"] if report["evaluations"] else None,
        first_line=report["first_line"],
        folder=folder,
    )
