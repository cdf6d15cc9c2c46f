"""The report stage: every end of a night has a report, because money was spent.

Inputs: `{"invocation": id, "run_id": id or None}`. Writes report.json, report.html, report.md and costs.csv into the
run's `report/`, or into the invocation's where no run was worked on.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from tokenmill.cost.build import build_report, config_diff, outcome_of
from tokenmill.cost.collect import ALREADY_TRAINED, Evidence, collect
from tokenmill.cost.focus import focus_csv
from tokenmill.cost.report_model import BaselineVerdict, Report
from tokenmill.protocol import StageName, StageResult
from tokenmill.stages.harness import StageContext, main
from tokenmill.workspace import Workspace, read_json, write_atomic

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
        made = make_report(evidence, workspace, context.spec.pipeline, folder, generated=time.time())
        write_report(made, folder)
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
        },
    )


def make_report(
    evidence: Evidence, workspace: Workspace, config: dict[str, Any], folder: Path, *, generated: float
) -> Report:
    before = _last_config(workspace, evidence.invocation["pipeline"], folder)
    return build_report(
        evidence,
        generated=generated,
        config=config,
        config_changes=None if before is None else config_diff(before, config),
        environment=environment(evidence),
        baseline=BaselineVerdict(status="no_data", runs=0, sentence="There is no baseline yet."),
        nights=[],
        packing=packing(evidence),
    )


def write_report(made: Report, folder: Path) -> None:
    """All forms of one report; report.json comes last, so that its presence means that the others are there."""
    from tokenmill.cost.render import render_html, render_markdown

    write_atomic(folder / "report.html", render_html(made).encode())
    write_atomic(folder / "report.md", render_markdown(made).encode())
    write_atomic(folder / "costs.csv", focus_csv(made).encode())
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


def packing(evidence: Evidence) -> dict[str, Any] | None:
    """Rows against one document a row. A document longer than a row needs several, so documents are a lower bound."""
    if evidence.manifest is None:
        return None
    train = evidence.manifest["train"]
    if not train["rows"]:
        return None
    return {
        "sequence_length": evidence.manifest["sequence_length"],
        "rows": train["rows"],
        "documents": train["documents"],
        "one_per_row_rows": max(train["documents"], train["rows"]),
        "exact": False,
    }


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
