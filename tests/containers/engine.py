"""What tests with a container engine share. `make test-containers` brings the engine and sets the variables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

IMAGE = os.environ.get("TOKENMILL_TEST_IMAGE", "")
"""The engine image, as repository:tag of the local registry."""
OWNER = 12345
"""User and group of the workspaces: containers never run as root."""

needs_engine = pytest.mark.skipif(
    not IMAGE, reason="not run: no container engine here; `make test-containers` brings one"
)


def client() -> Any:
    from tasks.engine import connect

    return connect()


def chown_all(folder: Path) -> None:
    """Give everything under `folder` to OWNER, and let that user reach it."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, OWNER, OWNER)
    for parent in folder.parents:
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
