"""What in a workspace nothing refers to any more, and how to remove it.

Roots are what people and nights still need: open runs, runs that hold a lease, runs and snapshots that a recent
invocation, a pipeline's memory or a promoted model names. A thing is kept when a root names it, directly or through a
run or a manifest; everything else of runs, snapshots, shards, validations, plans and tokenizers is garbage, and so are
the checkpoints of a run that is not open, but for the newest committed one. Whatever is
younger than a day is left alone: an interrupted prepare finds its finished shards again.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenmill.locks import owner_of
from tokenmill.runs import RunStatus, list_runs, read_run
from tokenmill.tokens.manifest import read_manifest
from tokenmill.tokens.scratch import collecting, shards_in_use, sweep
from tokenmill.workspace import Workspace

YOUNG_SECONDS = 24 * 3600.0
_IDS = re.compile(r"[0-9a-f]{12,64}")


@dataclass(frozen=True)
class Garbage:
    path: Path
    kind: str
    bytes: int

    @property
    def name(self) -> str:
        """For people: a checkpoint is nothing without its run."""
        return f"{self.path.parents[1].name}/{self.path.name}" if self.kind == "checkpoints" else self.path.name


def find_garbage(workspace: Workspace, *, keep_days: float, now: float | None = None) -> list[Garbage]:
    """What may go, nights of the last `keep_days` days being recent. Removes nothing."""
    now = time.time() if now is None else now
    named = _roots(workspace, now - keep_days * 86400)
    named |= _ids_in(path for run in _kept_runs(workspace, named) for path in (workspace.run(run) / "run.json",))
    snapshots = {path.name for path in _children(workspace, "snapshots") if path.name in named or _is_young(path, now)}
    shards = shards_in_use(workspace.scratch)
    for snapshot in snapshots:
        manifest = read_manifest(workspace.snapshot(snapshot))
        named |= {manifest.tokenizer}
        shards |= {shard.key for shard in manifest.shards}
    kept = {
        "runs": set(_kept_runs(workspace, named)),
        "snapshots": snapshots,
        "validations": snapshots,
        "shards": shards,
        "tokenizers": named,
    }
    found = []
    for kind, names in kept.items():
        for path in _children(workspace, kind):
            if path.name not in names and not _is_young(path, now):
                found.append(Garbage(path, kind, _bytes_of(path)))
    for run in sorted(kept["runs"]):
        for path in _surplus_checkpoints(workspace, run):
            if not _is_young(path, now):
                found.append(Garbage(path, "checkpoints", _bytes_of(path)))
    for path in sorted((workspace.root / "plans").glob("*.json")):
        if not _ids_in([path]) & snapshots and not _is_young(path, now):
            found.append(Garbage(path, "plans", path.stat().st_size))
    return found


def remove(workspace: Workspace, garbage: list[Garbage]) -> int:
    """Remove `garbage`, shards last; those that a prepare has marked since stay. The bytes that this freed."""
    sweep(workspace.scratch)
    return sum(_remove(workspace, item) for item in sorted(garbage, key=lambda item: item.kind == "shards"))


def _remove(workspace: Workspace, item: Garbage) -> int:
    # First out of sight, whole, then in pieces: a reader sees all of it or nothing.
    hidden = item.path.with_name(f".removed-{item.path.name}")
    with collecting(workspace.scratch):
        if item.kind == "shards" and item.path.name in shards_in_use(workspace.scratch):
            return 0
        try:
            item.path.rename(hidden)
        except FileNotFoundError:
            return 0
    if hidden.is_dir():
        shutil.rmtree(hidden, ignore_errors=True)
    else:
        hidden.unlink()
    return item.bytes


def _roots(workspace: Workspace, since: float) -> set[str]:
    """Ids that recent invocations, pipelines and promoted models name."""
    files = [*(workspace.root / "pipelines").rglob("*.json"), *(workspace.root / "models").rglob("*.json")]
    for path in (workspace.root / "invocations").glob("*/*.json"):
        if path.stat().st_mtime >= since:
            files.append(path)
    return _ids_in(files)


def _kept_runs(workspace: Workspace, named: set[str]) -> list[str]:
    return [
        run.id
        for run in list_runs(workspace)
        if run.status is RunStatus.OPEN
        or run.id in named
        or owner_of(workspace.run(run.id) / "lease" / "lock") is not None
    ]


def _surplus_checkpoints(workspace: Workspace, run: str) -> list[Path]:
    """All but the newest committed one; none of a run that is open, at work, or has committed nothing."""
    folder = workspace.run(run)
    if read_run(workspace, run).status is RunStatus.OPEN or owner_of(folder / "lease" / "lock") is not None:
        return []
    checkpoints = _children(workspace, f"runs/{run}/checkpoints")
    committed = [path for path in checkpoints if (path / "COMMIT").exists() and path.name.startswith("step-")]
    return [path for path in checkpoints if path != committed[-1]] if committed else []


def _ids_in(paths: Iterable[Path]) -> set[str]:
    """Every hexadecimal id that these files mention: a mention is enough to keep."""
    found: set[str] = set()
    for path in paths:
        try:
            found |= set(_IDS.findall(path.read_text(encoding="utf-8", errors="replace")))
        except OSError:
            continue
    return found


def _children(workspace: Workspace, kind: str) -> list[Path]:
    """Published folders, and leftovers of writers that died (their names begin with a dot)."""
    folder = workspace.root / kind
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _is_young(path: Path, now: float) -> bool:
    try:
        return now - path.stat().st_mtime < YOUNG_SECONDS
    except OSError:
        return True


def _bytes_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
