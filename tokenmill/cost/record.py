"""Evidence of a finished run → its row of the baseline database."""

from __future__ import annotations

from tokenmill.cost.baseline import BaselineRow, Configuration
from tokenmill.cost.collect import Evidence
from tokenmill.cost.figures import usd_per_million


def baseline_row(evidence: Evidence, configuration: Configuration) -> BaselineRow:
    """The evidence must hold a run with at least one train attempt."""
    assert evidence.run is not None
    account = evidence.account
    assert account.kept
    attempts = [account.attempts[index] for index in account.kept]
    billed = account.billed_us
    phases: dict[str, int] = {}
    for cell, duration in account.cell_us.items():
        if not cell.lost:
            phases[cell.phase] = phases.get(cell.phase, 0) + duration
    stepping = account.us_where(lambda cell: account.is_train(cell) and cell.phase in {"step", "input_wait"})
    return BaselineRow(
        run_id=evidence.run["id"],
        kind="run",
        pipeline=evidence.invocation["pipeline"],
        finished=attempts[-1].ended,
        configuration=configuration,
        market=attempts[-1].spawned.get("market"),
        usd_per_hour=attempts[-1].usd_per_hour,
        total_usd=account.usd,
        usd_per_million_tokens=usd_per_million(account.usd, account.retained.nonpadding_tokens),
        billed_seconds=billed / 1e6,
        stepping_seconds=stepping / 1e6,
        steps=account.retained.step,
        nonpadding_tokens=account.retained.nonpadding_tokens,
        processed_tokens=account.done.processed_tokens,
        phase_pct={name: 100 * duration / billed for name, duration in phases.items()},
        lost_pct=100 * account.us_where(lambda cell: cell.lost) / billed,
        eval_loss=evidence.train_outputs.get("eval_loss"),
        peak_memory_bytes=evidence.summary.get("peak_memory_bytes"),
    )
