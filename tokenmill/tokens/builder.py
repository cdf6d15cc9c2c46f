"""Units of the corpus → shards and the snapshot's tables: de-duplicate, cut into groups, build what is not there yet.

The steps overlap: as soon as a group is cut, its shard is looked up by its key or built by a worker, while later files
are still being read. Everything that decides a byte is in canonical order, so the result does not depend on how many
processes there are or which of them is faster.
"""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import orjson

from tokenmill.corpus.refusals import Reason, Refusal
from tokenmill.corpus.spool import FileOutcome
from tokenmill.tokens.forgotten import Forgotten
from tokenmill.tokens.groups import GroupCutter, GroupPart, held_out
from tokenmill.tokens.manifest import Shard, SourceCounts
from tokenmill.tokens.scratch import SHARD_MARKER, Scratch
from tokenmill.tokens.seen import SeenDigests
from tokenmill.tokens.settings import TokensSettings
from tokenmill.tokens.shards import Group, ShardOptions, SpoolPart, build_shard, publish_shard
from tokenmill.tokens.tables import TableWriter
from tokenmill.tokens.units import Unit, UnitIndex, UnitReader
from tokenmill.tokens.workers import Workers
from tokenmill.workspace import Workspace

_PUBLISHERS = 4


class Hooks(Protocol):
    """What prepare tells, and asks, whoever runs it."""

    log: logging.Logger

    def progress(self, label: str, done: int, total: int | None, unit: str, detail: str = "") -> None: ...
    def check_stop(self) -> None:
        """Raises `Interrupted` when the work should end."""


class SilentHooks:
    """Tells nobody and never stops."""

    log = logging.getLogger("tokenmill.prepare")

    def progress(self, label: str, done: int, total: int | None, unit: str, detail: str = "") -> None:
        pass

    def check_stop(self) -> None:
        pass


@dataclass
class SourceTally:
    name: str
    weight: float
    files: int = 0
    documents_in: int = 0
    kept: int = 0
    duplicates: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    filtered: int = 0
    shards: int = 0

    def counts(self) -> SourceCounts:
        refused = sum(self.refused.values())
        if self.documents_in != self.kept + self.duplicates + refused:
            raise RuntimeError(
                f"source '{self.name}': {self.documents_in} documents in, but {self.kept} kept, "
                f"{self.duplicates} duplicates and {refused} refused"
            )
        return SourceCounts(
            name=self.name,
            weight=self.weight,
            files=self.files,
            documents_in=self.documents_in,
            documents_kept=self.kept,
            duplicates=self.duplicates,
            refused=dict(sorted(self.refused.items())),
            filtered=self.filtered,
            shards=self.shards,
        )


@dataclass
class _Pending:
    """A shard on its way."""

    first_unit: int
    shard: Future[dict[str, Any]]


class Builder:
    """Takes units in order, gives the entries of the manifest and fills the snapshot's tables.

    `only`: keys of the shards to build; the others that are missing are listed in `left`. None means all.
    """

    def __init__(
        self,
        workspace: Workspace,
        scratch: Scratch,
        reader: UnitReader,
        workers: Workers,
        options: ShardOptions,
        settings: TokensSettings,
        forgotten: Forgotten,
        limit_documents: int | None,
        hooks: Hooks,
        only: frozenset[str] | None,
    ) -> None:
        self._workspace, self._scratch, self._reader, self._workers = workspace, scratch, reader, workers
        self._options, self._settings, self._hooks = options, settings, hooks
        self._forgotten, self._left, self._only = forgotten, limit_documents, only
        self._seen = SeenDigests()
        self._cutter = GroupCutter(settings.group_documents)
        self._tables = {name: TableWriter(scratch.folder, name) for name in ("sources", "duplicates", "refused")}
        self._publishers = ThreadPoolExecutor(_PUBLISHERS, thread_name_prefix="publish")
        self._pending: deque[_Pending] = deque()
        self._shards: list[dict[str, Any]] = []
        self._units: dict[int, Unit] = {}
        self._groups = 0
        self.tallies: list[SourceTally] = []
        self.built = self.reused = 0
        self.left: list[tuple[str, int]] = []
        """Shards that are not there and not in `only`: key, and bytes of text."""
        self.notes: set[str] = set()

    @property
    def full(self) -> bool:
        """`limit_documents` is reached."""
        return self._left is not None and self._left <= 0

    def begin_source(self, name: str, weight: float, refused: list[tuple[str, Refusal]]) -> None:
        """`refused`: entries of the listing that are no readable file."""
        self.tallies.append(SourceTally(name, weight))
        for path, refusal in refused:
            if not self.full:
                self._refuse([path], [0], [refusal])
                self._count(1)

    def end_source(self) -> None:
        for parts in self._cutter.finish():
            self._group(parts)

    def add_unit(self, unit: Unit, index: UnitIndex) -> None:
        """The next files: refused rows, duplicates and kept documents find their places."""
        tally = self.tallies[-1]
        self._units[unit.number] = unit
        documents, keep = index.documents, np.ones(len(index.documents), np.bool_)
        files = np.repeat(
            np.arange(len(index.outcomes), dtype=np.int32), [outcome.documents for outcome in index.outcomes]
        )
        paths = [file.path for file in unit.files]
        first = 0
        for number, outcome in enumerate(index.outcomes):
            if self.full:
                keep[first:] = False
                break
            end = first + outcome.documents
            cutoff = self._cutoff(outcome, documents[first:end])
            refused = outcome.refused
            if cutoff is not None:
                keep[first:end] = documents[first:end]["position"] <= cutoff
                refused = [refusal for refusal in refused if refusal.position <= cutoff]
            tally.files += 1
            tally.filtered += outcome.filtered
            self._refuse(paths, [number] * len(refused), refused)
            self._count(int(keep[first:end].sum()) + len(refused))
            first = end
        offsets = _offsets(documents)
        if not keep.all():
            documents, files, offsets = documents[keep], files[keep], offsets[keep]
        if len(banned := np.flatnonzero(self._forgotten.mask(documents))):
            self._refuse(
                paths,
                files[banned].tolist(),
                [Refusal(int(documents["position"][at]), Reason.FORGOTTEN, "") for at in banned],
            )
            rest = np.delete(np.arange(len(documents)), banned)
            documents, files, offsets = documents[rest], files[rest], offsets[rest]
        new = self._seen.add(documents["digest"])
        tally.kept += int(new.sum())
        if not new.all():
            again = documents[~new]
            tally.duplicates += len(again)
            self._tables["duplicates"].add(
                source=tally.name, file=(files[~new], paths), position=again["position"], digest=again["digest"]
            )
            documents, files, offsets = documents[new], files[new], offsets[new]
        for parts in self._cutter.add(unit.number, np.asarray(documents), offsets, files):
            self._group(parts)

    def finish(self) -> tuple[list[Shard], dict[str, str]]:
        """Wait for all shards; their entries in canonical order, and the digests of the tables."""
        while self._pending:
            self._collect()
        self._publishers.shutdown()
        digests = {name: table.close() for name, table in sorted(self._tables.items())}
        return [Shard.model_validate(shard) for shard in self._shards], digests

    def abandon(self) -> None:
        self._publishers.shutdown(cancel_futures=True)

    def _cutoff(self, outcome: FileOutcome, documents: npt.NDArray[np.void]) -> int | None:
        """The last position of the file within `limit_documents`, or None for the whole file."""
        if self._left is None or outcome.documents + len(outcome.refused) <= self._left:
            return None
        refused = [refusal.position for refusal in outcome.refused]
        positions = np.sort(np.concatenate([documents["position"].astype(np.int64), np.array(refused, np.int64)]))
        return int(positions[self._left - 1])

    def _count(self, documents: int) -> None:
        self.tallies[-1].documents_in += documents
        if self._left is not None:
            self._left -= documents

    def _refuse(self, paths: list[str], files: list[int], refused: list[Refusal]) -> None:
        tally = self.tallies[-1]
        for refusal in refused:
            tally.refused[refusal.reason] = tally.refused.get(refusal.reason, 0) + 1
        self._tables["refused"].add(
            source=tally.name,
            file=(np.array(files, np.int32), paths),
            position=[refusal.position for refusal in refused],
            reason=[refusal.reason.value for refusal in refused],
            excerpt=[refusal.excerpt for refusal in refused],
        )

    def _group(self, parts: list[GroupPart]) -> None:
        self._hooks.check_stop()
        entries = np.concatenate([part.entries_D for part in parts])
        evaluation = held_out(entries, self._settings.eval_fraction)
        group = Group(
            entries["digest"], entries["characters"].astype(np.int64), entries["bytes"].astype(np.int64), evaluation
        )
        self._list_sources(parts, evaluation)
        self._groups += 1
        self.tallies[-1].shards += 1
        key = group.key(self._options)
        final = self._workspace.shard(key)
        if self._scratch.claim(final):
            self.reused += 1
            done: Future[dict[str, Any]] = Future()
            done.set_result(orjson.loads((final / SHARD_MARKER).read_bytes()))
            self._pending.append(_Pending(parts[0].unit, done))
        elif self._only is not None and key not in self._only:
            self.left.append((key, int(group.bytes_D.sum())))
            self._release()
        else:
            self.built += 1
            self._pending.append(_Pending(parts[0].unit, self._build(final, group, parts)))
        while self._pending and (len(self._pending) > 3 * self._workers.count or self._pending[0].shard.done()):
            self._collect()
        self._hooks.progress("shards", self._groups, None, "shards", f"{self.built} built, {self.reused} re-used")

    def _build(self, final: Path, group: Group, parts: list[GroupPart]) -> Future[dict[str, Any]]:
        folder = self._scratch.folder / f"shard-{self._groups:07d}"
        folder.mkdir()
        spools = [
            SpoolPart(
                self._reader.spool(self._units[part.unit]), part.offsets_D, part.entries_D["bytes"].astype(np.int64)
            )
            for part in parts
        ]
        tokenizer = str(self._workspace.tokenizer(self._options.tokenizer))
        built = self._workers.submit(build_shard, group, spools, self._options, tokenizer, str(folder))

        def publish() -> dict[str, Any]:
            result = built.result()
            if result.note:
                self.notes.add(result.note)
            shard = publish_shard(final, group, result)
            folder.rmdir()
            return shard

        return self._publishers.submit(publish)

    def _list_sources(self, parts: list[GroupPart], evaluation: npt.NDArray[np.bool_]) -> None:
        first = 0
        for part in parts:
            end = first + len(part.entries_D)
            self._tables["sources"].add(
                source=self.tallies[-1].name,
                file=(part.files_D, [file.path for file in self._units[part.unit].files]),
                position=part.entries_D["position"],
                digest=part.entries_D["digest"],
                identity=part.entries_D["identity"],
                held_out=evaluation[first:end],
                shard=np.full(end - first, self._groups, np.int32),
            )
            first = end

    def _collect(self) -> None:
        self._shards.append(self._pending.popleft().shard.result())
        self._release()

    def _release(self) -> None:
        """Let go of the text of units that no group waits for."""
        waiting = [pending.first_unit for pending in self._pending]
        waiting += [unit for unit in [self._cutter.first_unit()] if unit is not None]
        least = min(waiting, default=max(self._units, default=0))
        for number in [number for number in self._units if number < least]:
            self._reader.release(self._units.pop(number))


def _offsets(documents: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    """Where each document begins in its unit's spool: each is followed by one NUL."""
    sizes = documents["bytes"].astype(np.int64) + 1
    return np.cumsum(sizes) - sizes
