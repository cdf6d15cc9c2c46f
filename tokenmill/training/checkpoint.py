"""Checkpoints: a folder `step-00001000/` with weights, optimizer and progress, and COMMIT as its last file.

    checkpoints/step-00001000/weights.safetensors     float32, by dotted name
                              optimizer.safetensors   moments (m.*, v.*), step, loss scale
                              state.json              progress: cursor, counts, receipt, best metrics
                              COMMIT                  {"step", "files": {name: {"bytes", "sha256"}}}

A folder counts only if its COMMIT is there and every file has the size and SHA-256 that it names. The newest valid one
wins; a broken one is set aside as `broken-…`, never deleted and never read again. No TensorFlow here: arrays in,
arrays out.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from tokenmill.canonical import canonical_json
from tokenmill.errors import UserError
from tokenmill.training.settings import CheckpointSettings
from tokenmill.workspace import publish_folder, read_json

COMMIT_NAME = "COMMIT"
_FOLDER = re.compile(r"step-(\d{8,})")
_HEADROOM_BYTES = 16 * 2**20
"""Left free besides a checkpoint: ledgers, metrics and reports of the same run must still fit."""

log = logging.getLogger(__name__)


class BrokenCheckpointError(Exception):
    """A checkpoint that must not be used; the message says what is wrong with it."""


@dataclass(frozen=True)
class Checkpoint:
    """One moment of a run. `state` is plain JSON."""

    step: int
    weights: Mapping[str, np.ndarray]
    optimizer: Mapping[str, np.ndarray]
    state: Mapping[str, Any]

    @property
    def size_bytes(self) -> int:
        return sum(array.nbytes for part in (self.weights, self.optimizer) for array in part.values())


def folder_of(root: Path, step: int) -> Path:
    return root / f"step-{step:08d}"


def write(root: Path, checkpoint: Checkpoint) -> Path:
    """Publish `checkpoint` under `root`; returns its folder. One that is there already stays."""
    final = folder_of(root, checkpoint.step)
    with publish_folder(final) as beside:
        save_file(dict(checkpoint.weights), beside / "weights.safetensors")
        save_file(dict(checkpoint.optimizer), beside / "optimizer.safetensors")
        (beside / "state.json").write_bytes(canonical_json(checkpoint.state))
        files = {path.name: _describe(path) for path in sorted(beside.iterdir())}
        (beside / COMMIT_NAME).write_bytes(canonical_json({"step": checkpoint.step, "files": files}))
    return final


def verify(folder: Path) -> int:
    """The step in `folder`'s COMMIT, every file of it found as committed. Raises `BrokenCheckpointError`."""
    try:
        commit = read_json(folder / COMMIT_NAME)
        step, files = int(commit["step"]), dict(commit["files"])
    except FileNotFoundError:
        raise BrokenCheckpointError("it has no COMMIT") from None
    except (ValueError, TypeError, KeyError) as error:
        raise BrokenCheckpointError(f"its COMMIT is unreadable: {error!r}") from None
    for name, expected in files.items():
        try:
            found = _describe(folder / name)
        except OSError as error:
            raise BrokenCheckpointError(f"{name} cannot be read: {error.strerror}") from None
        if found != expected:
            raise BrokenCheckpointError(f"{name} is not what was committed ({found['bytes']:,} bytes, other contents)")
    if folder.name != folder_of(folder.parent, step).name:
        raise BrokenCheckpointError(f"it holds step {step}")
    return step


def read(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`, every byte verified. Raises `BrokenCheckpointError`."""
    step = verify(folder)
    try:
        weights = load_file(folder / "weights.safetensors")
        optimizer = load_file(folder / "optimizer.safetensors")
        state = json.loads((folder / "state.json").read_bytes())
    except (OSError, ValueError, SafetensorError) as error:
        raise BrokenCheckpointError(f"it cannot be loaded: {error}") from None
    return Checkpoint(step, weights, optimizer, state)


def steps(root: Path) -> list[int]:
    """Steps of the folders that have a COMMIT, ascending; not verified."""
    if not root.is_dir():
        return []
    found = (_FOLDER.fullmatch(path.name) for path in root.iterdir() if (path / COMMIT_NAME).is_file())
    return sorted(int(match.group(1)) for match in found if match)


def newest_valid(root: Path) -> Checkpoint | None:
    """The newest checkpoint that verifies; broken ones on the way are set aside with a warning."""
    if not root.is_dir():
        return None
    folders = sorted((path for path in root.iterdir() if _FOLDER.fullmatch(path.name)), key=lambda p: -_step_of(p))
    for folder in folders:
        try:
            return read(folder)
        except BrokenCheckpointError as error:
            set_aside(folder, str(error))
    return None


def set_aside(folder: Path, why: str) -> None:
    """A broken checkpoint is kept for people, under a name that nothing reads."""
    aside = _free_name(folder)
    log.warning("checkpoint %s is broken (%s); set aside as %s", folder.name, why, aside.name)
    folder.rename(aside)


def kept_steps(
    committed: list[int], settings: CheckpointSettings, best_step: int | None
) -> set[int]:  # fmt: skip
    """Which of the committed steps retention keeps: the last K, the best, and every N-th."""
    every = settings.keep_every_steps
    kept = set(committed[-settings.keep_last :])
    kept |= {step for step in committed if step == best_step or (every and step % every == 0)}
    return kept


def remove(root: Path, step: int) -> None:
    """Of a history that is taken back."""
    _remove(folder_of(root, step))


class CheckpointWriter:
    """Writes checkpoints in a thread, one at a time, and keeps their number down."""

    def __init__(
        self,
        root: Path,
        settings: CheckpointSettings,
        *,
        on_commit: Callable[[int, float], None] = lambda step, seconds: None,
        free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
    ) -> None:
        self.root = root
        self._settings = settings
        self._on_commit = on_commit
        self._free_bytes = free_bytes
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.save_seconds = 0.0
        """Of the last completed save, from the copy to COMMIT."""
        root.mkdir(parents=True, exist_ok=True)
        for stale in root.glob(".step-*"):  # what a killed writer left
            shutil.rmtree(stale, ignore_errors=True)

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def save(self, checkpoint: Checkpoint, best_step: int | None = None) -> None:
        """Start writing `checkpoint`, whose arrays nobody else may change any more. Waits for the one before it.

        Raises what went wrong with the one before it.
        """
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(checkpoint, best_step), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is in flight. Raises `UserError` if the disk was too small, or what else went wrong."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write(self, checkpoint: Checkpoint, best_step: int | None) -> None:
        started = time.monotonic()
        try:
            self._make_room(checkpoint, best_step)
            write(self.root, checkpoint)
            self.save_seconds = time.monotonic() - started
            self._on_commit(checkpoint.step, self.save_seconds)
            committed = steps(self.root)
            for step in set(committed) - kept_steps(committed, self._settings, best_step):
                _remove(folder_of(self.root, step))
        except OSError as error:
            self._error = UserError(
                f"checkpoint of step {checkpoint.step} cannot be written to {self.root} ({error.strerror or error}); "
                "the ones before it are intact: free some space or mend the disk, then start again"
            )
        except BaseException as error:
            self._error = error

    def _make_room(self, checkpoint: Checkpoint, best_step: int | None) -> None:
        """Delete old checkpoints where the disk needs it, oldest first, never the newest."""
        need = checkpoint.size_bytes + _HEADROOM_BYTES
        committed = steps(self.root)
        spare = [step for step in committed[:-1] if step != best_step] + [s for s in committed[:-1] if s == best_step]
        while self._free_bytes(self.root) < need:
            if not spare:
                raise UserError(
                    f"{self.root} has {self._free_bytes(self.root) / 2**20:,.0f} MiB free and a checkpoint needs "
                    f"{need / 2**20:,.0f} MiB; the newest one (step {committed[-1] if committed else 'none'}) is "
                    "intact: free some space, then start again"
                )
            _remove(folder_of(self.root, spare.pop(0)))


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def _free_name(folder: Path) -> Path:
    number = 1
    while (aside := folder.with_name(f"broken-{folder.name}-{number}")).exists():
        number += 1
    return aside


def _remove(folder: Path) -> None:
    """COMMIT first, so that a kill in the middle leaves nothing that looks whole."""
    (folder / COMMIT_NAME).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
