"""The report's first line: what the night came to, in plain words."""

from __future__ import annotations

from tokenmill.cost.money import format_usd
from tokenmill.cost.report_model import Report
from tokenmill.cost.words import count, duration


def first_line(report: Report) -> str:
    """One or two sentences, the figure first; before them, loudly, that refused data was replaced by the last good."""
    refused = (report.validation or {}).get("refused")
    if not refused or report.outcome == "refused_by_validation":
        return _line(report)
    return f"Tonight's data was refused, the last good snapshot was trained on instead. {_line(report)}"


def _line(report: Report) -> str:
    outcome = report.outcome
    spent = _spent(report)
    if outcome == "refused_by_validation":
        return f"Refused by validation, nothing was trained: {spent}{_because(report)}"
    if outcome == "already_trained":
        return f"Nothing to train, this snapshot is trained already: looking took {spent}."
    trained = report.tokens is not None and report.tokens.retained_nonpadding > 0
    if not trained:
        how = {"user_error": "Stopped by a mistake that you can mend", "interrupted": "Interrupted"}.get(
            outcome, "Crashed"
        )
        return f"{how} before anything stayed in a model: {spent}{_because(report)}"
    price = _price(report)
    if outcome == "finished":
        return f"{price}{_baseline(report)}."
    how = {
        "interrupted": "Interrupted",
        "cancelled": "Stopped by hand",
        "stopped_by_budget": "Stopped by its budget",
        "stopped_by_condition": "Stopped by its own condition",
    }.get(outcome, "Crashed")
    assert report.tokens is not None
    return f"{how} at step {report.tokens.steps:,}. So far: {price}{_baseline(report)}."


def _spent(report: Report) -> str:
    seconds = duration(report.cost.billed_seconds)
    if report.cost.total_usd is None:
        return f"{seconds} billed, unpriced"
    return f"{format_usd(report.cost.total_usd)} for {seconds}"


def _price(report: Report) -> str:
    assert report.tokens is not None
    tokens = count(report.tokens.retained_nonpadding)
    value = report.figure("usd_per_million_tokens").value
    if value is None:
        return f"{tokens} tokens kept in {duration(report.cost.billed_seconds)} (unpriced)"
    return f"{format_usd(value)} per million tokens ({format_usd(report.cost.total_usd)} for {tokens} tokens kept)"


def _baseline(report: Report) -> str:
    baseline = report.baseline
    if baseline.status not in {"ok", "dearer", "cheaper"} or baseline.change_pct is None:
        return ""
    change = baseline.change_pct
    text = f", {abs(change):.0f} % {'above' if change >= 0 else 'below'} baseline"
    if baseline.status == "ok":
        return f"{text}, within its noise"
    if baseline.cause:
        text += f": {baseline.cause}"
    return f"{text}; {baseline.suggestion}" if baseline.suggestion and baseline.status == "dearer" else text


def _because(report: Report) -> str:
    verdict = report.validation or {}
    # Where the last good snapshot is trained already, the outcome's own sentence says that too.
    own = report.outcome == "refused_by_validation" and not verdict.get("refused")
    sentences = verdict.get("sentences") if own else None
    reason = (sentences[0] if sentences else report.message).strip()
    if not reason:
        return "."
    # A dotted key at the beginning stays as it is written in the file.
    begin = reason[0].upper() if reason.split()[0].isalpha() else reason[0]
    return f". {begin}{reason[1:]}{'' if reason.endswith('.') else '.'}"
