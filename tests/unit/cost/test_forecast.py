from __future__ import annotations

import time
from decimal import Decimal

import pytest

from tests.golden.cost_report import PIPELINE, golden_report
from tests.unit.cost.ledgers import FakeAttempt
from tests.unit.cost.nights import MIDNIGHT, Night
from tokenmill.cost.prices import resolve_price
from tokenmill.pipelines import Pipeline
from tokenmill.stages.forecast import budget_watch, forecast
from tokenmill.workspace import Workspace

PRICE = resolve_price(PIPELINE.cost)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = Workspace.open(str(tmp_path_factory.mktemp("measured")))
    golden_report(workspace)
    return workspace


def with_cost(**changes: object) -> Pipeline:
    assert PIPELINE.cost != "unpriced"
    return PIPELINE.model_copy(update={"cost": PIPELINE.cost.model_copy(update=changes)})


def with_length(**length: float) -> Pipeline:
    raw = PIPELINE.model_dump(mode="json")
    raw["training"]["length"] = length
    return Pipeline.model_validate(raw)


def test_a_new_workspace_knows_steps_and_tokens_only(tmp_path_factory: pytest.TempPathFactory) -> None:
    empty = Workspace.open(str(tmp_path_factory.mktemp("empty")))
    made = forecast(empty, PIPELINE, PRICE)
    assert made is not None
    assert (made.steps, made.source, made.usd) == (150, "none", None)
    assert forecast(empty, with_length(epochs=1), PRICE) is None


def test_measured_nights_make_the_estimate(measured: Workspace) -> None:
    made = forecast(measured, PIPELINE, PRICE)
    assert made is not None
    assert (made.source, made.runs) == ("baseline", 7)
    assert made.usd is not None
    # The six quiet nights cost $0.0033 each.
    assert made.usd[0] < Decimal("0.0034") < made.usd[2]
    assert any("interruptions are not counted" in sentence for sentence in made.sentences)


def test_epochs_are_counted_on_the_newest_snapshot(measured: Workspace) -> None:
    made = forecast(measured, with_length(epochs=2), PRICE)
    assert made is not None
    assert made.steps == -(-2 * 8_170 // 32)


def test_spot_arithmetic_uses_what_saving_and_restarting_took(measured: Workspace) -> None:
    price = resolve_price(with_cost(interruptions_per_hour=0.5).cost)
    made = forecast(measured, PIPELINE, price)
    assert made is not None
    assert made.checkpoint_interval_seconds == pytest.approx((2 * 0.4 * 7200) ** 0.5)


def test_the_watch_counts_everything_spent_before(tmp_path_factory: pytest.TempPathFactory) -> None:
    workspace = Workspace.open(str(tmp_path_factory.mktemp("watched")))
    night = Night(workspace, "a", at=MIDNIGHT, run_id="r1")  # $3.60 an hour: a tenth of a cent a second
    night.prepare(8.8)
    night.train(end=20, crash=True)
    night.save()
    path = workspace.run("r1") / "ledger" / "0002.jsonl"
    FakeAttempt(path, "train", at=night.now, monotonic=time.monotonic() - 5.0, run_id="r1", invocation_id="a")
    first_us = Decimal(str(10.0 + (2.4 + 9.0 + 2.5 + 20 * 0.52 + 0.4)))
    watch = budget_watch(workspace, with_cost(budget_usd=Decimal("0.10")), workspace.relative(path), "a", "r1")
    assert watch is not None
    assert watch.guard.spent_before_usd == pytest.approx(first_us / 1000, abs=Decimal("0.000001"))
    assert watch.look(200, 1_000).projected_usd is None
    watch.spawned_monotonic -= 10
    look = watch.look(300, 1_000)
    assert float(look.spent_usd) == pytest.approx(float(watch.guard.spent_before_usd) + 0.015, abs=0.001)
    assert look.projected_usd is not None
    assert float(look.projected_usd - look.spent_usd) == pytest.approx(0.070, abs=0.002)
    assert look.state == "warn"
    assert watch.guard.allowed_seconds == pytest.approx(100 - float(first_us) - 30)


def test_no_budget_no_watch(tmp_path_factory: pytest.TempPathFactory) -> None:
    workspace = Workspace.open(str(tmp_path_factory.mktemp("free")))
    assert budget_watch(workspace, PIPELINE, "none.jsonl", "a", "r1") is None
    assert budget_watch(workspace, PIPELINE.model_copy(update={"cost": "unpriced"}), "none.jsonl", "a", "r1") is None
