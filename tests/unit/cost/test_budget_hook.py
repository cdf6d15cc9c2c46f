from __future__ import annotations

import time
from decimal import Decimal
from types import SimpleNamespace

import pytest

from tokenmill.cost.budget import BudgetGuard
from tokenmill.stages.forecast import BudgetWatch

pytestmark = pytest.mark.tensorflow


def test_the_hook_warns_once_and_stops_before_the_budget_is_passed() -> None:
    from tokenmill.stages.budget_hook import BudgetHook

    def hook_after(seconds: float) -> BudgetHook:
        guard = BudgetGuard(budget_usd=Decimal("0.10"), usd_per_hour=Decimal("3.60"), reserve_seconds=10)
        watch = BudgetWatch(guard, time.monotonic() - seconds)
        return BudgetHook(watch, 1_000, warned.append, lambda kind, **fields: events.append((kind, fields["name"])))

    def info(tokens: int) -> SimpleNamespace:
        return SimpleNamespace(step=tokens, progress=SimpleNamespace(processed_tokens=tokens))

    warned: list[str] = []
    events: list[tuple[str, str]] = []
    assert hook_after(20).after(info(900)) is None
    assert warned == []
    hook = hook_after(60)
    assert hook.after(info(500)) is None
    hook._watch.spawned_monotonic -= 10  # ten seconds pass for 100 tokens: on the way to $0.11
    assert hook.after(info(600)) is None
    assert hook.after(info(600)) is None
    assert len(warned) == 1
    assert events == [("event", "budget_warning")]
    ending = hook_after(91).after(info(950))
    assert ending is not None
    assert ending.status == "stopped_by_budget"
    assert "$0.091" in ending.message
    assert "budget of $0.10" in ending.message
