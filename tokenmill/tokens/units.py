"""Units: the files of the corpus in canonical order, in pieces that are worth a call of a worker.

A unit's *index* (what documents its files hold) comes from the cache where every file's raw bytes were read before,
else from reading it. Its *spool* (the text) is there once it was read; a unit known from the cache is read only if one
of its documents has to be encoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokenmill.corpus.files import CorpusFile
from tokenmill.corpus.options import ReadOptions
from tokenmill.corpus.reading import index_key, read_files
from tokenmill.corpus.spool import FileOutcome
from tokenmill.errors import Interrupted
from tokenmill.tokens.index_cache import IndexCache
from tokenmill.tokens.workers import Workers

UNIT_BYTES = 4 << 20
"""Raw bytes of small files that are read in one call."""
_UNIT_FILES = 2048


@dataclass
class Unit:
    """Consecutive files of one source."""

    number: int
    source: int
    options: ReadOptions
    files: list[CorpusFile] = field(default_factory=list)
    raw: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    cached: bool = False
    bytes: int = 0
    """Raw bytes of the files."""
    index_read: Future[list[FileOutcome]] | None = None
    """The first reading, for a unit that is not in the cache."""
    text_read: Future[list[FileOutcome]] | None = None
    """The reading whose spool lies there now."""
    readings: int = 0


def make_units(
    files: Sequence[tuple[int, CorpusFile, str]], options: Sequence[ReadOptions], cache: IndexCache
) -> list[Unit]:
    """Units of `files`: (number of the source, file, raw fingerprint), in canonical order."""
    units: list[Unit] = []
    for source, file, raw in files:
        key = index_key(file, raw, options[source])
        cached = key in cache
        last = units[-1] if units else None
        if (
            last is None
            or (last.source, last.cached) != (source, cached)
            or last.bytes + file.bytes > UNIT_BYTES
            or len(last.files) >= _UNIT_FILES
        ):
            last = Unit(len(units), source, options[source], cached=cached)
            units.append(last)
        last.files.append(file)
        last.bytes += file.bytes
        last.raw.append(raw)
        last.keys.append(key)
    return units


@dataclass(frozen=True)
class UnitIndex:
    outcomes: list[FileOutcome]
    documents: npt.NDArray[np.void]
    """`tokenmill.corpus.spool.INDEX_DTYPE`, of all files one after the other."""


class UnitReader:
    """Reads units ahead of their use, keeps their spools while they are needed."""

    def __init__(self, units: list[Unit], cache: IndexCache, workers: Workers, scratch: Path) -> None:
        self._units = units
        self._cache = cache
        self._workers = workers
        self._scratch = scratch
        self._ahead = workers.count + 1

    def start(self) -> None:
        """Begin to read the first units that must be read."""
        for unit in [unit for unit in self._units if not unit.cached][: self._ahead]:
            self._read(unit)

    def __iter__(self) -> Iterator[tuple[Unit, UnitIndex]]:
        """Units with their index, in order."""
        unread = deque(unit for unit in self._units if not unit.cached and unit.index_read is None)
        for unit in self._units:
            while unread and unread[0].number <= unit.number + self._ahead:
                self._read(unread.popleft())
            yield unit, self.index(unit)

    def index(self, unit: Unit) -> UnitIndex:
        if unit.cached:
            found = [self._cache[key] for key in unit.keys]
            return UnitIndex([outcome for outcome, _ in found], np.concatenate([documents for _, documents in found]))
        if unit.index_read is None:
            self._read(unit)
        assert unit.index_read is not None
        return UnitIndex(unit.index_read.result(), np.load(_index_path(self._spool_path(unit, 1)), mmap_mode="r"))

    def fresh_index(self, unit: Unit) -> tuple[list[FileOutcome], Path] | None:
        """Outcomes and the file of the index, if the unit was read for the first time and that went well."""
        if unit.index_read is None or not unit.index_read.done() or unit.index_read.cancelled():
            return None
        if unit.index_read.exception():
            return None
        return unit.index_read.result(), _index_path(self._spool_path(unit, 1))

    def spool(self, unit: Unit) -> str:
        """Path of the unit's text, read now if it does not lie there."""
        if unit.text_read is None:
            self._read(unit)
        assert unit.text_read is not None
        unit.text_read.result()
        path = self._spool_path(unit, unit.readings)
        if (unit.cached or unit.readings > 1) and not np.array_equal(
            np.load(_index_path(path), mmap_mode="r"), self.index(unit).documents
        ):
            names = ", ".join(file.path for file in unit.files[:3])
            raise Interrupted(f"files changed while they were read ({names}); starting again reads them anew")
        return str(path)

    def release(self, unit: Unit) -> None:
        """The unit's text is not needed for now."""
        if unit.text_read is not None:
            unit.text_read.result()
            self._spool_path(unit, unit.readings).unlink(missing_ok=True)
            unit.text_read = None

    def _read(self, unit: Unit) -> None:
        unit.readings += 1
        path = self._spool_path(unit, unit.readings)
        unit.text_read = self._workers.submit(read_unit, unit.files, unit.raw, unit.options, path)
        if not unit.cached and unit.index_read is None:
            unit.index_read = unit.text_read

    def _spool_path(self, unit: Unit, reading: int) -> Path:
        return self._scratch / f"unit-{unit.number:07d}-{reading}.txt"


def read_unit(files: list[CorpusFile], raw: list[str], options: ReadOptions, spool: Path) -> list[FileOutcome]:
    """In a worker: read the files into `spool`; their index goes into a file beside it."""
    outcomes, documents = read_files(files, raw, options, spool)
    np.save(_index_path(spool), documents)
    return outcomes


def _index_path(spool: Path) -> Path:
    return spool.with_suffix(".npy")
