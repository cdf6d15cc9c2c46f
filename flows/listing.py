"""`tokenmill ls`, `tokenmill show` and `tokenmill costs`: what is there, and what it cost."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from flows.places import find_run, loadable, workspaces
from tokenmill.cost import baseline, compare
from tokenmill.errors import UserError
from tokenmill.invocations import list_invocations
from tokenmill.pipelines import Pipeline, PipelineFile
from tokenmill.runs import list_runs
from tokenmill.workspace import Workspace, read_json


def list_everything(console: Console, file: PipelineFile) -> None:
    pipelines = Table("pipeline", "workspace", "schedule", title="Pipelines", title_justify="left")
    for name, pipeline in loadable(file).items():
        if isinstance(pipeline, Pipeline):
            pipelines.add_row(name, pipeline.workspace, pipeline.schedule.cron or "on demand")
        else:
            pipelines.add_row(name, f"({str(pipeline).splitlines()[-1].strip()})", "")
    console.print(pipelines)
    for workspace in workspaces(file):
        console.print(f"\n{workspace.root}", highlight=False, soft_wrap=True)
        for table in (_snapshots(workspace), _runs(workspace), _models(workspace)):
            if table.row_count:
                console.print(table)


def show_report(console: Console, file: PipelineFile, wanted: str) -> None:
    """The Markdown report, laid out in a terminal and as it is elsewhere."""
    workspace, run = find_run(file, wanted)
    folder = workspace.run(run.id) / "report"
    try:
        # The plots are for a browser.
        text = re.sub(r"!\[[^]]*\]\(data:[^)]*\)\n?", "", (folder / "report.md").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"run {run.id} ({run.status}) has no report yet; its pipeline's next end makes one") from None
    if console.is_terminal:
        from rich.markdown import Markdown

        console.print(Markdown(text))
    else:
        console.file.write(text)
    console.print(f"\n{folder / 'report.html'}", highlight=False, soft_wrap=True)


def list_costs(console: Console, file: PipelineFile, pipeline: str | None, since: str | None) -> None:
    """Nights side by side, and the cheapest known configuration of each kind of run."""
    if pipeline is not None and pipeline not in file.pipelines:
        known = ", ".join(sorted(file.pipelines)) or "none"
        raise UserError(f"pipeline '{pipeline}' is not in {file.path.name}; known pipelines: {known}")
    try:
        begin = datetime.fromisoformat(since).timestamp() if since else 0.0
    except (ValueError, OverflowError, OSError):
        raise UserError(f"--since: '{since}' is not a day such as 2026-11-30") from None
    found = False
    for workspace in workspaces(file):
        rows = compare.nights(workspace, since=begin, pipeline=pipeline)
        if not rows:
            continue
        found = True
        console.print(f"\n{workspace.root}", highlight=False, soft_wrap=True)
        table = Table(*compare.HEADINGS)
        for line in compare.table(rows):
            table.add_row(*line)
        console.print(table)
        for sentence in compare.cheapest_sentences(baseline.read(workspace.baselines, since=begin), pipeline):
            console.print(sentence, highlight=False, soft_wrap=True)
    if not found:
        console.print("no night has a report yet" if since is None else f"no night has a report since {since}")


def _snapshots(workspace: Workspace) -> Table:
    table = Table(
        Column("snapshot", no_wrap=True),
        "documents",
        "tokens to train on",
        "held out",
        title="Snapshots",
        title_justify="left",
    )
    for path in sorted((workspace.root / "snapshots").glob("*/manifest.json"), key=lambda path: path.stat().st_mtime):
        try:
            manifest = read_json(path)
            counts = (manifest["documents_kept"], manifest["train"]["tokens"], manifest["eval"]["tokens"])
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path} is broken; restore it, or remove its folder: a start makes it again") from None
        table.add_row(path.parent.name, *(f"{count:,}" for count in counts))
    return table


def _runs(workspace: Workspace) -> Table:
    table = Table(
        Column("run", no_wrap=True),
        "pipeline",
        "begun",
        "status",
        "step",
        "attempts",
        "last",
        title="Runs",
        title_justify="left",
    )
    last = {item.run_id: item.message for item in list_invocations(workspace)}
    for run in list_runs(workspace):
        begun = datetime.fromtimestamp(run.created).strftime("%Y-%m-%d %H:%M")
        step, attempts = f"{run.committed_step:,}", str(run.attempts)
        table.add_row(run.id, run.pipeline, begun, run.status, step, attempts, run.message or last.get(run.id, ""))
    return table


def _models(workspace: Workspace) -> Table:
    table = Table("model", "latest", title="Models", title_justify="left")
    for folder in sorted(path for path in (workspace.root / "models").glob("*/*") if path.is_dir()):
        table.add_row(f"{folder.parent.name}/{folder.name}", "yes" if _latest(folder.parent) == folder.name else "")
    return table


def _latest(pipeline: Path) -> str:
    pointer = pipeline / "latest"
    return pointer.read_text(encoding="utf-8").strip() if pointer.is_file() else ""
