"""Reading a snapshot: its rows by number, in any order, over memory maps. Imports no TensorFlow.

    snapshot = open_snapshot(workspace, snapshot_id)
    rows = snapshot.rows("train", row_numbers(snapshot.manifest.train.rows, seed=0, cursor=0, count=32))
    rows.tokens_BS.shape   # (32, sequence_length)

Legend: B rows asked for, S sequence length.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokenmill.errors import UserError
from tokenmill.tokens.manifest import Manifest, read_manifest
from tokenmill.tokens.mixture import epoch_rows, stored_rows
from tokenmill.tokens.records import RecordLayout
from tokenmill.tokens.verify import verify_shards
from tokenmill.workspace import Workspace

_OPEN_FILES = 512
"""Memory maps kept at once: each holds a file descriptor, and 1,024 is a common limit."""


@dataclass(frozen=True)
class PackedRows:
    tokens_BS: npt.NDArray[np.int32]
    segment_ids_BS: npt.NDArray[np.int32]
    """1, 2, ... by document of the row; 0 is padding."""
    positions_BS: npt.NDArray[np.int32]
    """0, 1, ... restarting in each document."""
    loss_weights_BS: npt.NDArray[np.float32]
    """1 where this position predicts the next token of the same document, else 0."""


class Snapshot:
    def __init__(self, workspace: Workspace, manifest: Manifest) -> None:
        self.id = manifest.snapshot_id()
        self.manifest = manifest
        self.workspace = workspace
        self.layout = RecordLayout(manifest.sequence_length, manifest.vocab_size)
        self._splits = {name: _SplitRows(workspace, manifest, self.layout, name) for name in ("train", "eval")}

    @property
    def folder(self) -> Path:
        return self.workspace.snapshot(self.id)

    @property
    def tokenizer_folder(self) -> Path:
        return self.workspace.tokenizer(self.manifest.tokenizer)

    def shard_paths(self, split: str = "train") -> list[Path]:
        """The split's TFRecord files in canonical order, for any other reader."""
        return [self.workspace.shard(shard.key) / f"{split}.tfrecord" for shard in self.manifest.shards]

    def rows(self, split: str, row_numbers: npt.NDArray[np.integer]) -> PackedRows:
        """The rows of an epoch with these numbers, in the order asked for."""
        records = self.records(split, row_numbers)
        view = self.layout.view
        segment_ids = view(records, "segment_ids")
        return PackedRows(
            tokens_BS=view(records, "tokens").astype(np.int32),
            segment_ids_BS=segment_ids.astype(np.int32),
            positions_BS=view(records, "positions").astype(np.int32),
            loss_weights_BS=view(records, "loss_weights").astype(np.float32),
        )

    def records(self, split: str, row_numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.uint8]:
        """uint8[B, record_bytes]: the rows as they lie in the files (see `tokenmill.tokens.records`)."""
        return self._splits[split].records(np.asarray(row_numbers, np.int64))

    def stored_blocks(self, split: str, block_rows: int = 4096) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        """Every stored row once, whatever its weight: (number of the shard, uint8[B, record_bytes]), in file order."""
        for number, (shard, path) in enumerate(zip(self.manifest.shards, self.shard_paths(split), strict=True)):
            stored = shard.split(split).rows
            if not stored:
                continue
            whole = np.memmap(path, np.uint8, "r", shape=(stored, self.layout.record_bytes))
            for start in range(0, stored, block_rows):
                yield number, whole[start : start + block_rows]


class _SplitRows:
    """Random access to one split's rows."""

    def __init__(self, workspace: Workspace, manifest: Manifest, layout: RecordLayout, split: str) -> None:
        self._record_bytes = layout.record_bytes
        weights = manifest.shard_weights() if split == "train" else [1.0] * len(manifest.shards)
        self._paths = [workspace.shard(shard.key) / f"{split}.tfrecord" for shard in manifest.shards]
        self._stored = np.array([shard.split(split).rows for shard in manifest.shards], np.int64)
        drawn = [epoch_rows(int(rows), weight) for rows, weight in zip(self._stored, weights, strict=True)]
        self._drawn = np.array(drawn, np.int64)
        self._ends = np.cumsum(self._drawn)
        self._plain = bool((self._drawn == self._stored).all())
        self._maps: OrderedDict[int, mmap.mmap] = OrderedDict()

    def records(self, row_numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        total = int(self._ends[-1]) if len(self._ends) else 0
        if len(row_numbers) and not 0 <= int(row_numbers.min()) <= int(row_numbers.max()) < total:
            raise IndexError(f"row numbers must be in [0, {total})")
        shard = np.searchsorted(self._ends, row_numbers, side="right")
        local = row_numbers - (self._ends - self._drawn)[shard]
        if not self._plain:
            local = stored_rows(local, self._stored[shard], self._drawn[shard])
        size = self._record_bytes
        places = zip(shard.tolist(), (local * size).tolist(), strict=True)
        raw = b"".join([self._map(number)[at : at + size] for number, at in places])
        return np.frombuffer(raw, np.uint8).reshape(-1, size)

    def _map(self, number: int) -> mmap.mmap:
        found = self._maps.get(number)
        if found is None:
            with self._paths[number].open("rb") as handle:
                found = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
            found.madvise(mmap.MADV_RANDOM)
            self._maps[number] = found
            if len(self._maps) > _OPEN_FILES:
                self._maps.popitem(last=False)[1].close()
        return found


def open_snapshot(workspace: Workspace, snapshot_id: str, *, verify: bool = True, deep: bool = False) -> Snapshot:
    """The snapshot `snapshot_id`, its files held against the manifest.

    With `verify` each file's SHA-256 is checked once a machine (what was checked is remembered outside the
    workspace, by the file's identity); with `deep` now, with every row's CRC. Raises `UserError` naming the file, and
    the row where one is broken.
    """
    folder = workspace.snapshot(snapshot_id)
    manifest = read_manifest(folder)
    layout = RecordLayout(manifest.sequence_length, manifest.vocab_size)
    files = []
    for shard in manifest.shards:
        for split in ("train", "eval"):
            path = workspace.shard(shard.key) / f"{split}.tfrecord"
            part = shard.split(split)
            if not path.exists():
                raise UserError(
                    f"snapshot '{snapshot_id}': {path} is missing; run prepare again, it rebuilds the shard"
                )
            files.append((path, part.file_bytes, part.sha256))
    if verify or deep:
        verify_shards(files, layout, snapshot_id, deep=deep)
    return Snapshot(workspace, manifest)
