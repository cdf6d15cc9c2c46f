"""The verdict as plain rows and Markdown, for whoever shows it (the flow publishes them as Prefect artifacts)."""

from __future__ import annotations

from tokenmill.quality.verdict import Finding, Verdict

MARKS = {"pass": "✅", "warn": "⚠️", "fail": "❌", "not_measured": "➖"}
TITLES = {
    "pass": "The snapshot may be trained on",
    "warn": "The snapshot may be trained on, with warnings",
    "fail": "The snapshot is refused",
}
ORDER = ("fail", "warn", "pass", "not_measured")


def ordered(verdict: Verdict) -> list[Finding]:
    """The gravest first, else in the order of the rules."""
    return sorted(verdict.findings, key=lambda finding: ORDER.index(finding.outcome))


def table_rows(verdict: Verdict) -> list[dict[str, str]]:
    """A row a rule: for a Prefect table artifact."""
    return [
        {
            "rule": finding.rule,
            "outcome": f"{MARKS[finding.outcome]} {finding.outcome.replace('_', ' ')}",
            "expected": finding.expected,
            "observed": finding.observed,
            "in words": finding.sentence,
        }
        for finding in ordered(verdict)
    ]


def markdown(verdict: Verdict) -> str:
    """A short page: what was decided and why, then every rule."""
    reference = f"compared with `{verdict.reference}`" if verdict.reference else "first of its kind: drift not measured"
    lines = [
        f"## {MARKS[verdict.verdict]} {TITLES[verdict.verdict]}",
        "",
        f"Snapshot `{verdict.snapshot}`, {reference}.",
        "",
        *(f"- {_escape(sentence)}" for sentence in verdict.sentences()),
        "",
        "| rule | outcome | expected | observed |",
        "|---|---|---|---|",
    ]
    for finding in ordered(verdict):
        outcome = f"{MARKS[finding.outcome]} {finding.outcome.replace('_', ' ')}"
        lines.append(f"| {finding.rule} | {outcome} | {_escape(finding.expected)} | {_escape(finding.observed)} |")
    for finding in ordered(verdict):
        if finding.outcome in {"fail", "warn"} and finding.offenders:
            lines += ["", f"**{finding.rule}**, {len(finding.offenders)} of {finding.offender_count:,}:", ""]
            lines += [f"- {_offender(o.source, o.position, o.observed, o.excerpt)}" for o in finding.offenders]
    return "\n".join(lines) + "\n"


def _offender(source: str, position: str, observed: str, excerpt: str) -> str:
    where = f"`{_code(source)}`" + (f" `{_code(position)}`" if position else "")
    return f"{where}: {_escape(observed)}" + (f" — `{_code(excerpt)}`" if excerpt else "")


def _code(text: str) -> str:
    """Inside backquotes nothing else ends the span; a pipe would end a table's cell."""
    return text.replace("`", "ˋ").replace("|", "¦")


def _escape(text: str) -> str:
    for character in "\\`*_[]<>|#":
        text = text.replace(character, f"\\{character}")
    return text
