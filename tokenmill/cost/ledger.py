"""The ledger: what happened in an attempt, one JSON object a line, appended by the supervisor and by the stage.

Each line is one `write` to a file opened for appending, and begins as well as ends with a line feed, so that a torn
line (a process that died, a disk that filled up) never swallows the next one. Kinds of records:

| kind | by | fields |
|---|---|---|
| `spawned` | supervisor | attempt id, stage, host, machine type, market, price and its source |
| `heartbeat` | supervisor | at most a second apart |
| `phases` | stage | `seconds` by phase since the last such record, `current` phase |
| `steps` | stage | cumulative since the run's start: step, cursor, processed, non-padding and replayed tokens |
| `checkpoint` | stage | the step that is now committed |
| `event` | both | anything worth a line in the report |
| `reaped` | supervisor | exit code, reason |

Every record has `time` (Unix seconds, writer's clock) and `monotonic` (writer's monotonic seconds).
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FSYNC_SECONDS = 10.0


class LedgerWriter:
    """Appends records to one attempt's file; thread-safe. fsyncs when asked, and every 10 seconds of writing."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._lock = threading.Lock()
        self._last_fsync = time.monotonic()

    def write(self, kind: str, *, sync: bool = False, **fields: Any) -> None:
        """Append one record. `fields` are plain JSON values."""
        now = time.monotonic()
        record = {"kind": kind, "time": time.time(), "monotonic": now, **fields}
        line = b"\n" + json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        with self._lock:
            os.write(self._handle, line)
            if sync or now - self._last_fsync >= FSYNC_SECONDS:
                os.fsync(self._handle)
                self._last_fsync = now

    def close(self) -> None:
        with self._lock:
            os.fsync(self._handle)
            os.close(self._handle)


class LedgerTail:
    """The records of a file that is being written: each `read` gives those that came since the last one."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def read(self) -> Iterator[dict[str, Any]]:
        """None while there is no file. A line that is not whole yet comes with a later `read`."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                whole, end, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return
        self._offset += len(whole) + len(end)
        yield from _records(whole)


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of one file in the order of writing; a line that is not whole is passed over."""
    yield from _records(path.read_bytes())


def _records(text: bytes) -> Iterator[dict[str, Any]]:
    for line in text.split(b"\n"):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record
