"""One writer a run (law 8): an `flock` on a file of the run, which dies with its owner. For local disks."""

from __future__ import annotations

import fcntl
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenmill.errors import UserError


@contextmanager
def run_lease(run_folder: Path) -> Iterator[None]:
    """Hold the lease of the run in `run_folder` for the block; `UserError` if another process holds it."""
    path = run_folder / "lease" / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"run '{run_folder.name}' is being trained by {_owner(handle)}; wait for it") from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({"pid": os.getpid(), "host": platform.node()}).encode(), 0)
        yield
    finally:
        os.close(handle)


def _owner(handle: int) -> str:
    try:
        owner = json.loads(os.pread(handle, 4096, 0))
        return f"process {owner['pid']} on {owner['host']}"
    except (ValueError, KeyError):
        return "another process"
