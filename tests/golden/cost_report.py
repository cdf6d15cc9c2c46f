"""The golden report: seven nights of a demo on Spot, the last one dearer than the others and killed once on its way.

make golden    writes tests/golden/cost_report/ anew; look at the difference before you commit it
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from tests.unit.cost.nights import MIDNIGHT, Night
from tokenmill.cost.collect import collect
from tokenmill.cost.focus import focus_csv
from tokenmill.cost.prometheus import prometheus_text
from tokenmill.cost.render import render_html, render_markdown
from tokenmill.cost.report_model import Report
from tokenmill.pipelines import Pipeline
from tokenmill.stages.report import make_report, write_report
from tokenmill.workspace import Workspace, write_atomic

GOLDEN = Path(__file__).with_name("cost_report")
PIPELINE = Pipeline.model_validate(
    {
        "corpus": {"sources": [{"name": "stdlib", "root": "/usr/lib/python3.11", "include": ["**/*.py"]}]},
        "tokens": {"sequence_length": 256},
        "training": {"length": {"steps": 150}, "global_batch_size": 32},
        "cost": {"machine_type": "example-2-core", "market": "spot", "usd_per_hour": "0.10"},
    }
)
TONIGHT = PIPELINE.model_copy(update={"training": PIPELINE.training.model_copy(update={"max_seconds": 7200.0})})
"""Config of the last night: one operational field is another."""
SPOT = {"market": "spot", "usd_per_hour": "0.10", "on_demand_usd_per_hour": "0.30"}
ENVIRONMENT = {
    "image": "no image (runtime process)",
    "requirements lock": "sha256:0123abcd",
    "python": "3.11",
    "hosts": "node-1",
}
DAY = 86_400


def golden_report(workspace: Workspace) -> Report:
    """The same report, to the byte, wherever it is made."""
    for day in range(6):
        night = Night(workspace, f"night-{day}", at=MIDNIGHT + day * DAY, run_id=f"run{day}", **SPOT)
        night.prepare(13.0 + day % 3)
        night.validate()
        night.train(speed=1.0 + 0.01 * (day % 4), input_wait=0.02)
        night.save()
        _report(workspace, night)
        night.save("finished")
    first = Night(workspace, "night-6", at=MIDNIGHT + 6 * DAY, run_id="3f9ab1c2d3e4", **SPOT)
    first.prepare()
    first.validate("warn")
    first.train(end=110, crash=True, input_wait=0.09)
    first.save("crashed")
    second = Night(workspace, "night-6b", at=first.now + 340, run_id="3f9ab1c2d3e4", **SPOT)
    second.train(begin=60, input_wait=0.09)
    second.save()
    return _report(workspace, second, TONIGHT)


def forms(report: Report) -> dict[str, str]:
    """File name → content, as it is kept: plots are left out, since they change with every matplotlib."""
    page = re.sub(r"<svg.*?</svg>", "<svg/>", render_html(report), flags=re.DOTALL)
    markdown = re.sub(r"\(data:[^)]*\)", "(plot)", render_markdown(report))
    return {
        "report.json": report.model_dump_json(indent=2, by_alias=True) + "\n",
        "report.html": page,
        "report.md": markdown,
        "costs.csv": focus_csv(report),
        "metrics.prom": prometheus_text(report).decode(),
    }


def _report(workspace: Workspace, night: Night, pipeline: Pipeline = PIPELINE) -> Report:
    own = night.report_ledger()
    evidence = collect(workspace, night.name, night.run_id, own)
    folder = workspace.run(night.run_id or "") / "report"
    made = make_report(evidence, workspace, pipeline, folder, generated=night.now + 1)
    write_atomic(folder / "report.json", made.model_dump_json(by_alias=True).encode())
    # What changes with every release, or with every new setting, is left out.
    return made.model_copy(update={"environment": ENVIRONMENT, "config": {}})


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        report = golden_report(Workspace.open(folder))
    for name, text in forms(report).items():
        (GOLDEN / name).write_text(text, encoding="utf-8")
    looked_at = Path(tempfile.gettempdir()) / "tokenmill-golden-report"
    write_report(report, looked_at)
    print(f"{report.first_line}\nwritten to {GOLDEN}; with its plots: {looked_at / 'report.html'}")


if __name__ == "__main__":
    main()
