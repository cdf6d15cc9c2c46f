"""What a pipeline's next start will cost, and the guard that holds a running attempt to its budget.

Both rest on what the workspace has measured: the baseline database, the ledgers, the trainer's summaries.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tokenmill.cost import baseline
from tokenmill.cost.accounting import STILL_OPEN
from tokenmill.cost.baseline import BaselineRow, like
from tokenmill.cost.budget import BudgetGuard, BudgetLook
from tokenmill.cost.collect import collect
from tokenmill.cost.estimate import Estimate, Timing, estimate
from tokenmill.cost.ledger import read_records
from tokenmill.cost.prices import Price
from tokenmill.cost.words import measurements
from tokenmill.pipelines import Pipeline
from tokenmill.runs import Run
from tokenmill.stages.configuration import configuration_of
from tokenmill.training.schedule import total_steps
from tokenmill.workspace import Workspace, read_json

RESTART_PHASES = ("start", "pull", "compile", "checkpoint_restore")
RESERVE_SECONDS = 30.0
"""Kept back for the end of a run whose own end has never been measured."""


def forecast(workspace: Workspace, pipeline: Pipeline, price: Price | None, run: Run | None = None) -> Estimate | None:
    """The rest of `run`, or a new run on a corpus as large as the last one; None while that length is unknown."""
    steps = _steps(workspace, pipeline, run)
    if steps is None:
        return None
    left = max(0, steps - (run.committed_step if run else 0))
    configuration = configuration_of(
        pipeline,
        machine_type=price.machine_type if price else None,
        run=run.model_dump(mode="json") if run else None,
    )
    history = baseline.read(workspace.baselines)
    return estimate(configuration, left, price, history, timing=_timing(workspace, like(history, configuration)))


def _steps(workspace: Workspace, pipeline: Pipeline, run: Run | None) -> int | None:
    length, batch = pipeline.training.length, pipeline.training.global_batch_size
    if length.steps is not None:
        return length.steps
    snapshot = workspace.snapshot(run.snapshot) / "manifest.json" if run else _newest_manifest(workspace)
    if snapshot is None or not snapshot.is_file():
        return None
    train = read_json(snapshot)["train"]
    if not train["rows"]:
        return None
    return total_steps(length, rows=train["rows"], tokens=train["tokens"], global_batch_size=batch)


def _newest_manifest(workspace: Workspace) -> Any:
    found = (workspace.root / "snapshots").glob("*/manifest.json")
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _timing(workspace: Workspace, rows: list[BaselineRow]) -> Timing | None:
    """How long saving and starting took in the newest runs like it; None where no run has measured it."""
    for row in reversed(rows):
        path = workspace.run(row.run_id) / "summary.json"
        saves = measurements(read_json(path).get("checkpoint_save_seconds")) if path.is_file() else []
        if saves:
            restart = sum(row.phase_pct.get(phase, 0.0) for phase in RESTART_PHASES) / 100 * row.billed_seconds
            return Timing(save_seconds=statistics.median(saves), restart_seconds=restart)
    return None


@dataclass
class BudgetWatch:
    """The budget guard of the attempt that runs now, on the clock that its supervisor bills by."""

    guard: BudgetGuard
    spawned_monotonic: float
    _begin: tuple[float, int] | None = None
    """Billed seconds and tokens at the first look."""

    def look(self, tokens_done: int, tokens_in_all: int) -> BudgetLook:
        """Tokens count since the run's start. On `stop`: save, and end as stopped_by_budget."""
        billed = time.monotonic() - self.spawned_monotonic
        self._begin = self._begin or (billed, tokens_done)
        return self.guard.look(billed, tokens_done, tokens_in_all, begin=self._begin)


def budget_watch(
    workspace: Workspace, pipeline: Pipeline, ledger: str, invocation_id: str, run_id: str
) -> BudgetWatch | None:
    """For a train stage; `ledger` is its own file. None without a budget, or where the attempt has no price.

    What earlier attempts and the stages around them cost counts as spent.
    """
    if pipeline.cost == "unpriced" or pipeline.cost.budget_usd is None:
        return None
    spawned = next((row for row in read_records(workspace.root / ledger) if row["kind"] == "spawned"), None)
    if spawned is None or spawned.get("usd_per_hour") is None:
        return None
    account = collect(workspace, invocation_id, run_id, ledger).account
    own = {index for index, attempt in enumerate(account.attempts) if attempt.reason == STILL_OPEN}
    spent = account.usd_where(lambda cell: cell.attempt not in own)
    guard = BudgetGuard(
        budget_usd=pipeline.cost.budget_usd,
        usd_per_hour=Decimal(spawned["usd_per_hour"]),
        spent_before_usd=spent or Decimal(0),
        warn_pct=pipeline.cost.budget_warn_pct,
        reserve_seconds=_reserve_seconds(workspace),
    )
    return BudgetWatch(guard, float(spawned["monotonic"]))


def _reserve_seconds(workspace: Workspace) -> float:
    """What follows the decision to stop (evaluation, save, export, report): twice its median, as measured so far."""
    measured = list(_endings(baseline.read(workspace.baselines)))
    return 2 * statistics.median(measured) if measured else RESERVE_SECONDS


def _endings(rows: list[BaselineRow]) -> Iterator[float]:
    for row in rows[-20:]:
        shares = (row.phase_pct.get(phase, 0.0) for phase in ("evaluate", "checkpoint_save", "export", "report"))
        yield sum(shares) / 100 * row.billed_seconds
