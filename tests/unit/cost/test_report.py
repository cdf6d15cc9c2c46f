from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from tests.unit.cost.nights import MIDNIGHT, Night
from tokenmill.cost.collect import collect
from tokenmill.cost.focus import focus_csv
from tokenmill.cost.report_model import Report
from tokenmill.pipelines import Pipeline
from tokenmill.protocol import StageName, StageSpec
from tokenmill.stages.report import make_report
from tokenmill.workspace import Workspace, read_json, write_json

CONFIG = {
    "corpus": {"sources": [{"name": "a", "root": "/a", "include": ["*"]}]},
    "training": {"length": {"steps": 150}},
    "cost": {"usd_per_hour": "0.10"},
}
PIPELINE = Pipeline.model_validate(CONFIG)
RUN = "3f9ab1c2d3e4"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.open(str(tmp_path / "workspace"))


def report_on(workspace: Workspace, night: Night) -> Report:
    own = night.report_ledger()
    evidence = collect(workspace, night.name, night.run_id, own)
    return make_report(evidence, workspace, PIPELINE, workspace.root / "none", generated=night.now + 1)


def spot_night(workspace: Workspace) -> Night:
    """Killed after step 110 with step 60 committed; the second invocation finishes at 150."""
    spot = {"market": "spot", "usd_per_hour": "0.10", "on_demand_usd_per_hour": "0.30"}
    first = Night(workspace, "a", run_id=RUN, **spot)
    first.prepare()
    first.validate()
    first.train(end=110, crash=True)
    first.save("crashed")
    second = Night(workspace, "b", at=first.now + 340, run_id=RUN, **spot)
    second.train(begin=60)
    second.save()
    return second


def test_the_report_counts_what_stayed_and_what_was_lost(workspace: Workspace) -> None:
    report = report_on(workspace, spot_night(workspace))
    assert report.tokens is not None
    assert (report.tokens.steps, report.tokens.replayed_steps) == (150, 50)
    assert report.tokens.retained_nonpadding == 150 * 7_900
    assert report.tokens.lost_nonpadding == 50 * 7_900
    (lost,) = report.cost.lost_work
    assert (lost.cause, lost.steps) == ("killed", 50)
    assert report.cost.waiting_seconds == pytest.approx(340.1, abs=0.5)
    assert report.outcome == "finished"
    assert "per million tokens" in report.first_line


def test_every_list_of_amounts_sums_to_the_total(workspace: Workspace) -> None:
    report = report_on(workspace, spot_night(workspace))
    total = report.cost.total_usd
    assert total is not None
    assert total > 0
    for amounts in (report.cost.phases, report.cost.stages, report.attempts, report.bill):
        assert sum((row.usd for row in amounts), Decimal(0)) == total  # type: ignore[misc]
    assert sum(row.seconds for row in report.cost.phases) == pytest.approx(report.cost.billed_seconds)
    rows = list(csv.DictReader(io.StringIO(focus_csv(report))))
    assert sum(Decimal(row["BilledCost"]) for row in rows) == total


def test_the_figures_follow_from_their_parts(workspace: Workspace) -> None:
    report = report_on(workspace, spot_night(workspace))
    total = report.cost.total_usd
    assert total is not None
    assert report.figure("usd_per_million_tokens").value == round(total / Decimal("1.185"), 9)
    assert report.figure("usd_per_million_processed_tokens").value == round(total / Decimal("1.6384"), 9)
    assert report.figure("lost_work_usd").value == report.cost.lost_work[0].usd
    saved = report.figure("spot_saved_usd").value
    assert saved is not None
    assert saved > 0


def test_a_refused_night_has_a_bill_and_says_why(workspace: Workspace) -> None:
    night = Night(workspace, "a")
    night.prepare()
    night.validate("fail")
    night.save()
    report = report_on(workspace, night)
    assert report.outcome == "refused_by_validation"
    assert report.first_line.startswith("Refused by validation, nothing was trained: $0.02")
    assert "61 % of the documents are duplicates" in report.first_line
    assert (report.run_id, report.tokens) == (None, None)


def test_a_night_that_crashed_in_prepare(workspace: Workspace) -> None:
    night = Night(workspace, "a")
    night.stage("prepare", "prepare", 5.0, code=1, status="failed")
    night.save()
    report = report_on(workspace, night)
    assert report.outcome == "crashed"
    assert report.first_line.startswith("Crashed before anything stayed in a model: $")


def test_an_unpriced_pipeline_has_seconds_and_tokens_and_no_dollars(workspace: Workspace) -> None:
    night = Night(workspace, "a", run_id=RUN, usd_per_hour=None)
    night.prepare()
    night.train()
    night.save()
    report = report_on(workspace, night)
    assert report.cost.total_usd is None
    assert report.bill == []
    assert "unpriced" in report.first_line
    assert all(figure.value is None for figure in report.figures if figure.unit.startswith("USD"))
    assert report.figure("tokens_per_second").value


def test_a_night_that_found_everything_trained_is_not_charged_to_the_run(workspace: Workspace) -> None:
    trained = spot_night(workspace)
    before = report_on(workspace, trained).cost.total_usd
    trained.save("finished")
    later = Night(workspace, "c", at=MIDNIGHT + 86_400, run_id=RUN)
    later.prepare(2.0)
    later.save("already_trained")
    again = collect(workspace, trained.name, RUN)
    assert again.account.usd == before
    alone = make_report(
        collect(workspace, later.name, None), workspace, PIPELINE, workspace.root / "none", generated=later.now
    )
    assert alone.first_line.startswith("Nothing to train")


def test_the_stage_writes_all_forms(workspace: Workspace) -> None:
    night = spot_night(workspace)
    ledger = night.report_ledger()
    spec = StageSpec(
        stage=StageName.REPORT,
        pipeline_name="demo",
        pipeline=CONFIG,
        invocation_id=night.name,
        ledger=ledger,
        inputs={"invocation": night.name, "run_id": RUN},
    )
    path = workspace.root / "spec" / "SPEC.json"
    write_json(path, spec.model_dump(mode="json"))
    command = [sys.executable, "-m", "tokenmill.stages.report", str(path), "--root", f"workspace={workspace.root}"]
    done = subprocess.run(command, stdin=subprocess.PIPE, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    outputs = read_json(path.with_name("RESULT.json"))["outputs"]
    folder = workspace.root / outputs["folder"]
    assert folder == workspace.run(RUN) / "report"
    page = (folder / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    assert outputs["first_line"] in page
    markdown = (workspace.root / outputs["markdown"]).read_text()
    assert "data:image/svg+xml;base64," in markdown
    assert "<svg" not in markdown
    assert json.loads((folder / "report.json").read_text())["schema"] == "tokenmill.report/1"
    assert Report.model_validate_json((folder / "report.json").read_text()).first_line == outputs["first_line"]


def test_a_night_on_the_last_good_snapshot_says_so_before_its_price(workspace: Workspace) -> None:
    night = Night(workspace, "a", run_id=RUN)
    night.validate(refused="9999aaaa")
    night.train()
    night.save()
    report = report_on(workspace, night)
    assert report.first_line.startswith(
        "Tonight's data was refused, the last good snapshot was trained on instead. $0."
    )
    from tokenmill.cost.render import render_html, render_markdown

    assert "trained on instead.</b>" in render_html(report)
    assert "Snapshot 9999aaaa was refused" in render_markdown(report)
