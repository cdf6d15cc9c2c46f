"""What files hold, remembered by their raw bytes: `indexes/<segment>/`, immutable segments of many files each.

    documents.npy   `tokenmill.corpus.spool.INDEX_DTYPE`, all files' documents one after the other
    files.json      {key: [first document, documents, filtered, [[position, reason, excerpt], ...]]}

It holds digests and counts, no text. Losing it costs a reading of the corpus, nothing else.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from tokenmill.corpus.refusals import Reason, Refusal
from tokenmill.corpus.spool import INDEX_DTYPE, FileOutcome
from tokenmill.workspace import publish_folder

_SEGMENTS = 12
"""More than these are merged into one."""
_NOT_CACHED = {Reason.CHANGED_WHILE_READ, Reason.UNREADABLE}
"""Outcomes that the raw bytes do not decide."""


class IndexCache:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._segments: list[tuple[Path, npt.NDArray[np.void]]] = []
        self._places: dict[str, tuple[int, list[Any]]] = {}
        self._fresh: dict[str, tuple[FileOutcome, Path, int]] = {}
        for path in sorted(folder.glob("[0-9a-f]*")) if folder.is_dir() else ():
            try:
                documents = np.load(path / "documents.npy", mmap_mode="r")
                files = orjson.loads((path / "files.json").read_bytes())
            except (OSError, ValueError):
                continue  # another prepare has just merged it into a newer one
            if documents.dtype == INDEX_DTYPE:
                for key, place in files.items():
                    self._places[key] = (len(self._segments), place)
                self._segments.append((path, documents))

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def __getitem__(self, key: str) -> tuple[FileOutcome, npt.NDArray[np.void]]:
        segment, place = self._places[key]
        first, count, filtered, refused = place
        refusals = [Refusal(position, Reason(reason), text) for position, reason, text in refused]
        return FileOutcome(count, refusals, filtered), self._segments[segment][1][first : first + count]

    def remember(self, key: str, outcome: FileOutcome, index: Path, first: int) -> None:
        """The file's documents are entries `first`, ... of the array in the file `index`, which must lie there until
        `save`: it may be larger than memory, and there may be more such files than may be open at once."""
        if not any(refusal.reason in _NOT_CACHED for refusal in outcome.refused):
            self._fresh[key] = (outcome, index, first)

    def save(self, used: set[str]) -> None:
        """Write what was remembered; with too many segments, one that holds what is `used`, in place of them all."""
        if not self._fresh:
            return
        merged = len(self._segments) >= _SEGMENTS
        old = [key for key in used if key in self._places and key not in self._fresh] if merged else []
        entries = {**{key: self[key][0] for key in old}, **{key: fresh[0] for key, fresh in self._fresh.items()}}
        files: dict[str, list[Any]] = {}
        first = 0
        for key, outcome in entries.items():
            refused = [[refusal.position, refusal.reason.value, refusal.excerpt] for refusal in outcome.refused]
            files[key] = [first, outcome.documents, outcome.filtered, refused]
            first += outcome.documents
        with publish_folder(self._folder / uuid.uuid4().hex) as folder:
            # Written as a stream: a map of it would lie in memory as long as the kernel likes.
            with (folder / "documents.npy").open("wb") as sink:
                header = {"descr": np.lib.format.dtype_to_descr(INDEX_DTYPE), "fortran_order": False, "shape": (first,)}
                np.lib.format.write_array_header_1_0(sink, header)
                opened: tuple[Path | None, npt.NDArray[np.void]] = (None, np.empty(0, INDEX_DTYPE))
                for key, (_, count, *_) in files.items():
                    if key in self._fresh:
                        _, index, start = self._fresh[key]
                        if opened[0] != index:
                            opened = (index, np.load(index, mmap_mode="r"))
                        sink.write(opened[1][start : start + count].tobytes())
                    else:
                        sink.write(self[key][1].tobytes())
            (folder / "files.json").write_bytes(orjson.dumps(files))
        if merged:
            for path, _ in self._segments:
                shutil.rmtree(path, ignore_errors=True)
