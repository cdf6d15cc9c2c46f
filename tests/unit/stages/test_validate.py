"""The validate stage: what follows from a verdict."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.quality.nights import HONEST, PIPELINE, Nights
from tokenmill.cost.ledger import LedgerWriter
from tokenmill.errors import Interrupted, UserError
from tokenmill.pipelines import Pipeline
from tokenmill.protocol import StageName, StageResult, StageSpec
from tokenmill.quality.reference import read_last_good
from tokenmill.quality.verdict import read_verdict, require_passing
from tokenmill.stages.harness import StageContext, StopFlag
from tokenmill.stages.validate import validate
from tokenmill.telemetry.phases import PhaseClock
from tokenmill.workspace import read_json

SMALL = {name: texts[:60] for name, texts in HONEST.items()}
UNREADABLE: dict[str, Sequence[str | bytes]] = {"web": [*SMALL["web"], *[b"{"] * 30], "notes": SMALL["notes"]}

Stage = Callable[..., StageResult]


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path)


@pytest.fixture
def stage(nights: Nights) -> Stage:
    """Run the stage over a snapshot of these documents, with these checks."""

    def run(sources: Mapping[str, Sequence[str | bytes]], *, stopped: bool = False, **checks: Any) -> StageResult:
        pipeline = {
            "corpus": {"sources": [{"name": name, "root": "unused"} for name in sources]},
            "training": {"length": {"steps": 1}},
            "cost": "unpriced",
            "checks": checks,
        }
        spec = StageSpec(
            stage=StageName.VALIDATE,
            pipeline_name=PIPELINE,
            pipeline=pipeline,
            invocation_id="i",
            ledger="ledger.jsonl",
            inputs={"snapshot": nights.prepare(sources)},
        )
        stop = StopFlag()
        if stopped:
            stop.set("SIGTERM")
        ledger_path = nights.folder / "ledger.jsonl"
        ledger = LedgerWriter(ledger_path)
        try:
            return validate(
                StageContext(
                    spec,
                    Pipeline.model_validate(pipeline),
                    nights.workspace,
                    {},
                    ledger,
                    PhaseClock(),
                    stop,
                    logging.getLogger("test"),
                    ledger_path,
                )
            )
        finally:
            ledger.close()

    return run


def test_a_good_snapshot_may_be_trained_on(stage: Stage, nights: Nights) -> None:
    result = stage(SMALL)
    outputs = result.outputs
    assert (result.status, outputs["verdict"]) == ("completed", "pass")
    assert 2 < outputs["unigram_entropy_nats"] < 8
    folder = nights.workspace.root / outputs["validation"]
    assert folder == nights.workspace.validation(outputs["snapshot"], outputs["rules"])
    require_passing(folder, outputs["snapshot"])
    assert {path.name for path in folder.iterdir()} == {
        "verdict.json",
        "verdict.md",
        "rules.json",
        "summary.json",
        "report.html",
        "suites.json",
        "statistics",
        "data_docs",
    }
    last = read_last_good(nights.workspace, PIPELINE)
    assert last is not None
    assert (last.snapshot, last.validation) == (outputs["snapshot"], outputs["validation"])


def test_again_finds_the_verdict_and_other_rules_make_another(stage: Stage, nights: Nights) -> None:
    first = stage(SMALL)
    page = nights.workspace.root / first.outputs["report"]
    written = page.stat().st_mtime_ns
    again = stage(SMALL, on_fail="train_on_last_good")
    assert again.outputs == first.outputs
    assert page.stat().st_mtime_ns == written
    assert "found" in again.message
    other = stage(SMALL, max_padding_pct=19)
    assert other.outputs["rules"] != first.outputs["rules"]
    assert other.outputs["snapshot"] == first.outputs["snapshot"]


def test_a_refused_snapshot_stops_the_night(stage: Stage, nights: Nights) -> None:
    good = stage(SMALL).outputs
    result = stage(UNREADABLE)
    assert result.status == "failed"
    assert result.outputs["user_error"] is True
    assert result.outputs["verdict"] == "fail"
    assert "were refused by prepare" in result.message
    assert result.outputs["report"] in result.message
    assert len(result.outputs["sentences"]) >= 1
    last = read_last_good(nights.workspace, PIPELINE)
    assert last is not None
    assert last.snapshot == good["snapshot"]
    with pytest.raises(UserError, match="was refused by validation"):
        require_passing(nights.workspace.root / result.outputs["validation"], result.outputs["snapshot"])


def test_a_refused_snapshot_is_replaced_by_the_last_good_one(stage: Stage, nights: Nights) -> None:
    good = stage(SMALL).outputs
    result = stage(UNREADABLE, on_fail="train_on_last_good")
    outputs = result.outputs
    assert result.status == "completed"
    assert outputs["verdict"] == "fail"
    assert (outputs["snapshot"], outputs["validation"]) == (good["snapshot"], good["validation"])
    assert outputs["unigram_entropy_nats"] == good["unigram_entropy_nats"]
    require_passing(nights.workspace.root / outputs["validation"], outputs["snapshot"])
    refused = nights.workspace.root / outputs["refused"]["validation"]
    assert read_verdict(refused).snapshot == outputs["refused"]["snapshot"] != good["snapshot"]
    assert "the last good snapshot" in result.message


def test_without_a_last_good_one_there_is_nothing_to_train_on(stage: Stage, nights: Nights) -> None:
    result = stage(UNREADABLE, on_fail="train_on_last_good")
    assert result.status == "failed"
    assert "There is no earlier good snapshot to train on." in result.message
    assert read_last_good(nights.workspace, PIPELINE) is None


def test_a_warning_lets_training_start(stage: Stage, nights: Nights) -> None:
    result = stage(UNREADABLE, severity={"refusals": "warn", "source_refusals": "off"})
    assert (result.status, result.outputs["verdict"]) == ("completed", "warn")
    assert read_last_good(nights.workspace, PIPELINE) is not None


def test_a_stop_leaves_nothing_half_done(stage: Stage, nights: Nights) -> None:
    with pytest.raises(Interrupted):
        stage(SMALL, stopped=True)
    validations = nights.workspace.root / "validations"
    assert [path for path in validations.rglob("*") if path.is_file()] == []
    assert stage(SMALL).outputs["verdict"] == "pass"


def test_an_own_suite_decides_too(stage: Stage, nights: Nights, tmp_path: Path) -> None:
    suite = tmp_path / "own.py"
    suite.write_text(
        "import great_expectations.expectations as gxe\n"
        "def suite():\n"
        "    short = gxe.ExpectColumnValuesToBeBetween(column='tokens', max_value=20, description='short documents')\n"
        "    return [short]\n"
    )
    result = stage(SMALL, suite=str(suite))
    assert result.outputs["verdict"] == "fail"
    assert "Your own rule does not hold: short documents" in result.message
    verdict = read_json(nights.workspace.root / result.outputs["validation"] / "verdict.json")
    own = verdict["findings"][-1]
    assert own["origin"] == "suite"
    assert own["offenders"][0]["excerpt"]

    suite.write_text("def suite():\n    return []\n")
    assert stage(SMALL, suite=str(suite)).outputs["verdict"] == "pass"
    with pytest.raises(UserError, match=r"checks\.suite: .* cannot be read"):
        stage(SMALL, suite=str(tmp_path / "missing.py"))
