"""`tokenmill inspect`, `gc` and `forget`: looking into a workspace and keeping it small."""

from __future__ import annotations

import webbrowser
from pathlib import Path

from rich.console import Console
from rich.table import Table

from flows.places import loadable, refuse_remote, workspaces
from tokenmill.errors import UserError
from tokenmill.pipelines import Pipeline, PipelineFile
from tokenmill.retention import find_garbage, remove
from tokenmill.runs import RunStatus, list_runs
from tokenmill.workspace import Workspace, read_json, write_atomic


def inspect_snapshot(console: Console, file: PipelineFile, wanted: str, out: Path | None, *, show: bool) -> None:
    """Write the page about a snapshot; `show` opens it."""
    from tokenmill.tokens.inspect import render_page
    from tokenmill.tokens.snapshot import open_snapshot

    workspace, snapshot = find_snapshot(file, wanted)
    page = out or Path(f"snapshot-{snapshot}.html")
    write_atomic(page.resolve(), render_page(open_snapshot(workspace, snapshot)).encode())
    console.print(str(page.resolve()), highlight=False, soft_wrap=True)
    if show:
        webbrowser.open(page.resolve().as_uri())


def verify_snapshot(console: Console, file: PipelineFile, wanted: str) -> None:
    """Check every byte and every row of a snapshot. Raises `UserError` naming file and row."""
    from tokenmill.tokens.snapshot import open_snapshot

    workspace, name = find_snapshot(file, wanted)
    snapshot = open_snapshot(workspace, name, deep=True)
    rows = snapshot.manifest.train.stored_rows + snapshot.manifest.eval.stored_rows
    console.print(f"snapshot {name}: {len(snapshot.manifest.shards)} shards, {rows:,} rows, all whole")


def find_snapshot(file: PipelineFile, wanted: str) -> tuple[Workspace, str]:
    """The snapshot whose id begins with `wanted`, or the newest of the pipeline called so."""
    candidates = [
        (path.stat().st_mtime, workspace, path.parent)
        for workspace in workspaces(file)
        for path in (workspace.root / "snapshots").glob("[0-9a-f]*/manifest.json")
    ]
    candidates.sort(key=lambda item: item[0])
    if wanted in file.pipelines:
        made_by = [item for item in candidates if _pipeline_of(item[2]) == wanted]
        if made_by:
            return made_by[-1][1], made_by[-1][2].name
    matches = [item for item in candidates if item[2].name.startswith(wanted)]
    if len(matches) == 1:
        return matches[0][1], matches[0][2].name
    names = ", ".join(item[2].name for item in (matches or candidates)[-5:]) or "none"
    problem = "is ambiguous" if matches else "is not in a workspace of this file"
    raise UserError(f"snapshot '{wanted}' {problem}; newest: {names}")


def _pipeline_of(folder: Path) -> str:
    try:
        return str(read_json(folder / "provenance.json")["pipeline"])
    except (OSError, ValueError, KeyError):
        return ""


def collect_garbage(console: Console, file: PipelineFile, *, keep_days: float, yes: bool) -> None:
    """List what nothing refers to, and with `yes` remove it."""
    if yes:
        refuse_remote(file, "gc --yes")
    for workspace in workspaces(file):
        console.print(str(workspace.root), highlight=False, soft_wrap=True)
        garbage = find_garbage(workspace, keep_days=keep_days)
        table = Table("what", "name", "MiB")
        for item in garbage:
            table.add_row(item.kind, item.name, f"{item.bytes / 2**20:,.1f}")
        if garbage:
            console.print(table)
        total = sum(item.bytes for item in garbage)
        if not garbage:
            console.print("nothing to remove")
        elif yes:
            console.print(f"removed, {remove(workspace, garbage) / 2**20:,.1f} MiB freed")
        else:
            console.print(f"{total / 2**20:,.1f} MiB would be freed; add --yes to remove all this")


def forget_documents(console: Console, file: PipelineFile, ids: list[str], *, yes: bool) -> None:
    """Say which snapshots and runs saw the documents; with `yes` purge and rebuild."""
    from tokenmill.tokens import forget

    if yes:
        refuse_remote(file, "forget --yes")
    wanted = forget.named(ids)
    seen = False
    for workspace in workspaces(file):
        found = forget.sightings(workspace, wanted)
        seen = seen or bool(found)
        snapshots = {sighting.snapshot for sighting in found}
        for sighting in found:
            console.print(
                f"snapshot {sighting.snapshot} holds {sighting.documents} of them in {len(sighting.shards)} shards"
            )
        runs = [run for run in list_runs(workspace) if run.snapshot in snapshots]
        for run in runs:
            console.print(f"run {run.id} of {run.pipeline} ({run.status}) trained on snapshot {run.snapshot}")
            for model in _models_of(workspace, run.id):
                console.print(f"model {model} came of run {run.id}: it has seen them, and only retraining undoes that")
        still_open = [run.id for run in runs if run.status is RunStatus.OPEN]
        if still_open and yes:
            raise UserError(
                f"run {still_open[0]} is not finished and needs its snapshot; finish it, or give it up with "
                "`tokenmill run PIPELINE --fresh`, then forget again"
            )
        if yes:
            rebuilt = {_pipeline_of(workspace.snapshot(snapshot)) for snapshot in snapshots}
            forget.remember_forgotten(workspace, wanted)
            forget.purge(workspace, found)
            for name in sorted(rebuilt & set(file.pipelines)):
                _rebuild(console, file, name)
    if not seen:
        console.print("no snapshot holds such a document" + ("; later ones will refuse it" if yes else ""))
    elif not yes:
        console.print("add --yes to remove these snapshots and shards and to build them anew without the documents")


def _rebuild(console: Console, file: PipelineFile, name: str) -> None:
    from tokenmill.tokens.builder import SilentHooks
    from tokenmill.tokens.prepare import PrepareRequest, prepare

    pipeline = loadable(file)[name]
    if not isinstance(pipeline, Pipeline):
        console.print(f"{name} is not built anew here: {pipeline}")
        return
    request = PrepareRequest(
        Workspace(pipeline.local_workspace),
        name,
        pipeline.corpus,
        pipeline.tokenizer,
        pipeline.tokens,
        {source.name: source.root for source in pipeline.corpus.sources},
    )
    made = prepare(request, SilentHooks())
    console.print(f"{name}: snapshot {made.snapshot} without them, {made.built_shards} shards built anew")


def _models_of(workspace: Workspace, run: str) -> list[str]:
    return [
        path.parent.relative_to(workspace.root / "models").as_posix()
        for path in sorted((workspace.root / "models").glob("*/*/*.json"))
        if run in path.read_text(encoding="utf-8", errors="replace")
    ]
