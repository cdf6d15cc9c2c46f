"""A running prepare's own folder, `scratch/prepare-<unique>/`: spools, half-made shards, and what it re-uses.

An flock on its `lock` file says that its owner lives; the kernel lets go of it however the owner ends. A folder whose
owner is dead is swept away by the next start.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenmill.locks import locked, owned, owner_of

_LOCK = "lock"
_IN_USE = "in_use"
_GATE = "collect.lock"
SHARD_MARKER = "shard.json"


class Scratch:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def claim(self, shard: Path) -> bool:
        """Mark a shard as in use while this prepare lives; True if it is there, marker and all.

        Marking and looking are one step to garbage collection, which looks for marks and removes in one step too.
        """
        with locked(self.folder.parent / _GATE, shared=True):
            with (self.folder / _IN_USE).open("a") as sink:
                sink.write(shard.name + "\n")
            return (shard / SHARD_MARKER).exists()


@contextmanager
def collecting(parent: Path) -> Iterator[None]:
    """No prepare marks a shard in this block."""
    parent.mkdir(parents=True, exist_ok=True)
    with locked(parent / _GATE):
        yield


@contextmanager
def open_scratch(parent: Path) -> Iterator[Scratch]:
    """A folder of one's own under `parent`, removed at the end."""
    parent.mkdir(parents=True, exist_ok=True)
    sweep(parent)
    folder = parent / f"prepare-{uuid.uuid4().hex}"
    beside = parent / f".new-{folder.name}"
    beside.mkdir()
    with owned(beside / _LOCK, {"pid": os.getpid()}):
        beside.rename(folder)  # it is seen only once it is locked
        try:
            yield Scratch(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Remove what dead prepares left."""
    for folder in parent.glob("prepare-*"):
        if owner_of(folder / _LOCK) is None:
            shutil.rmtree(folder, ignore_errors=True)


def shards_in_use(parent: Path) -> set[str]:
    """Keys that a living prepare has marked."""
    marked: set[str] = set()
    for folder in parent.glob("prepare-*"):
        if owner_of(folder / _LOCK) is not None and (folder / _IN_USE).exists():
            marked |= set((folder / _IN_USE).read_text().split())
    return marked
