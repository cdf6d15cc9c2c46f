"""Documents that must not be trained on again: `forgotten.json` of the workspace, a list of content digests and ids.

`tokenmill forget` adds to it; prepare refuses what it names, so that shards are rebuilt without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokenmill.workspace import Workspace, read_json, write_json


@dataclass(frozen=True)
class Forgotten:
    digests: frozenset[str] = frozenset()
    """Hex of the content digest."""
    identities: frozenset[int] = frozenset()
    """`tokenmill.corpus.spool.identity_hash` of the id."""

    def mask(self, documents: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        banned = np.zeros(len(documents), np.bool_)
        if self.identities:
            banned |= np.isin(documents["identity"], np.array(sorted(self.identities), np.uint64))
        if self.digests:
            banned |= np.array([digest.hex() in self.digests for digest in documents["digest"].tolist()], np.bool_)
        return banned

    def plain(self) -> dict[str, list[str]]:
        return {"digests": sorted(self.digests), "identities": [f"{value:016x}" for value in sorted(self.identities)]}


def load_forgotten(workspace: Workspace) -> Forgotten:
    path = _path(workspace)
    if not path.exists():
        return Forgotten()
    raw = read_json(path)
    return Forgotten(frozenset(raw["digests"]), frozenset(int(value, 16) for value in raw["identities"]))


def save_forgotten(workspace: Workspace, forgotten: Forgotten) -> None:
    write_json(_path(workspace), forgotten.plain())


def _path(workspace: Workspace) -> Path:
    return workspace.root / "forgotten.json"
