"""An object store (s3://, gs://, or any other that fsspec speaks): whole objects by key, below one URL.

There is no rename and no append. An object appears whole or not at all; `create` makes one only where none is, which is
what leases are built on. Credentials come from the environment (AWS_*, GOOGLE_*), as the store's own tools read them.

A call that fails (a 500, a slow-down, a cut connection) is tried again with growing pauses until `patience_seconds` are
over; then it raises `StoreUnreachableError`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from tokenmill.errors import UserError

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0
_S3 = {"config_kwargs": {"connect_timeout": 5, "read_timeout": 30, "retries": {"max_attempts": 1}}}

Answer = TypeVar("Answer")


class StoreUnreachableError(UserError):
    """The store does not answer, or refuses. Everything is in the stage folder still."""


@dataclass(frozen=True)
class Entry:
    """What a listing says of an object. Two different contents never share a `version`."""

    size_bytes: int
    version: str


class Store:
    """The objects below `url`; thread-safe. Keys are relative, with slashes."""

    def __init__(self, url: str, *, patience_seconds: float = 120.0) -> None:
        import fsspec

        self.url = url.rstrip("/")
        self.patience_seconds = patience_seconds
        protocol = url.partition("://")[0]
        options: dict[str, Any] = dict(_S3) if protocol in ("s3", "s3a") else {}
        try:
            system = fsspec.filesystem(protocol, skip_instance_cache=True, use_listings_cache=False, **options)
        except (ImportError, ValueError) as error:
            raise UserError(
                f"workspace: '{url}' cannot be used ({error}); write a folder, s3://... or gs://..."
            ) from None
        self._system: Any = system
        self._system.retries = 1  # s3fs and gcsfs have patience of their own, with no end that we could name
        self._root = str(system._strip_protocol(self.url)).rstrip("/")

    def list(self, prefix: str) -> dict[str, Entry]:
        """Every object whose key begins with the folder `prefix`."""

        def call() -> dict[str, Any]:
            self._system.invalidate_cache()
            found: dict[str, Any] = self._system.find(self._path(prefix), detail=True)
            return found

        found = self._persist(f"list {prefix}", call)
        return {name.removeprefix(self._root + "/"): _entry(info) for name, info in found.items()}

    def get(self, key: str) -> bytes:
        """Raises `FileNotFoundError`."""
        found: bytes = self._persist(f"read {key}", lambda: self._system.cat_file(self._path(key)))
        return found

    def fetch(self, key: str, path: Path) -> None:
        """The object as the file `path`, whole or not at all. Raises `FileNotFoundError`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{uuid4().hex}")
        try:
            self._persist(f"read {key}", lambda: self._system.get_file(self._path(key), str(beside)))
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)

    def put(self, key: str, data: bytes) -> None:
        self._persist(f"write {key}", lambda: self._system.pipe_file(self._path(key), data))

    def upload(self, path: Path, key: str) -> Entry:
        """Raises `FileNotFoundError` if `path` is gone."""
        self._persist(f"write {key}", lambda: self._system.put_file(str(path), self._path(key)))
        return _entry(self._persist(f"look at {key}", lambda: self._system.info(self._path(key))))

    def create(self, key: str, data: bytes) -> bool:
        """Put `data` where no object is; false if one is there. `data` must be of this caller alone: where the answer
        was lost on its way, the contents say whose the object is."""
        try:
            self._persist(f"create {key}", lambda: self._system.pipe_file(self._path(key), data, mode="create"))
        except FileExistsError:
            return self.get(key) == data
        return True

    def delete(self, keys: Iterable[str]) -> None:
        """One after the other, in this order; what is gone already is passed over."""
        for key in keys:
            try:
                self._persist(f"delete {key}", lambda key=key: self._system.rm_file(self._path(key)))  # type: ignore[misc]
            except FileNotFoundError:
                continue

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _persist(self, what: str, call: Callable[[], Answer]) -> Answer:
        deadline = time.monotonic() + self.patience_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return call()
            except (FileNotFoundError, FileExistsError):
                raise
            except Exception as error:  # botocore, aiohttp, google: each has its own
                if _is_precondition(error):
                    raise FileExistsError(what) from None
                if _is_final(error) or time.monotonic() + pause > deadline:
                    raise StoreUnreachableError(
                        f"workspace: cannot {what} in {self.url} ({_sentence(error)}); look at the store and at the "
                        "credentials in the environment, then start again"
                    ) from None
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(LONGEST_PAUSE_SECONDS, 2 * pause)


def _entry(info: dict[str, Any]) -> Entry:
    version = info.get("ETag") or info.get("etag") or info.get("mtime") or info.get("created") or ""
    return Entry(int(info["size"]), str(version).strip('"'))


def _is_precondition(error: Exception) -> bool:
    text = f"{type(error).__name__} {error}"
    return "PreconditionFailed" in text or "pre-conditions" in text or "conditionNotMet" in text


def _is_final(error: Exception) -> bool:
    """What no patience mends: no credentials, or the wrong ones."""
    return isinstance(error, PermissionError) or type(error).__name__ in ("NoCredentialsError", "ParamValidationError")


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
