"""A snapshot whose manifest was damaged (a bad disk, an editor) is set aside, so that it can be prepared anew."""

from __future__ import annotations

import secrets
from pathlib import Path

from tokenmill.errors import UserError
from tokenmill.tokens.manifest import read_manifest


def set_aside_if_damaged(folder: Path) -> Path | None:
    """Where the snapshot in `folder` lies now, if there is one and its manifest is not whole; else None."""
    if not folder.is_dir():
        return None
    try:
        read_manifest(folder)
    except UserError:
        aside = folder.with_name(f".damaged-{folder.name}-{secrets.token_hex(2)}")
        folder.rename(aside)
        return aside
    return None
