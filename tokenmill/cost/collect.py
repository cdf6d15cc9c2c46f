"""Gathers what a report is made of: invocation.json files, ledgers, the run's own files. Reads only, judges nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb

from tokenmill.cost.accounting import STILL_OPEN, AttemptAccount, read_attempt
from tokenmill.cost.ledger import read_records
from tokenmill.cost.run_account import Account, build_account
from tokenmill.workspace import Workspace, read_json

ALREADY_TRAINED = "already_trained"
UTILISATION_POINTS = 300
UTILISATION_COLUMNS = {
    "cpu_pct",
    "process_cpu_pct",
    "process_memory_bytes",
    "memory_used_pct",
    "device_pct",
    "device_memory_pct",
}
"""Of the sampler's; a machine without accelerators has no device columns."""


@dataclass(frozen=True)
class Evidence:
    """Everything that is known at the time of a report; absent files are None or empty."""

    invocation: dict[str, Any]
    """The one that ends with this report."""
    invocations: list[dict[str, Any]]
    """All that worked on the run, oldest first, this one included."""
    account: Account
    run: dict[str, Any] | None = None
    manifest: dict[str, Any] | None = None
    verdict: dict[str, Any] | None = None
    """The outputs of the validate stage that let the run start, or refused it."""
    summary: dict[str, Any] = field(default_factory=dict)
    receipt: dict[str, Any] | None = None
    metrics: list[dict[str, Any]] = field(default_factory=list)
    evaluation: list[dict[str, Any]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    utilisation: list[dict[str, Any]] = field(default_factory=list)
    alarms: list[dict[str, Any]] = field(default_factory=list)

    @property
    def train_outputs(self) -> dict[str, Any]:
        return last_outputs(self.invocations, "train")

    @property
    def prepare_outputs(self) -> dict[str, Any]:
        return last_outputs(self.invocations, "prepare")


def collect(workspace: Workspace, invocation_id: str, run_id: str | None, own_ledger: str | None = None) -> Evidence:
    """The evidence for one report. `own_ledger` is the reporting stage's, relative to the workspace: still open."""
    invocation = read_json(workspace.invocation(invocation_id) / "invocation.json")
    invocations = [invocation]
    train: list[AttemptAccount] = []
    run_folder = workspace.run(run_id) if run_id else None
    if run_folder is not None:
        train = list(_attempts(run_folder / "ledger", workspace, own_ledger))
        invocations = _invocations_of(
            workspace, run_id, {str(a.spawned.get("invocation_id")) for a in train}, invocation
        )
    others = [
        attempt
        for item in invocations
        for attempt in _attempts(workspace.invocation(item["id"]) / "ledger", workspace, own_ledger)
    ]
    verdict = last_outputs(invocations, "validate")
    evidence = Evidence(invocation, invocations, build_account(others, train), verdict=verdict or None)
    snapshot = last_outputs(invocations, "prepare").get("snapshot")
    if run_folder is not None:
        run = _json(run_folder / "run.json")
        snapshot = (run or {}).get("snapshot", snapshot)
        evidence = replace(
            evidence,
            run=run,
            summary=_json(run_folder / "summary.json") or {},
            receipt=_json(run_folder / "receipt.json"),
            metrics=list(json_lines(run_folder / "metrics.jsonl")),
            evaluation=list(json_lines(run_folder / "evaluation.jsonl")),
            samples=_json(run_folder / "samples.json") or [],
            utilisation=read_utilisation(run_folder / "utilisation"),
            alarms=list(read_alarms(run_folder / "ledger")),
        )
    manifest = _json(workspace.snapshot(snapshot) / "manifest.json") if snapshot else None
    return replace(evidence, manifest=manifest)


def last_outputs(invocations: list[dict[str, Any]], stage: str) -> dict[str, Any]:
    """The outputs of the newest record of `stage` that has some."""
    for invocation in reversed(invocations):
        for record in reversed(invocation.get("stages", [])):
            if record["stage"] == stage and record.get("outputs"):
                return dict(record["outputs"])
    return {}


def read_utilisation(folder: Path, points: int = UTILISATION_POINTS) -> list[dict[str, Any]]:
    """Means of the sampler's seconds, by attempt (the file's first number) and stretch of time; oldest first.

    At most about `points` of them, with the device columns where the sampler has any.
    """
    if not any(folder.glob("[0-9]*.parquet")):
        return []
    source = "read_parquet(?, union_by_name = true, filename = 'file')"
    files = str(folder / "[0-9]*.parquet")
    with duckdb.connect(config={"threads": 1}) as database:
        names = [row[0] for row in database.execute(f"DESCRIBE SELECT * FROM {source}", [files]).fetchall()]
        means = ", ".join(f'avg("{name}") AS "{name}"' for name in names if name in UTILISATION_COLUMNS)
        query = f"""
            WITH seconds AS (SELECT *, CAST(regexp_extract(file, '([0-9]+)-[0-9]+[.]parquet$', 1) AS INTEGER) AS attempt
                             FROM {source}),
                 width AS (SELECT greatest(1, (max(time) - min(time)) / ?) AS w, min(time) AS begin FROM seconds)
            SELECT attempt, avg(time) AS time, {means} FROM seconds, width
            GROUP BY attempt, floor((time - begin) / w) ORDER BY time"""
        found = database.execute(query, [files, points])
        columns = [column[0] for column in found.description or []]
        return [dict(zip(columns, row, strict=True)) for row in found.fetchall()]


def read_alarms(ledgers: Path) -> Iterator[dict[str, Any]]:
    """What the observer and the watchdog wrote into the train attempts' ledgers, attempt by attempt."""
    for path in sorted(ledgers.glob("*.jsonl")):
        for record in read_records(path):
            if record["kind"] == "event" and record.get("name") in ("alarm", "hang"):
                yield {
                    "time": record["time"],
                    "attempt": int(path.stem),
                    "kind": record.get("alarm", record["name"]),
                    "cause": record.get("cause"),
                    "sentence": record["sentence"],
                    "usd_per_hour_wasted": record.get("usd_per_hour_wasted"),
                }


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Whole lines of a JSON Lines file; a torn one, or a missing file, is passed over."""
    if not path.is_file():
        return
    for line in path.read_bytes().splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def _invocations_of(
    workspace: Workspace, run_id: str | None, known: set[str], current: dict[str, Any]
) -> list[dict[str, Any]]:
    """Those that worked on the run; one that only found it finished is a night of its own."""
    found = {current["id"]: current}
    for path in (workspace.root / "invocations").glob("*/invocation.json"):
        item = read_json(path)
        worked = item.get("run_id") == run_id and item.get("outcome") != ALREADY_TRAINED
        if item["id"] in known or worked:
            found[item["id"]] = item
    return sorted(found.values(), key=lambda item: (item["started"], item["id"]))


def _attempts(folder: Path, workspace: Workspace, own_ledger: str | None) -> Iterator[AttemptAccount]:
    for path in sorted(folder.glob("*.jsonl")):
        attempt = read_attempt(path)
        if attempt is not None:
            own = own_ledger is not None and path == workspace.root / own_ledger
            yield replace(attempt, reason=STILL_OPEN) if own else attempt


def _json(path: Path) -> Any:
    return read_json(path) if path.is_file() else None
