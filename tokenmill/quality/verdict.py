"""The verdict: what each rule expected, what was found, and what follows.

Outcomes of a rule: `pass`; `warn` or `fail` (violated, by the rule's severity); `not_measured` (there was nothing to
measure it on, such as drift without a reference). The verdict is the worst of them; `not_measured` is no violation,
and never a pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from tokenmill.errors import UserError
from tokenmill.workspace import read_json

VERDICT_NAME = "verdict.json"
FORMAT_VERSION = 1
MAX_OFFENDERS = 10
MAX_SENTENCES = 10

Outcome = Literal["pass", "warn", "fail", "not_measured"]
Origin = Literal["built-in", "drift", "suite"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Offender(_Record):
    """One document, source, shard or record that violates a rule."""

    source: str
    position: str
    """Where in the source: file, and record within it; empty for a whole source."""
    observed: str
    document: str = ""
    """Content hash, hexadecimal."""
    excerpt: str = ""
    """The first characters of the document, decoded from its tokens; control characters escaped."""


class Finding(_Record):
    """What one rule found."""

    rule: str
    origin: Origin
    outcome: Outcome
    expected: str
    observed: str
    sentence: str
    """For a person: what is wrong (or that it is not), with figures, and what to do."""
    offenders: tuple[Offender, ...] = ()
    offender_count: int = 0
    """All of them; `offenders` holds the first ten."""


class Verdict(_Record):
    verdict: Literal["pass", "warn", "fail"]
    snapshot: str
    rules: str
    """Hash of the rules and the reference: the name of the folder."""
    reference: str | None
    """The snapshot that drift was measured against."""
    findings: tuple[Finding, ...]
    format_version: int = FORMAT_VERSION

    def sentences(self) -> list[str]:
        """Up to ten plain sentences, the gravest first; one that says that all is well if nothing is violated."""
        violated = [f for outcome in ("fail", "warn") for f in self.findings if f.outcome == outcome]
        if violated:
            return [finding.sentence for finding in violated][:MAX_SENTENCES]
        passed = sum(f.outcome == "pass" for f in self.findings)
        unmeasured = sum(f.outcome == "not_measured" for f in self.findings)
        rest = f"; {unmeasured} could not be measured" if unmeasured else ""
        return [f"All {passed} rules that could be measured hold{rest}."]

    def counts(self) -> dict[str, int]:
        return {
            name: sum(f.outcome == name for f in self.findings) for name in ("fail", "warn", "pass", "not_measured")
        }


def decide(findings: Iterable[Finding]) -> Literal["pass", "warn", "fail"]:
    outcomes = {finding.outcome for finding in findings}
    return "fail" if "fail" in outcomes else "warn" if "warn" in outcomes else "pass"


def read_verdict(folder: Path) -> Verdict:
    """The verdict in a published validation folder; `UserError` if there is none or it is of another version."""
    try:
        raw: Any = read_json(folder / VERDICT_NAME)
    except FileNotFoundError:
        raise UserError(f"there is no validation at {folder}; run the validate stage first") from None
    if raw.get("format_version") != FORMAT_VERSION:
        raise UserError(f"the verdict in {folder} is of format {raw.get('format_version')}; validate again")
    return Verdict.model_validate(raw)


def require_passing(folder: Path, snapshot: str) -> Verdict:
    """The verdict of `folder`, if it lets `snapshot` be trained on; `UserError` if it does not."""
    verdict = read_verdict(folder)
    if verdict.snapshot != snapshot:
        raise UserError(f"the validation at {folder} is of snapshot {verdict.snapshot}, not of {snapshot}")
    if verdict.verdict == "fail":
        raise UserError(f"snapshot {snapshot} was refused by validation: {verdict.sentences()[0]}")
    return verdict
