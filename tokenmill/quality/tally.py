"""Adds up what was measured shard by shard, and judges the whole.

A `Measurement` is what Great Expectations found for one rule in one table or shard: which rows violate it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

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
        if "tokens" in rows.column_names:
            rows = rows.sort_by([("tokens", "descending")])
        for row in rows.slice(0, MAX_OFFENDERS).to_pylist():
            heapq.heappush(self.heaviest, self._violator(row))
            if len(self.heaviest) > MAX_OFFENDERS:
                heapq.heappop(self.heaviest)

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
        "partly": f" ({note})" if note else "",
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
        if rule.tolerated_of == "tokens":
            return f"{number(share_pct)} % of tokens, in {number(tally.violators)} documents"
        return f"{number(tally.violators)} of {number(tally.measured)} documents ({number(share_pct)} %)"
    worst = tally.worst_first()
    if not worst:
        return f"none of {number(tally.measured)}"
    return f"{number(worst[0].value)}{rule.unit}"


def _offender(rule: Rule, violator: Violator) -> Offender:
    value = violator.value
    shown = f"{number(value)}{rule.unit}" if isinstance(value, (int, float)) else str(value)
    return Offender(
        source=violator.source,
        position=violator.position,
        observed=f"{rule.column} {shown}",
        document=_document(rule.table, violator),
    )


def _document(table: TableName, violator: Violator) -> str:
    return violator.key if table == "documents" else ""


@dataclass
class OwnRule:
    """An expectation of the pipeline's own suite, and what it found over all shards.

    One over the values of rows is added up over the shards and judged by `mostly` as a whole; one over an aggregate (a
    mean, a count) holds when it holds in every shard.
    """

    name: str
    expected: str
    severity: str
    """Of Great Expectations: critical, warning or info."""
    mostly: float
    tally: Tally
    aggregates: list[tuple[str, Any]] = field(default_factory=list)
    """Of an aggregate: shard or table, and the value there."""
    broken: list[tuple[str, Any]] = field(default_factory=list)
    """Those of `aggregates` that violate it."""

    def add_aggregate(self, name: str, value: Any, *, holds: bool) -> None:
        self.aggregates.append((name, value))
        if not holds:
            self.broken.append((name, value))


def judge_own(rule: OwnRule) -> Finding:
    """The finding of a rule of the pipeline's own."""
    tally = rule.tally
    unit = tally.table if tally.table == "documents" else f"{tally.table} rows"
    offenders = tuple(
        Offender(source=v.source, position=v.position, observed=str(v.value), document=_document(tally.table, v))
        for v in tally.worst_first()
    )
    if rule.aggregates:
        violated = bool(rule.broken)
        shown = rule.broken or rule.aggregates
        observed = ", ".join(f"{value} in {name}" for name, value in shown[:3]) + (", ..." if len(shown) > 3 else "")
        offenders = tuple(Offender(source=name, position="", observed=str(value)) for name, value in rule.broken[:10])
        count = len(rule.broken)
    else:
        violated = tally.violators > (1.0 - rule.mostly) * tally.measured + 1e-9
        observed = f"{number(tally.violators)} of {number(tally.measured)} {unit} violate it"
        count = tally.violators
    measured = bool(rule.aggregates) or tally.measured > 0
    outcome: Outcome = "not_measured" if not measured else _OWN_OUTCOMES[rule.severity] if violated else "pass"
    words = "does not hold" if violated else "holds"
    return Finding(
        rule=rule.name,
        origin="suite",
        outcome=outcome,
        expected=rule.expected,
        observed=observed if measured else "not measured",
        sentence=f"Your own rule {words}: {rule.expected} ({observed}).",
        offenders=offenders,
        offender_count=count,
    )


_OWN_OUTCOMES: dict[str, Outcome] = {"critical": "fail", "warning": "warn", "info": "pass"}
