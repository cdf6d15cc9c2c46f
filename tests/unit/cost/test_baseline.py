from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tokenmill.cost import baseline
from tokenmill.cost.baseline import BaselineRow, Configuration, cheapest
from tokenmill.cost.regression import judge_cost
from tokenmill.cost.settings import RegressionSettings

HERE = Configuration(
    model="m1",
    sequence_length=256,
    global_batch_size=32,
    micro_batch_size=8,
    precision="bfloat16",
    xla="off",
    devices=1,
    machine_type="example-2-core",
)


def row(number: int, cost: str | None = "1.00", *, kind: str = "run", **changes: Any) -> BaselineRow:
    configuration = HERE.model_copy(update=changes.pop("configuration", {}))
    plain: dict[str, Any] = {
        "run_id": f"run{number:02d}",
        "kind": kind,
        "pipeline": "demo",
        "finished": 1_000.0 + number,
        "configuration": configuration,
        "market": "on_demand",
        "usd_per_hour": "0.10",
        "total_usd": cost,
        "usd_per_million_tokens": cost,
        "billed_seconds": 200.0,
        "stepping_seconds": 150.0,
        "steps": 150,
        "nonpadding_tokens": 1_000_000,
        "processed_tokens": 1_200_000,
        "phase_pct": {"step": 70.0, "input_wait": 5.0, "compile": 25.0},
        "lost_pct": 0.0,
    }
    return BaselineRow(**{**plain, **changes})


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    assert baseline.read(tmp_path / "baselines") == []
    rows = [row(1, "0.003787342", total_usd="0.004488"), row(2, None, eval_loss=4.25, peak_memory_bytes=2**33)]
    for one in rows:
        baseline.add(tmp_path / "it's here", one)
    assert baseline.read(tmp_path / "it's here") == rows
    assert baseline.read(tmp_path / "it's here", since=1_001.5) == rows[1:]


def test_history_is_never_rewritten_and_a_longer_ending_counts(tmp_path: Path) -> None:
    first = row(1, "1.00")
    path = baseline.add(tmp_path, first)
    before = path.read_bytes()
    assert baseline.add(tmp_path, row(1, "9.00")) == path
    assert path.read_bytes() == before
    longer = row(1, "0.90", steps=300)
    baseline.add(tmp_path, longer)
    assert baseline.read(tmp_path) == [longer]


def test_an_unfinished_file_of_another_writer_is_not_read(tmp_path: Path) -> None:
    baseline.add(tmp_path, row(1))
    (tmp_path / ".run02.beef").write_bytes(b"PAR1 half of it")
    assert len(baseline.read(tmp_path)) == 1


def test_columns_that_a_later_version_adds_do_no_harm(tmp_path: Path) -> None:
    import duckdb

    path = baseline.add(tmp_path, row(1))
    duckdb.sql(f"COPY (SELECT *, 7 AS later FROM '{path}') TO '{tmp_path / 'run02-1.parquet'}' (FORMAT parquet)")
    assert len(baseline.read(tmp_path)) == 1  # the same run


def test_only_like_is_compared_with_like() -> None:
    assert HERE.like(HERE.model_copy(update={"micro_batch_size": 16, "precision": "float32"}))
    assert HERE.like(HERE.model_copy(update={"devices": None}))
    for other in ({"model": "m2"}, {"sequence_length": 512}, {"machine_type": "p5.48xlarge"}, {"devices": 8}):
        assert not HERE.like(HERE.model_copy(update=other))


def test_the_cheapest_known_configuration_says_what_it_rests_on() -> None:
    rows = [row(1, "1.00"), row(2, "1.02")]
    rows += [row(n, cost, configuration={"micro_batch_size": 16}) for n, cost in ((3, "0.80"), (4, "0.90"))]
    rows += [row(5, "0.10", configuration={"micro_batch_size": 32})]  # once is not enough
    rows += [row(6, None, configuration={"micro_batch_size": 64}, out_of_memory=True)]
    best = cheapest(rows, HERE)
    assert best is not None
    assert (best.configuration.micro_batch_size, best.runs) == (16, 2)
    assert best.median_usd_per_million_tokens == Decimal("0.85")
    assert (best.low_usd_per_million_tokens, best.high_usd_per_million_tokens) == (Decimal("0.80"), Decimal("0.90"))
    assert cheapest(rows, HERE.model_copy(update={"model": "m2"})) is None


NIGHTS = [row(n, cost) for n, cost in enumerate(["1.00", "1.01", "0.99", "1.02", "1.00"], 1)]


def test_too_few_nights_give_no_verdict() -> None:
    verdict = judge_cost(row(9), NIGHTS[:2], RegressionSettings())
    assert (verdict.status, verdict.runs) == ("no_data", 2)
    assert "2 runs like this one" in verdict.sentence


def test_within_the_noise_is_no_news() -> None:
    verdict = judge_cost(row(9, "1.04"), NIGHTS, RegressionSettings())
    assert (verdict.status, verdict.cause) == ("ok", None)


def test_a_dearer_night_names_the_phase_that_moved_and_a_known_remedy() -> None:
    remedy = [row(20 + n, "0.70", configuration={"micro_batch_size": 16}, kind="sweep") for n in range(2)]
    tonight = row(9, "1.20", phase_pct={"step": 61.0, "input_wait": 14.0, "compile": 25.0})
    verdict = judge_cost(tonight, [*NIGHTS, *remedy], RegressionSettings())
    assert verdict.status == "dearer"
    assert verdict.change_pct == pytest.approx(20.0)
    assert (verdict.moved_phase, verdict.moved_points) == ("input_wait", pytest.approx(9.0))
    assert verdict.cause == "input wait rose by 9 points"
    assert verdict.suggestion == "try micro batch 16"


def test_a_dearer_hour_is_the_cause_itself() -> None:
    verdict = judge_cost(row(9, "1.50", usd_per_hour="0.15"), NIGHTS, RegressionSettings())
    assert verdict.cause == "an hour costs $0.15 instead of $0.10"


def test_slower_steps_are_named_where_no_share_moved() -> None:
    verdict = judge_cost(row(9, "1.50"), NIGHTS, RegressionSettings())
    assert verdict.cause is not None
    assert "steps themselves took longer" in verdict.cause


def test_a_cheaper_night_and_an_unpriced_one() -> None:
    assert judge_cost(row(9, "0.70"), NIGHTS, RegressionSettings()).status == "cheaper"
    assert judge_cost(row(9, None), NIGHTS, RegressionSettings()).status == "unpriced"


def test_the_future_and_tonight_itself_are_not_the_baseline() -> None:
    later = [row(n, "5.00") for n in range(50, 60)]
    verdict = judge_cost(row(9, "1.00"), [*NIGHTS, row(9, "1.00"), *later], RegressionSettings())
    assert verdict.runs == 5
