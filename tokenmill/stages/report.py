"""The report stage: every end of a night has a report, because money was spent.

Inputs: `{"invocation": id, "run_id": id or None}`. Writes report.json, report.html, report.md, costs.csv and
costs.parquet into the run's `report/`, or into the invocation's where no run was worked on.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from tokenmill.cost import baseline
from tokenmill.cost.baseline import BaselineRow
from tokenmill.cost.build import build_report, config_diff, outcome_of
from tokenmill.cost.collect import ALREADY_TRAINED, Evidence, collect
from tokenmill.cost.focus import focus_csv, focus_parquet
from tokenmill.cost.packing import one_document_a_row
from tokenmill.cost.prometheus import prometheus_text
from tokenmill.cost.record import baseline_row
from tokenmill.cost.regression import judge_cost
from tokenmill.cost.report_model import BaselineVerdict, Night, Report
from tokenmill.cost.settings import RegressionSettings
from tokenmill.pipelines import Pipeline
from tokenmill.protocol import StageName, StageResult
from tokenmill.stages.configuration import configuration_of
from tokenmill.stages.harness import StageContext, main
from tokenmill.telemetry.verdict import read_verdicts
from tokenmill.workspace import Workspace, read_json, write_atomic

ENDED = {"finished", "stopped_by_budget", "stopped_by_condition"}
"""Outcomes after which a run is a measurement."""
NIGHTS = 30
"""In the plot over nights."""
PACKAGES = (
    "tokenmill",
    "tensorflow",
    "tensorflow-cpu",
    "keras",
    "numpy",
    "transformers",
    "great-expectations",
    "prefect",
)


def report(context: StageContext) -> StageResult:
    with context.phases.phase("report"):
        workspace, inputs = context.workspace, context.spec.inputs
        evidence = collect(workspace, inputs["invocation"], inputs.get("run_id"), context.spec.ledger)
        if outcome_of(evidence.invocation) == ALREADY_TRAINED and evidence.run is not None:
            evidence = collect(workspace, inputs["invocation"], None, context.spec.ledger)
        folder = workspace.run(evidence.run["id"]) if evidence.run else workspace.invocation(evidence.invocation["id"])
        folder = folder / "report"
        with context.phases.phase("profile"):
            profile = profile_verdicts(evidence, workspace)
        made = make_report(evidence, workspace, context.pipeline, folder, generated=time.time(), profile=profile)
        write_report(made, folder)
        write_atomic(workspace.pipeline(made.pipeline) / "metrics.prom", prometheus_text(made))
    context.log.info("%s", made.first_line)
    relative = workspace.relative(folder)
    return StageResult(
        status="completed",
        message=made.first_line,
        outputs={
            "first_line": made.first_line,
            "folder": relative,
            "markdown": f"{relative}/report.md",
            "tables": tables(made),
            "gate": gate(made, context.pipeline),
            "baseline": made.baseline.model_dump(mode="json"),
        },
    )


def make_report(
    evidence: Evidence,
    workspace: Workspace,
    pipeline: Pipeline,
    folder: Path,
    *,
    generated: float,
    profile: Sequence[dict[str, Any]] = (),
) -> Report:
    """Judge the night against the baseline database, add it there if its run has ended, and put all of it together."""
    name = evidence.invocation["pipeline"]
    config = pipeline.model_dump(mode="json")
    before = _last_config(workspace, name, folder)
    history = baseline.read(workspace.baselines)
    verdict = BaselineVerdict(status="no_data", runs=0, sentence="Nothing was trained, so there is nothing to compare.")
    if evidence.run is not None and evidence.account.retained.nonpadding_tokens:
        row = baseline_row(evidence, configuration(evidence, pipeline))
        settings = RegressionSettings() if pipeline.cost == "unpriced" else pipeline.cost.regression
        verdict = judge_cost(row, history, settings)
        if outcome_of(evidence.invocation) in ENDED:
            baseline.add(workspace.baselines, row)
        history = sorted([*(r for r in history if r.run_id != row.run_id), row], key=lambda r: r.finished)
    return build_report(
        evidence,
        generated=generated,
        config=config,
        config_changes=None if before is None else config_diff(before, config),
        environment=environment(evidence),
        baseline=verdict,
        nights=[night(row) for row in history if row.pipeline == name and row.kind == "run"][-NIGHTS:],
        packing=packing(evidence, workspace),
        profile=list(profile),
    )


def profile_verdicts(evidence: Evidence, workspace: Workspace) -> list[dict[str, Any]]:
    """On the profiler's windows of the run; the traces are converted here, where no training waits for it."""
    if evidence.run is None:
        return []
    folder = workspace.run(evidence.run["id"]) / "profile"
    return [verdict.model_dump(mode="json") for verdict in read_verdicts(folder)]


def gate(made: Report, pipeline: Pipeline) -> str:
    """`passed`, `warned` or `failed`: what the pipeline's regression settings say of tonight's cost."""
    settings = RegressionSettings() if pipeline.cost == "unpriced" else pipeline.cost.regression
    if made.baseline.status != "dearer" or settings.on_regression == "ignore":
        return "passed"
    return "failed" if settings.on_regression == "fail" else "warned"


def night(row: BaselineRow) -> Night:
    return Night(
        run_id=row.run_id,
        finished=row.finished,
        usd_per_million_tokens=row.usd_per_million_tokens,
        tokens_per_second=row.tokens_per_second,
        eval_loss=row.eval_loss,
    )


def configuration(evidence: Evidence, pipeline: Pipeline) -> baseline.Configuration:
    last = evidence.account.attempts[max(evidence.account.kept)].spawned
    return configuration_of(
        pipeline,
        machine_type=last.get("machine_type"),
        run=evidence.run,
        summary=evidence.summary,
        image=last.get("image"),
    )


def write_report(made: Report, folder: Path) -> None:
    """All forms of one report; report.json comes last, so that its presence means that the others are there."""
    from tokenmill.cost.render import render_html, render_markdown

    write_atomic(folder / "report.html", render_html(made).encode())
    write_atomic(folder / "report.md", render_markdown(made).encode())
    write_atomic(folder / "costs.csv", focus_csv(made).encode())
    write_atomic(folder / "costs.parquet", focus_parquet(made))
    write_atomic(folder / "report.json", made.model_dump_json(indent=2, by_alias=True).encode() + b"\n")


def tables(made: Report) -> dict[str, list[dict[str, Any]]]:
    """For Prefect's table artifacts."""
    plain = made.model_dump(mode="json")
    return {
        "figures": [{k: row[k] for k in ("label", "value", "unit", "how")} for row in plain["figures"]],
        "phases": plain["cost"]["phases"],
        "attempts": plain["attempts"],
    }


def environment(evidence: Evidence) -> dict[str, Any]:
    """What made the model: image, versions, machine."""
    found: dict[str, Any] = {}
    images = {attempt.spawned.get("image") for attempt in evidence.account.attempts} - {None}
    found["image"] = ", ".join(sorted(str(image) for image in images)) or "no image (runtime process)"
    lock = Path(__file__).parents[2] / "requirements" / "main.txt"
    if lock.is_file():
        found["requirements lock"] = f"sha256:{hashlib.sha256(lock.read_bytes()).hexdigest()}"
    numerics = (evidence.run or {}).get("numerics") or {}
    found["python"] = numerics.get("python") or platform.python_version()
    found |= numerics.get("versions") or {}
    for package in PACKAGES:
        try:
            found.setdefault(package, metadata.version(package))
        except metadata.PackageNotFoundError:
            continue
    found["hosts"] = ", ".join(sorted({str(a.spawned.get("host")) for a in evidence.account.attempts}))
    return found


def packing(evidence: Evidence, workspace: Workspace) -> dict[str, Any] | None:
    """Rows of the snapshot against one document a row; None where the tables of its shards are gone."""
    manifest = evidence.manifest
    if manifest is None:
        return None
    tables = [workspace.shard(shard["key"]) / "documents.parquet" for shard in manifest["shards"]]
    rows = one_document_a_row(tables, manifest["sequence_length"])
    stored = manifest["train"]["stored_rows"]
    if rows is None or not stored:
        return None
    return {"sequence_length": manifest["sequence_length"], "rows": stored, "one_per_row_rows": rows}


def _last_config(workspace: Workspace, pipeline: str, folder: Path) -> dict[str, Any] | None:
    """The config in the newest other report of this pipeline."""
    newest = max(
        (found for found in _reports(workspace) if found["pipeline"] == pipeline and found["folder"] != folder),
        key=lambda found: float(found["generated"]),
        default=None,
    )
    return None if newest is None else dict(newest["config"])


def _reports(workspace: Workspace) -> Iterator[dict[str, Any]]:
    for kind in ("runs", "invocations"):
        for path in (workspace.root / kind).glob("*/report/report.json"):
            yield {**read_json(path), "folder": path.parent}


if __name__ == "__main__":
    main(StageName.REPORT, report)
