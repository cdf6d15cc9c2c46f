"""Locks between processes: `flock` on a file. The kernel lets go of one however its owner ends. For local disks.

with locked(path): ...                  # wait for the turn
with owned(path, {"run": "abc"}): ...   # or `Taken`, with what the owner wrote
owner_of(path)                          # what the owner wrote, None if nobody holds it
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PATIENCE_SECONDS = 0.5
"""A look by `owner_of` holds the lock for an instant; an owner-to-be waits that out."""
_POLL_SECONDS = 0.02


class Taken(Exception):  # noqa: N818 - an answer, not a fault
    """Another process holds the lock; `owner` is what it wrote about itself, empty if it has not yet."""

    def __init__(self, owner: Mapping[str, Any]) -> None:
        super().__init__(f"held by {dict(owner) or 'another process'}")
        self.owner = owner


@contextmanager
def locked(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock for the block, after waiting for it; with `shared` beside other sharers."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def owned(path: Path, about: Mapping[str, Any]) -> Iterator[None]:
    """Hold the lock for the block and write `about` into its file; `Taken` if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not _try(handle):
            if time.monotonic() > deadline:
                raise Taken(_read(handle))
            time.sleep(_POLL_SECONDS)
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(dict(about)).encode(), 0)
        yield
    finally:
        os.close(handle)


def owner_of(path: Path) -> Mapping[str, Any] | None:
    """What the process that holds the lock wrote about itself (empty if nothing yet); None if nobody holds it."""
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        return None if _try(handle) else _read(handle)
    finally:
        os.close(handle)


def _try(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(handle: int) -> Mapping[str, Any]:
    try:
        found = json.loads(os.pread(handle, 65_536, 0))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
