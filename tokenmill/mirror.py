"""A workspace on an object store and the *stage folder* that stands for it on this machine.

Stages see the stage folder only: there they append and rename. Publishing is `push`: parts first, then the file that
says that they are whole (manifest.json, COMMIT, report.json, ...). `pull` brings what an empty disk needs.
What was changed on both sides since they last agreed is the store's.

Checkpoints lie in the store under the epoch of the lease that they were made in, so that two writers never meet:

    runs/<id>/checkpoints/step-00001000.00000003/COMMIT      {"step": 1000, "files": {...}, "epoch": 3}
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

from tokenmill.epochs import EpochLease, counts
from tokenmill.store import Entry, Store
from tokenmill.training import checkpoint
from tokenmill.workspace import Workspace, read_json, write_json

INDEX = ".mirror.json"
AREAS = (
    "tokenizers",
    "shards",
    "snapshots",
    "validations",
    "models",
    "runs",
    "invocations",
    "baselines",
    "pipelines",
)
"""In the order of publishing: what is referred to comes before what refers to it."""
SMALL = re.compile(
    r"(pipelines|invocations|baselines)/.*|models/[^/]+/(latest|.*\.json)|runs/[^/]+/((run|result)\.json|report/.*)"
)
"""What every start needs of the whole workspace."""
_MARKERS = ("manifest.json", "COMMIT", "verdict.json", "report.json", "result.json", "run.json", "latest")
_CHECKPOINT = re.compile(r"step-(\d+)\.(\d+)/COMMIT")

log = logging.getLogger(__name__)


class Mirror:
    """The stage folder `root` and the store that it is published to."""

    def __init__(self, root: Path, store: Store) -> None:
        self.root, self.store = root, store
        self.workspace = Workspace(root)
        try:
            self._index: dict[str, list[str | int]] = read_json(root / INDEX)
        except (OSError, ValueError):
            self._index = {}

    # -- from the store

    def pull(self, prefix: str, wanted: Callable[[str], object] = lambda key: True) -> None:
        """Bring the objects below the folder `prefix` that are new or changed; markers last."""
        found = {key: entry for key, entry in self.store.list(prefix).items() if wanted(key) and _is_mirrored(key)}
        for key in sorted(found, key=_publishing_order):
            if self._differs(key, found[key]) and not self._is_continued(key, found[key]):
                self.store.fetch(key, self.root / key)
                self._agree(key, found[key])
        self._save_index()

    def pull_small(self) -> None:
        """What every start needs: run.json of each run, invocations, pipelines, baselines, names of models."""
        for area in ("baselines", "models", "runs", "invocations", "pipelines"):
            self.pull(area, SMALL.fullmatch)

    def pull_snapshot(self, snapshot: str) -> None:
        """A data set with its tokenizer and shards; a folder that is here already is not looked at again."""
        if (self.workspace.snapshot(snapshot) / "manifest.json").is_file():
            return
        try:
            manifest = json.loads(self.store.get(f"snapshots/{snapshot}/manifest.json"))
        except FileNotFoundError:
            return
        self.pull(f"tokenizers/{manifest['tokenizer']}")
        for shard in manifest["shards"]:
            self._pull_folder(f"shards/{shard['key']}")
        self.pull(f"validations/{snapshot}")
        self._pull_folder(f"snapshots/{snapshot}")

    def pull_run(self, run_id: str) -> None:
        """Everything of a run but its checkpoints."""
        self.pull(f"runs/{run_id}")

    def pull_checkpoint(self, run_id: str) -> int:
        """The newest checkpoint that counts, verified; its step, else 0. A broken one is named and skipped."""
        prefix = f"runs/{run_id}"
        root = self.root / prefix / "checkpoints"
        for step, epoch in sorted(self.committed(run_id), reverse=True):
            final = checkpoint.folder_of(root, step)
            if self._is_whole(final):
                return step
            folder = f"{prefix}/checkpoints/{_remote_name(step, epoch)}"
            beside = root / f".{final.name}.{uuid4().hex}" / final.name
            try:
                for key in self.store.list(folder):
                    self.store.fetch(key, beside / key.rsplit("/", 1)[1])
                checkpoint.verify(beside)
                if final.exists():  # without COMMIT: what a crash left
                    shutil.rmtree(final)
                beside.rename(final)
                return step
            except checkpoint.BrokenCheckpointError as error:
                log.warning("checkpoint of step %d in the store is broken (%s); set aside and skipped", step, error)
                self.store.put(f"{folder}/BROKEN", str(error).encode())
                self.store.delete([f"{folder}/COMMIT"])
            finally:
                shutil.rmtree(beside.parent, ignore_errors=True)
        return 0

    def _is_whole(self, folder: Path) -> bool:
        """Whether a local checkpoint verifies. A broken one is set aside, so that the store's copy takes its place."""
        try:
            checkpoint.verify(folder)
        except checkpoint.BrokenCheckpointError as error:
            if (folder / checkpoint.COMMIT_NAME).is_file():
                checkpoint.set_aside(folder, str(error))
            return False
        return True

    def committed(self, run_id: str) -> set[tuple[int, int]]:
        """(step, epoch) of the run's checkpoints in the store that count."""
        prefix = f"runs/{run_id}"
        names = (key.removeprefix(f"{prefix}/checkpoints/") for key in self.store.list(f"{prefix}/checkpoints"))
        found = [(int(m[1]), int(m[2])) for m in map(_CHECKPOINT.fullmatch, names) if m]
        if not found:
            return set()
        valid = counts(self.store, prefix)
        return {(step, epoch) for step, epoch in found if valid(epoch, step)}

    def drop_uncommitted(self, run_id: str) -> None:
        """Remove local checkpoints that the store does not have: another machine has been at this run since."""
        kept = {step for step, _ in self.committed(run_id)}
        root = self.root / "runs" / run_id / "checkpoints"
        for step in set(checkpoint.steps(root)) - kept:
            log.warning("checkpoint of step %d was never committed to the store: dropped", step)
            checkpoint.remove(root, step)

    # -- to the store

    def push(self, prefixes: tuple[str, ...] = AREAS) -> None:
        """Publish what is new or changed below these folders."""
        # Listed from the referring end, published from the other: nothing is published whose parts were not seen.
        changed = {prefix: [key for key in self._walk(prefix) if self._is_new(key)] for prefix in reversed(prefixes)}
        for prefix in prefixes:
            for key in sorted(changed[prefix], key=_publishing_order):
                try:
                    before = (self.root / key).stat()
                    entry = self.store.upload(self.root / key, key)
                except FileNotFoundError:
                    continue  # removed meanwhile
                self._index[key] = [before.st_size, before.st_mtime_ns, entry.version]
            if changed[prefix]:
                self._save_index()

    def push_checkpoints(self, run_id: str, lease: EpochLease) -> list[int]:
        """Publish the run's committed checkpoints, newest first, then let go of those that are gone here.

        Returns the steps that are new in the store. Raises `LeaseLostError`.
        """
        root = self.root / "runs" / run_id / "checkpoints"
        prefix = f"runs/{run_id}/checkpoints"
        there = {step for step, _ in self.committed(run_id)}
        here = checkpoint.steps(root)
        pushed = []
        for step in sorted(set(here) - there, reverse=True):
            folder = checkpoint.folder_of(root, step)
            name = f"{prefix}/{_remote_name(step, lease.number)}"
            try:
                commit = read_json(folder / checkpoint.COMMIT_NAME)
                for part in sorted(commit["files"]):
                    self.store.upload(folder / part, f"{name}/{part}")
            except FileNotFoundError:
                continue  # retention has removed it meanwhile
            lease.check()
            self.store.put(f"{name}/COMMIT", json.dumps({**commit, "epoch": lease.number}).encode())
            pushed.append(step)
        if here:
            self._forget_checkpoints(prefix, set(here))
        return pushed

    def _forget_checkpoints(self, prefix: str, here: set[int]) -> None:
        """Remove from the store what retention, or a history that was taken back, has removed here; COMMIT first."""
        gone: dict[str, list[str]] = {}
        for key in self.store.list(prefix):
            name = key.removeprefix(f"{prefix}/").partition("/")[0]
            step = int(name.removeprefix("step-").partition(".")[0])
            if step not in here:
                gone.setdefault(name, []).append(key)
        for keys in gone.values():
            self.store.delete(sorted(keys, key=lambda key: not key.endswith("/COMMIT")))

    # -- what is where

    def _walk(self, prefix: str) -> Iterator[str]:
        for path in (self.root / prefix).rglob("*"):
            key = path.relative_to(self.root).as_posix()
            if _is_mirrored(key) and path.is_file():
                yield key

    def _is_new(self, key: str) -> bool:
        try:
            found = (self.root / key).stat()
        except FileNotFoundError:
            return False
        return self._index.get(key, [])[:2] != [found.st_size, found.st_mtime_ns]

    def _differs(self, key: str, entry: Entry) -> bool:
        known = self._index.get(key)
        return known is None or known[2] != entry.version or not (self.root / key).is_file()

    def _is_continued(self, key: str, entry: Entry) -> bool:
        """Whether a ledger here is the store's with more lines: those after the last publishing of a killed night."""
        path = self.root / key
        if not key.endswith(".jsonl") or not path.is_file() or path.stat().st_size < entry.size_bytes:
            return False
        return path.read_bytes().startswith(self.store.get(key))

    def _agree(self, key: str, entry: Entry) -> None:
        found = (self.root / key).stat()
        self._index[key] = [found.st_size, found.st_mtime_ns, entry.version]

    def _save_index(self) -> None:
        write_json(self.root / INDEX, self._index)

    def _pull_folder(self, folder: str) -> None:
        """An immutable folder, which appears here whole."""
        final = self.root / folder
        if final.is_dir():
            return
        beside = final.with_name(f".{final.name}.{uuid4().hex}")
        found = self.store.list(folder)
        try:
            for key in found:
                self.store.fetch(key, beside / key.removeprefix(f"{folder}/"))
            if not final.is_dir():
                beside.rename(final)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        for key, entry in found.items():
            self._agree(key, entry)


def _is_mirrored(key: str) -> bool:
    """Not: hidden files (unfinished), locks and leases of one machine, checkpoints (they have their own way)."""
    parts = key.split("/")
    return not any(part.startswith(".") or part in ("lease", "lock", "checkpoints") for part in parts)


def _publishing_order(key: str) -> tuple[bool, str]:
    return key.rsplit("/", 1)[1] in _MARKERS, key


def _remote_name(step: int, epoch: int) -> str:
    return f"step-{step:08d}.{epoch:08d}"
