"""Links on Prefect's timeline to what a stage wrote, where something serves it (`tokenmill serve` does)."""

from __future__ import annotations

import os
from urllib.parse import quote

from tasks.night import Night

FILES_URL = "TOKENMILL_FILES_URL"
"""Variable with the base URL of what serves reports, Data Docs and profiles by pipeline."""


def link(night: Night, what: str, path: str, text: str) -> None:
    """A link artifact, whose history the UI keeps under its key; `path` is relative to the workspace."""
    from prefect.artifacts import create_link_artifact

    from tasks.timeline import artifact_key

    base = os.environ.get(FILES_URL)
    if base:
        create_link_artifact(
            f"{base}/{night.name}/{quote(path)}", link_text=text, key=artifact_key(what, night.name), description=text
        )
