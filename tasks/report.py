"""Report: what the night cost, whatever its outcome. An artifact, and files beside the run (or the invocation)."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State

from tasks.links import link
from tasks.night import Night
from tasks.notices import emit_regression
from tasks.timeline import artifact_key, on_timeline
from tokenmill.protocol import StageName


def report(night: Night) -> None:
    """Once, and again only if it crashed: a night's outcome does not hang on its report."""
    for _ in range(2):
        if report_task(night, return_state=True).is_completed():
            return


@task(name="report", cache_policy=NO_CACHE, persist_result=False)
def report_task(night: Night) -> State:
    state = on_timeline(night, StageName.REPORT)
    outputs: dict[str, Any] = night.outputs.get(StageName.REPORT, {})
    if state.is_completed() and "markdown" in outputs:
        markdown = (night.workspace.root / outputs["markdown"]).read_text(encoding="utf-8")
        create_markdown_artifact(markdown, key=artifact_key("cost-report", night.name))
        link(night, "report", f"{outputs['folder']}/report.html", "the night's report")
        link(night, "tensorboard", "tensorboard", "TensorBoard of all runs")
        emit_regression(night.name, outputs)
        for name, rows in outputs.get("tables", {}).items():
            create_table_artifact(rows, key=artifact_key(f"cost-{name}", night.name))
    return state
