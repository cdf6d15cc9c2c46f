"""Purging documents: which snapshots hold them, and removing every stored copy.

A document is named by its id (where its source has an id column) or by its content digest (32 hexadecimal digits, as
sources.parquet has it). What was forgotten is refused by every later prepare, so the shards are built anew without it.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from tokenmill.corpus.spool import INDEX_DTYPE, identity_hash
from tokenmill.tokens.forgotten import Forgotten, load_forgotten, save_forgotten
from tokenmill.tokens.manifest import read_manifest
from tokenmill.workspace import Workspace


@dataclass(frozen=True)
class Sighting:
    """Where documents to forget lie in one snapshot."""

    snapshot: str
    documents: int
    shards: set[str] = field(default_factory=set)


def named(ids: list[str]) -> Forgotten:
    """What the given ids name. A content digest may be an id as well: then both are meant."""
    digests = frozenset(text.lower() for text in ids if re.fullmatch(r"[0-9a-fA-F]{32}", text))
    return Forgotten(digests, frozenset(identity_hash(text) for text in ids))


def sightings(workspace: Workspace, wanted: Forgotten) -> list[Sighting]:
    """Every snapshot of the workspace that holds one of the documents."""
    found = []
    for path in sorted((workspace.root / "snapshots").glob("[0-9a-f]*/sources.parquet")):
        shards: set[int] = set()
        documents = 0
        for batch in pq.ParquetFile(path).iter_batches(columns=["digest", "identity", "shard"]):
            entries = np.zeros(batch.num_rows, INDEX_DTYPE)
            entries["digest"] = np.array(batch.column("digest").to_pylist(), "V16")
            entries["identity"] = batch.column("identity").to_numpy()
            hit = wanted.mask(entries)
            documents += int(hit.sum())
            shards |= set(batch.column("shard").to_numpy()[hit].tolist())
        if documents:
            manifest = read_manifest(path.parent)
            found.append(Sighting(path.parent.name, documents, {manifest.shards[number].key for number in shards}))
    return found


def remember_forgotten(workspace: Workspace, wanted: Forgotten) -> None:
    before = load_forgotten(workspace)
    save_forgotten(workspace, Forgotten(before.digests | wanted.digests, before.identities | wanted.identities))


def purge(workspace: Workspace, found: list[Sighting]) -> None:
    """Remove the snapshots and the shards that hold the documents, and what was validated of those snapshots."""
    for sighting in found:
        _remove(workspace.snapshot(sighting.snapshot))
        _remove(workspace.root / "validations" / sighting.snapshot)
    for key in {key for sighting in found for key in sighting.shards}:
        _remove(workspace.shard(key))


def _remove(folder: Path) -> None:
    hidden = folder.with_name(f".removed-{folder.name}")
    try:
        folder.rename(hidden)
    except FileNotFoundError:
        return
    shutil.rmtree(hidden, ignore_errors=True)
