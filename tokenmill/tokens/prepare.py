"""Corpus → snapshot: plan (read, hash, de-duplicate, cut into groups), build (encode, pack, frame), commit (manifest).

    prepared = prepare(PrepareRequest(...), hooks)

A corpus that has not changed is recognised by its files' raw bytes before anything is read: then the snapshot is the
one that was made of it.
"""

from __future__ import annotations

import mmap
import os
import platform
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenmill.canonical import fingerprint
from tokenmill.config import Role, values_with_role
from tokenmill.corpus.options import ReadOptions
from tokenmill.corpus.settings import CorpusSettings
from tokenmill.errors import UserError
from tokenmill.tokens.catalogue import SourceFiles, take_stock
from tokenmill.tokens.forgotten import load_forgotten
from tokenmill.tokens.groups import held_out
from tokenmill.tokens.healing import set_aside_if_damaged
from tokenmill.tokens.index_cache import IndexCache
from tokenmill.tokens.manifest import FORMAT_VERSION, Manifest, read_manifest
from tokenmill.tokens.pinning import pin, pinned_tokenizer, settings_fingerprint, source_changed
from tokenmill.tokens.scratch import Scratch, open_scratch
from tokenmill.tokens.settings import TokenizerSettings, TokensSettings
from tokenmill.tokens.tokenizer import Tokenizer
from tokenmill.tokens.units import UnitReader, make_units
from tokenmill.tokens.workers import InProcess, Processes, Workers
from tokenmill.workspace import Workspace, publish_folder, read_json, write_json

if TYPE_CHECKING:
    from tokenmill.tokens.builder import Builder, Hooks

_WORTH_PROCESSES_BYTES = 6 << 20
"""Raw bytes below which a worker process costs more than it saves."""
_KEEP_SPOOLS_BYTES = 512 << 20
"""Text that may lie in scratch between tokenizer training and the main pass."""


@dataclass(frozen=True)
class PrepareRequest:
    workspace: Workspace
    pipeline: str
    corpus: CorpusSettings
    tokenizer: TokenizerSettings
    tokens: TokensSettings
    roots: Mapping[str, str]
    """Folder or URL of each source, by its name."""


@dataclass(frozen=True)
class Prepared:
    snapshot: str
    manifest: Manifest
    built_shards: int
    reused_shards: int

    def outputs(self) -> dict[str, Any]:
        manifest = self.manifest
        return {
            "snapshot": self.snapshot,
            "tokenizer": manifest.tokenizer,
            "documents": manifest.documents_kept,
            "refused": manifest.refused,
            "duplicates": manifest.duplicates,
            "train_tokens": manifest.train.tokens,
            "eval_tokens": manifest.eval.tokens,
            "train_rows": manifest.train.rows,
            "built_shards": self.built_shards,
            "reused_shards": self.reused_shards,
        }


@dataclass(frozen=True)
class Built:
    """What `build_only` did."""

    plan: str
    """The `plan_key` of the corpus that was seen."""
    shards: int
    left: tuple[tuple[str, int], ...]
    """Shards that are not there and were not asked for: key, and bytes of text; in canonical order."""


def prepare(request: PrepareRequest, hooks: Hooks) -> Prepared:
    """Raises `UserError` for a corpus that cannot be used, `Interrupted` when `hooks` asks to stop."""
    stock, tokenizer = _look(request, hooks)
    if tokenizer is not None and (found := find_snapshot(request, stock, tokenizer)) is not None:
        hooks.log.info("nothing changed: snapshot %s", found.snapshot)
        return found
    with open_scratch(request.workspace.scratch) as scratch, _Session(request, stock, scratch, hooks) as session:
        return session.commit(*session.build(tokenizer, None))


def build_only(request: PrepareRequest, hooks: Hooks, keys: frozenset[str], text_bytes: int) -> Built | None:
    """Build these shards of the corpus (of so many bytes of text) and nothing else; no snapshot comes of it.

    None if the snapshot is there already.
    """
    stock, tokenizer = _look(request, hooks)
    if tokenizer is not None and find_snapshot(request, stock, tokenizer) is not None:
        return None
    with (
        open_scratch(request.workspace.scratch) as scratch,
        _Session(request, stock, scratch, hooks, text_bytes) as session,
    ):
        builder, tokenizer = session.build(tokenizer, keys)
        builder.finish()
        return Built(plan_key(request, stock, tokenizer), builder.built, tuple(builder.left))


def _look(request: PrepareRequest, hooks: Hooks) -> tuple[list[SourceFiles], Tokenizer | None]:
    """The corpus as it is now, and the pipeline's tokenizer if it has one."""
    stock = take_stock(request.corpus.sources, request.roots)
    files = sum(len(source.files) for source in stock)
    hooks.progress("hash", files, files, "files", f"{sum(source.bytes for source in stock) / 2**20:,.1f} MiB")
    tokenizer = pinned_tokenizer(request.workspace, request.pipeline, _wanted(request))
    if tokenizer is not None and source_changed(request.workspace, request.pipeline, request.tokenizer.source):
        hooks.log.warning(
            "the folder of tokenizer.source changed since the pipeline's tokenizer was pinned; the pinned one is used"
        )
    return stock, tokenizer


def _wanted(request: PrepareRequest) -> str:
    return settings_fingerprint(request.tokenizer, special_tokens_are_text=request.corpus.special_tokens_are_text)


def plan_key(request: PrepareRequest, stock: list[SourceFiles], tokenizer: Tokenizer) -> str:
    """Names all that decides the snapshot, by the files' raw bytes: found again, nothing needs to be read."""
    return fingerprint(
        {
            "format": FORMAT_VERSION,
            "corpus": values_with_role(request.corpus, Role.IDENTITY),
            "tokens": values_with_role(request.tokens, Role.IDENTITY),
            "tokenizer": tokenizer.fingerprint,
            "forgotten": load_forgotten(request.workspace).plain(),
            "files": [
                [source.settings.name, [[file.path, raw] for file, raw in zip(source.files, source.raw, strict=True)]]
                for source in stock
            ],
            "refused": [[path, refusal.reason] for source in stock for path, refusal in source.refused],
        },
        length=32,
    )


def find_snapshot(request: PrepareRequest, stock: list[SourceFiles], tokenizer: Tokenizer) -> Prepared | None:
    """The snapshot that was made of exactly this corpus, if it and its shards are still there."""
    path = _plan_path(request.workspace, plan_key(request, stock, tokenizer))
    if not path.exists():
        return None
    snapshot = read_json(path)["snapshot"]
    folder = request.workspace.snapshot(snapshot)
    if not (folder / "manifest.json").exists():
        return None
    try:
        manifest = read_manifest(folder)
    except UserError:
        return None  # damaged: build it again
    for shard in manifest.shards:
        for split in ("train", "eval"):
            file = request.workspace.shard(shard.key) / f"{split}.tfrecord"
            if not file.exists() or file.stat().st_size != shard.split(split).file_bytes:
                return None  # a shard was removed or cut: build it again
    return Prepared(snapshot, manifest, 0, len(manifest.shards))


def _plan_path(workspace: Workspace, key: str) -> Path:
    return workspace.root / "plans" / f"{key}.json"


class _Session:
    """One prepare that has work to do."""

    def __init__(
        self, request: PrepareRequest, stock: list[SourceFiles], scratch: Scratch, hooks: Hooks, to_encode: int = 0
    ) -> None:
        """`to_encode`: bytes of text that are known to be encoded though their files are not new."""
        self._request, self._stock, self._scratch, self._hooks = request, stock, scratch, hooks
        self._to_encode = to_encode
        self._builder: Builder | None = None
        self._cache = IndexCache(request.workspace.root / "indexes")
        options = [ReadOptions.of(source.settings, request.corpus.max_document_bytes) for source in stock]
        listed = [
            (number, file, raw)
            for number, source in enumerate(stock)
            for file, raw in zip(source.files, source.raw, strict=True)
        ]
        self._units = make_units(listed, options, self._cache)
        self._workers = self._make_workers()
        self._reader = UnitReader(self._units, self._cache, self._workers, scratch.folder)

    def _make_workers(self) -> Workers:
        wanted = self._request.tokens.processes
        count = len(os.sched_getaffinity(0)) if wanted == "auto" else wanted
        unread = self._to_encode + sum(unit.bytes for unit in self._units if not unit.cached)
        if count == 1 or (wanted == "auto" and unread < _WORTH_PROCESSES_BYTES):
            return InProcess()
        return Processes(count)

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, *error: object) -> None:
        if self._builder is not None:
            self._builder.abandon()
        self._remember()
        self._workers.close()

    def build(self, tokenizer: Tokenizer | None, only: frozenset[str] | None) -> tuple[Builder, Tokenizer]:
        """Bring the shards into being, all or `only` these. `tokenizer`: none makes and pins one first."""
        from tokenmill.tokens.builder import Builder
        from tokenmill.tokens.shards import ShardOptions

        request, settings = self._request, self._request.tokens
        self._reader.start()
        if tokenizer is None:
            tokenizer = self._make_tokenizer()
            pin(request.workspace, request.pipeline, _wanted(request), tokenizer, request.tokenizer.source)
        options = ShardOptions(
            tokenizer.fingerprint, tokenizer.vocab_size, settings.sequence_length, settings.packing, FORMAT_VERSION
        )
        builder = Builder(
            request.workspace,
            self._scratch,
            self._reader,
            self._workers,
            options,
            settings,
            load_forgotten(request.workspace),
            request.corpus.limit_documents,
            self._hooks,
            only,
        )
        self._builder = builder
        self._feed(builder)
        return builder, tokenizer

    def _feed(self, builder: Builder) -> None:
        units = iter(self._reader)
        read = 0
        for number, source in enumerate(self._stock):
            builder.begin_source(source.settings.name, source.settings.weight, source.refused)
            for _ in range(sum(unit.source == number for unit in self._units)):
                if builder.full:
                    break
                self._hooks.check_stop()
                unit, index = next(units)
                builder.add_unit(unit, index)
                read += len(unit.files)
                self._hooks.progress("read", read, None, "files")
            builder.end_source()
            if builder.full:
                break

    def commit(self, builder: Builder, tokenizer: Tokenizer) -> Prepared:
        from tokenmill.tokens.commit import make_manifest, refuse_too_many_refused

        request = self._request
        shards, tables = builder.finish()
        sources = [tally.counts() for tally in builder.tallies]
        refuse_too_many_refused(sources, request.corpus.max_refused_pct)
        manifest = make_manifest(request.workspace, request.tokens, tokenizer, sources, shards, tables)
        snapshot = manifest.snapshot_id()
        aside = set_aside_if_damaged(request.workspace.snapshot(snapshot))
        if aside is not None:
            self._hooks.log.warning("snapshot %s was damaged: it lies in %s now, and is made anew", snapshot, aside)
        with publish_folder(request.workspace.snapshot(snapshot)) as folder:
            for name in tables:
                (self._scratch.folder / f"{name}.parquet").rename(folder / f"{name}.parquet")
            write_json(folder / "provenance.json", self._provenance(builder))
            (folder / "manifest.json").write_bytes(manifest.canonical_bytes())
        write_json(_plan_path(request.workspace, plan_key(request, self._stock, tokenizer)), {"snapshot": snapshot})
        for note in sorted(builder.notes):
            self._hooks.log.warning("%s", note)
        return Prepared(snapshot, manifest, builder.built, builder.reused)

    def _provenance(self, builder: Builder) -> dict[str, Any]:
        packages = ("tokenmill", "gigatoken", "tokenizers", "numpy", "pyarrow")
        return {
            "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "host": socket.gethostname(),
            "python": platform.python_version(),
            "packages": {name: _version(name) for name in packages},
            "pipeline": self._request.pipeline,
            "processes": self._workers.count,
            "built_shards": builder.built,
            "reused_shards": builder.reused,
            "notes": sorted(builder.notes),
        }

    def _make_tokenizer(self) -> Tokenizer:
        from tokenmill.tokens.make_tokenizer import import_tokenizer, pin_trained

        settings, corpus = self._request.tokenizer, self._request.corpus
        folders = self._request.workspace.root / "tokenizers"
        if settings.source is not None:
            self._hooks.log.info("pinning tokenizer %s", settings.source)
            return import_tokenizer(folders, settings, special_tokens_are_text=corpus.special_tokens_are_text)
        self._hooks.progress("tokenizer", 0, None, "documents", "choosing documents")
        sample = self._training_sample()
        self._hooks.log.info(
            "training a byte-level BPE of %d tokens on %.1f MiB", settings.vocab_size, sum(map(len, sample)) / 2**20
        )
        self._hooks.progress("tokenizer", len(sample), len(sample), "documents", "training")
        return pin_trained(folders, sample, settings, special_tokens_are_text=corpus.special_tokens_are_text)

    def _training_sample(self) -> list[bytes]:
        """Train-side documents, whatever their order; see `tokenmill.tokens.make_tokenizer.TrainingSample`."""
        from tokenmill.tokens.make_tokenizer import TrainingSample

        sample = TrainingSample()
        forgotten = load_forgotten(self._request.workspace)
        spooled = seen = 0
        for unit, index in self._reader:
            self._hooks.check_stop()
            documents = np.asarray(index.documents)
            seen += len(documents)
            if not len(documents):
                continue
            sizes = documents["bytes"].astype(np.int64)
            starts = np.cumsum(sizes + 1) - sizes - 1
            usable = ~held_out(documents, self._request.tokens.eval_fraction) & ~forgotten.mask(documents)
            usable &= sample.may_enter(documents["digest"])
            path = self._reader.spool(unit)
            with open(path, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as spool:  # noqa: PTH123
                for at in np.flatnonzero(usable).tolist():
                    start = int(starts[at])
                    sample.add(documents["digest"][at].tobytes(), spool[start : start + int(sizes[at])])
            spooled += int(sizes.sum())
            if spooled > _KEEP_SPOOLS_BYTES:
                self._reader.release(unit)
        if not seen:
            raise UserError(
                "corpus: the sources' files give no document, all are empty or refused; "
                "check include, format, encoding and text_column"
            )
        if not sample:
            raise UserError("tokenizer: the corpus has no train-side document to train one on; name tokenizer.source")
        return sample.texts()

    def _remember(self) -> None:
        """Keep the indexes of what was read, however the work ended."""
        for unit in self._units:
            if (fresh := self._reader.fresh_index(unit)) is None:
                continue
            outcomes, path = fresh
            first = 0
            for key, outcome in zip(unit.keys, outcomes, strict=True):
                self._cache.remember(key, outcome, path, first)
                first += outcome.documents
        self._cache.save({key for unit in self._units for key in unit.keys})


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
