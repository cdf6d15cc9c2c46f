"""One writer a run (law 8): a lock on a file of the run, which dies with its owner. For local disks."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tokenmill.errors import UserError
from tokenmill.locks import Taken, owned


@contextmanager
def run_lease(run_folder: Path) -> Iterator[None]:
    """Hold the lease of the run in `run_folder` for the block; `UserError` if another process holds it."""
    with ExitStack() as stack:
        try:
            stack.enter_context(owned(run_folder / "lease" / "lock", {"pid": os.getpid(), "host": platform.node()}))
        except Taken as taken:
            owner = taken.owner
            who = f"process {owner['pid']} on {owner['host']}" if owner else "another process"
            raise UserError(f"run '{run_folder.name}' is being trained by {who}; wait for it") from None
        yield
