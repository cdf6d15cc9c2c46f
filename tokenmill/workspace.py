"""The workspace: where everything lies that must survive a machine, and how files come into being there.

Nothing is half there (law 1): a file is written beside its name, fsynced and renamed; a folder is filled beside its
name and renamed, its marker (manifest.json, COMMIT, ...) written last. A reader that finds no marker finds nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.errors import UserError


@dataclass(frozen=True)
class Workspace:
    """The folders of a workspace on a local disk, by name. Every path here is absolute."""

    root: Path

    @classmethod
    def open(cls, location: str, *, need_bytes: int = 0) -> Workspace:
        """Create the folder if it is missing; raise `UserError` if it cannot be written or has too little room."""
        if "://" in location:
            raise UserError(f"workspace: '{location}' is on object storage; only local folders are supported so far")
        root = Path(location)
        try:
            root.mkdir(parents=True, exist_ok=True)
            probe = root / f".probe-{uuid.uuid4().hex}"
            write_atomic(probe, b"tokenmill")
            probe.unlink()
        except OSError as error:
            raise UserError(
                f"workspace: '{location}' cannot be written ({error.strerror or error}); "
                "choose another folder or mend its permissions"
            ) from None
        free = shutil.disk_usage(root).free
        if free < need_bytes:
            raise UserError(
                f"workspace: '{location}' has {free / 2**20:,.0f} MiB free, {need_bytes / 2**20:,.0f} MiB are needed; "
                "free some space or choose another folder"
            )
        return cls(root.resolve())

    def shard(self, key: str) -> Path:
        return self.root / "shards" / key

    def snapshot(self, snapshot_id: str) -> Path:
        return self.root / "snapshots" / snapshot_id

    def tokenizer(self, tokenizer_fingerprint: str) -> Path:
        return self.root / "tokenizers" / tokenizer_fingerprint

    def validation(self, snapshot_id: str, rules: str) -> Path:
        return self.root / "validations" / snapshot_id / rules

    def pipeline(self, name: str) -> Path:
        return self.root / "pipelines" / name

    def invocation(self, invocation_id: str) -> Path:
        return self.root / "invocations" / invocation_id

    def run(self, run_id: str) -> Path:
        return self.root / "runs" / run_id

    def model(self, pipeline: str, number: int | str) -> Path:
        return self.root / "models" / pipeline / str(number)

    @property
    def baselines(self) -> Path:
        return self.root / "baselines"

    @property
    def scratch(self) -> Path:
        """Unfinished work of running stages, on the same file system; safe to delete when nothing runs."""
        return self.root / "scratch"

    def relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def write_atomic(path: Path, data: bytes) -> None:
    """Put `data` at `path` whole or not at all; the parent folder is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with beside.open("wb") as sink:
            sink.write(data)
            sink.flush()
            os.fsync(sink.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """`write_atomic` of `value` as indented JSON, for files that people open."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n")


def read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


@contextmanager
def publish_folder(final: Path) -> Iterator[Path]:
    """Fill the folder that this yields; at the end it appears at `final`, whole. If one is there already, that stays.

    Two writers of the same content-addressed folder thus end with one valid folder.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    beside = final.with_name(f".{final.name}.{uuid.uuid4().hex}")
    beside.mkdir()
    try:
        yield beside
        for path in sorted(beside.rglob("*")):
            if path.is_file():
                with path.open("rb+") as handle:
                    os.fsync(handle.fileno())
        fsync_folder(beside)
        try:
            beside.rename(final)
        except OSError:
            if not final.is_dir():
                raise
        fsync_folder(final.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def fsync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
