"""Are the bytes still those that were written? SHA-256 a file once a machine, CRC a row on demand."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from tokenmill.errors import UserError
from tokenmill.tokens.records import RecordLayout

_CHUNK_ROWS = 4096


def verify_shards(
    files: Sequence[tuple[Path, int, str]], layout: RecordLayout, snapshot_id: str, *, deep: bool = False
) -> None:
    """`files`: (path, bytes, SHA-256). Raises `UserError` for the first that differs, naming file and row."""
    known = _Remembered()
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:  # hashing releases the GIL
        jobs = [
            threads.submit(_check, path, size, digest, layout, snapshot_id, deep)
            for path, size, digest in files
            if deep or not known.has(path, digest)
        ]
        for job in jobs:
            job.result()
    for path, _, digest in files:
        known.add(path, digest)
    known.save()


def _check(path: Path, size: int, digest: str, layout: RecordLayout, snapshot_id: str, deep: bool) -> None:
    mend = "remove the shard's folder and run prepare again, it rebuilds the shard"
    actual = path.stat().st_size
    if actual != size:
        raise UserError(f"snapshot '{snapshot_id}': {path} has {actual} bytes, {size} are expected; {mend}")
    with path.open("rb") as handle:
        right = hashlib.file_digest(handle, "sha256").hexdigest() == digest
    if right and not deep:
        return
    row = _first_broken_row(path, layout) if size else None
    if row is not None:
        raise UserError(f"snapshot '{snapshot_id}': {path} is corrupt in row {row}; {mend}")
    if not right:
        raise UserError(f"snapshot '{snapshot_id}': {path} is another file than the one that was written; {mend}")


def _first_broken_row(path: Path, layout: RecordLayout) -> int | None:
    records = np.memmap(path, np.uint8, "r").reshape(-1, layout.record_bytes)
    for start in range(0, len(records), _CHUNK_ROWS):
        if len(broken := layout.broken_rows(records[start : start + _CHUNK_ROWS])):
            return start + int(broken[0])
    return None


class _Remembered:
    """Files whose hash was checked on this machine, by device, inode, size and times. In the user's cache folder, since
    another machine has to look for itself; where that cannot be written, the next opening checks again."""

    def __init__(self) -> None:
        self._path = _cache_folder() / "tokenmill" / "verified"
        try:
            self._known = set(self._path.read_text(errors="replace").splitlines())
        except OSError:
            self._known = set()
        self._fresh: list[str] = []

    def has(self, path: Path, digest: str) -> bool:
        return _identity(path, digest) in self._known

    def add(self, path: Path, digest: str) -> None:
        line = _identity(path, digest)
        if line not in self._known:
            self._fresh.append(line)

    def save(self) -> None:
        if not self._fresh:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as sink:
                sink.write("".join(line + "\n" for line in self._fresh))
        except OSError:
            pass


def _cache_folder() -> Path:
    """A place that cannot exist where the user has no home, as in a container that runs as any uid."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        return Path(os.devnull)


def _identity(path: Path, digest: str) -> str:
    stat = path.stat()
    return f"{digest} {stat.st_dev} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"
