"""Adds up what was measured shard by shard, and judges the whole.

A `Measurement` is what Great Expectations found for one rule in one table or shard: which rows violate it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.quality.rules import Rule, number
from tokenmill.quality.tables import TableName
from tokenmill.quality.verdict import MAX_OFFENDERS, Finding, Offender, Outcome


@dataclass(frozen=True)
class Measurement:
    """`violating` are row numbers in the table that was looked at; null values are not violations."""

    violating: Sequence[int]


@dataclass(frozen=True)
class Violator:
    """A row that violates a rule. Ordered by weight, so that the heaviest are kept."""

    weight: float
    source: str
    position: str
    value: Any
    key: str
    """Of a document, its content hash; of a shard or source, its name."""

    def __lt__(self, other: Violator) -> bool:
        return (self.weight, other.key) < (other.weight, self.key)


@dataclass
class Tally:
    """Of one rule over all the rows it looks at."""

    table: TableName
    column: str | None
    measured: int = 0
    measured_tokens: int = 0
    violators: int = 0
    violating_tokens: int = 0
    heaviest: list[Violator] = field(default_factory=list)
    last_value: Any = None
    """Of the rule's column: what the one-row table `snapshot` holds."""

    def add(self, table: pa.Table, measurement: Measurement) -> None:
        """`table` is the whole table that was measured, or one shard of it."""
        values = table[self.column] if self.column else None
        counted = table.filter(pc.is_valid(values)) if values is not None else table
        self.measured += counted.num_rows
        if self.table == "documents":
            self.measured_tokens += int(pc.sum(counted["tokens"]).as_py() or 0)
        if values is not None and table.num_rows:
            self.last_value = values[table.num_rows - 1].as_py()
        self.violators += len(measurement.violating)
        if not len(measurement.violating):
            return
        rows = table.take(pa.array(measurement.violating, pa.int64()))
        if self.table == "documents":
            self.violating_tokens += int(pc.sum(rows["tokens"]).as_py() or 0)
        for row in self._heaviest_rows(rows).to_pylist():
            heapq.heappush(self.heaviest, self._violator(row))
            if len(self.heaviest) > MAX_OFFENDERS:
                heapq.heappop(self.heaviest)

    def _heaviest_rows(self, rows: pa.Table) -> pa.Table:
        if "tokens" in rows.column_names and rows.num_rows > MAX_OFFENDERS:
            rows = rows.take(pc.top_k_unstable(rows, MAX_OFFENDERS, sort_keys=[("tokens", "descending")]))
        return rows

    def _violator(self, row: dict[str, Any]) -> Violator:
        key = next((str(row[name]) for name in ("document", "shard", "source") if name in row), self.table)
        return Violator(
            weight=float(row.get("tokens") or row.get("damaged") or 0),
            source=str(row.get("source") or row.get("shard") or "the snapshot"),
            position=str(row.get("position") or ""),
            value=row.get(self.column) if self.column else None,
            key=key,
        )

    def worst_first(self) -> list[Violator]:
        return sorted(self.heaviest, reverse=True)


def judge(rule: Rule, tally: Tally, note: str = "") -> Finding:
    """The finding of a built-in rule."""
    share_pct = _share_pct(rule, tally)
    outcome: Outcome = "pass"
    if not tally.measured:
        outcome = "not_measured"
    elif tally.violators and (share_pct is None or share_pct > rule.tolerated_pct):
        outcome = rule.severity
    worst = tally.worst_first()
    observed = _observed(rule, tally, share_pct)
    words = {
        "observed": observed,
        "expected": rule.expected(),
        "violators": number(tally.violators),
        "share": f"{number(share_pct)} %",
        "worst": worst[0].source if worst else "",
        "note": note or f"{observed} found, {rule.expected()} expected",
    }
    if outcome == "not_measured":
        sentence = f"Not measured: {note or 'there is nothing to measure it on'}."
    elif outcome == "pass" and "{worst}" in rule.good:
        sentence = f"No source is over {rule.expected().removeprefix('at most ')}."
    else:
        sentence = (rule.good if outcome == "pass" else rule.bad).format(**words)
    return Finding(
        rule=rule.name,
        origin=rule.origin,
        outcome=outcome,
        expected=rule.expected(),
        observed=observed,
        sentence=sentence,
        offenders=tuple(_offender(rule, v) for v in worst) if rule.table != "snapshot" else (),
        offender_count=tally.violators if rule.table != "snapshot" else 0,
    )


def _share_pct(rule: Rule, tally: Tally) -> float | None:
    """Violators' share of what was measured (percent), for rules over documents; None for the others."""
    if rule.table != "documents":
        return None
    if rule.tolerated_of == "tokens":
        return 100.0 * tally.violating_tokens / max(1, tally.measured_tokens)
    return 100.0 * tally.violators / max(1, tally.measured)


def _observed(rule: Rule, tally: Tally, share_pct: float | None) -> str:
    if not tally.measured:
        return "not measured"
    if rule.table == "snapshot":
        return f"{number(tally.last_value)}{rule.unit}"
    if rule.table == "documents":
        return f"{number(share_pct)} % of {rule.tolerated_of} ({number(tally.violators)} documents)"
    worst = tally.worst_first()
    if not worst:
        return f"{number(tally.measured)} {rule.table}, none violates it"
    return f"{number(worst[0].value)}{rule.unit}"


def _offender(rule: Rule, violator: Violator) -> Offender:
    value = violator.value
    shown = f"{number(value)}{rule.unit}" if isinstance(value, (int, float)) else str(value)
    return Offender(source=violator.source, position=violator.position, observed=f"{rule.column} {shown}")


def severity_outcome(severity: str) -> Literal["fail", "warn", "pass"]:
    """Great Expectations' severities in our words: a violated `info` expectation is told, and changes nothing."""
    return {"critical": "fail", "warning": "warn"}.get(severity, "pass")  # type: ignore[return-value]
