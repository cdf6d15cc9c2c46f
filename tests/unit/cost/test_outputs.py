"""What other tools read: costs.csv, Prometheus, the comparison of nights."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.golden.cost_report import golden_report
from tests.unit.cost.nights import MIDNIGHT
from tokenmill.cost.compare import HEADINGS, nights, table
from tokenmill.cost.focus import COLUMNS, focus_csv, focus_parquet
from tokenmill.cost.prometheus import prometheus_text
from tokenmill.cost.report_model import Report
from tokenmill.workspace import Workspace


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, Report]:
    workspace = Workspace.open(str(tmp_path_factory.mktemp("nights")))
    return workspace, golden_report(workspace)


def test_costs_csv_has_the_focus_columns_and_sums_to_the_bill(made: tuple[Workspace, Report]) -> None:
    report = made[1]
    rows = list(csv.DictReader(io.StringIO(focus_csv(report))))
    assert tuple(rows[0]) == COLUMNS
    assert sum(Decimal(row["BilledCost"]) for row in rows) == report.cost.total_usd
    for row in rows:
        assert row["ChargePeriodStart"] <= row["ChargePeriodEnd"]
        assert row["BillingPeriodStart"] <= row["ChargePeriodStart"] < row["BillingPeriodEnd"]
        assert Decimal(row["ListUnitPrice"]) == Decimal("0.30")  # on demand
        assert (row["PricingCategory"], json.loads(row["Tags"])["pipeline"]) == ("Dynamic", "demo")
    lost = [row for row in rows if row["x_LostWork"] == "true"]
    assert sum(Decimal(row["BilledCost"]) for row in lost) == report.cost.lost_work[0].usd


def test_an_unpriced_bill_is_a_header(made: tuple[Workspace, Report]) -> None:
    assert focus_csv(made[1].model_copy(update={"bill": []})).strip() == ",".join(COLUMNS)


def test_costs_parquet_holds_the_same_rows_with_exact_amounts(made: tuple[Workspace, Report]) -> None:
    report = made[1]
    table = parquet.read_table(pa.BufferReader(focus_parquet(report)))
    assert tuple(table.column_names) == COLUMNS
    assert sum(table["BilledCost"].to_pylist()) == report.cost.total_usd
    written = list(csv.DictReader(io.StringIO(focus_csv(report))))
    assert [str(lost).lower() for lost in table["x_LostWork"].to_pylist()] == [row["x_LostWork"] for row in written]
    assert str(table.schema.field("ChargePeriodStart").type) == "timestamp[ms, tz=UTC]"
    empty = report.model_copy(update={"bill": []})
    assert parquet.read_table(pa.BufferReader(focus_parquet(empty))).num_rows == 0


def test_prometheus_reads_the_text_file(made: tuple[Workspace, Report]) -> None:
    report = made[1]
    families = {family.name: family for family in text_string_to_metric_families(prometheus_text(report).decode())}
    (cost,) = families["tokenmill_cost_usd"].samples
    assert (cost.labels, cost.value) == ({"pipeline": "demo"}, float(report.cost.total_usd or 0))
    seconds = sum(sample.value for sample in families["tokenmill_billed_seconds"].samples)
    assert seconds == pytest.approx(report.cost.billed_seconds)


def test_nights_side_by_side(made: tuple[Workspace, Report]) -> None:
    workspace, report = made
    rows = nights(workspace)
    assert len(rows) == 7
    assert rows[-1].total_usd == report.cost.total_usd
    assert [row.generated for row in rows] == sorted(row.generated for row in rows)
    assert len(nights(workspace, since=MIDNIGHT + 5 * 86_400)) == 2
    assert nights(workspace, pipeline="another") == []
    lines = table(rows)
    assert all(len(line) == len(HEADINGS) for line in lines)
    assert lines[-1][0] == "in all"


def test_the_first_line_names_the_change_and_its_cause(made: tuple[Workspace, Report]) -> None:
    assert made[1].first_line.endswith("45 % above baseline: lost work rose by 17 points.")
    assert made[1].config_changes == ["training.max_seconds: None → 7200.0"]
