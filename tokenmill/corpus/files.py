"""Which files a source has, in canonical order, and the bytes of one, plain or from an object store.

The canonical order is that of the relative path's UTF-8 bytes: the same on every machine and file system.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tokenmill.canonical import canonical_json
from tokenmill.corpus.refusals import Reason, Refusal

if TYPE_CHECKING:
    from tokenmill.corpus.settings import SourceSettings
from tokenmill.errors import UserError

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """One file of a source."""

    source: str
    path: str
    """Relative to the source's root, with '/'."""
    location: str
    """Absolute path, or URL."""
    bytes: int
    version: str | None = None
    """What an object store's listing says of the content, see `raw_fingerprint`."""


@dataclass(frozen=True, slots=True)
class Listing:
    files: list[CorpusFile]
    refused: list[tuple[str, Refusal]]
    """(relative path, refusal) of entries that are no readable file."""


def list_files(source: SourceSettings, root: str) -> Listing:
    """The files under `root` (a folder, one file, or a URL) that the source's globs choose, in canonical order.

    Raises `UserError` when the root is missing or no file matches.
    """
    chosen = _Matcher(source)
    listing = _list_remote(source, root, chosen) if "://" in root else _list_local(source, Path(root), chosen)
    if not listing.files and not listing.refused:
        patterns = ", ".join(source.include)
        raise UserError(
            f"corpus source '{source.name}': no file under '{source.root}' matches {patterns}; mend include or root"
        )
    listing.files.sort(key=lambda file: file.path.encode())
    listing.refused.sort(key=lambda item: item[0].encode())
    return listing


def _list_local(source: SourceSettings, root: Path, chosen: _Matcher) -> Listing:
    listing = Listing([], [])
    if root.is_file():
        listing.files.append(CorpusFile(source.name, root.name, str(root), root.stat().st_size))
        return listing
    if not root.is_dir():
        raise UserError(f"corpus source '{source.name}': root '{source.root}' is not a folder; mend `root` or make it")
    _walk(source, str(root), "", (os.path.realpath(root),), chosen, listing)
    return listing


def _walk(
    source: SourceSettings, folder: str, prefix: str, ancestors: tuple[str, ...], chosen: _Matcher, into: Listing
) -> None:
    """Depth first through symbolic links too; a link to one of its own ancestors is a loop and is refused."""
    try:
        entries = list(os.scandir(folder))
    except OSError as error:
        into.refused.append((prefix.rstrip("/"), Refusal(0, Reason.UNREADABLE, str(error.strerror))))
        return
    meta = hugging_face_meta(folder, {entry.name for entry in entries})
    for entry in entries:
        if entry.name in meta:
            continue
        relative = prefix + entry.name
        try:
            if entry.is_dir():
                if chosen.prunes(relative):
                    continue
                below = ancestors
                if entry.is_symlink():
                    target = os.path.realpath(entry.path)
                    if target in ancestors:
                        into.refused.append((relative, Refusal(0, Reason.SYMLINK_LOOP, f"leads back to {target}")))
                        continue
                    below = (*ancestors, target)
                else:
                    below = (*ancestors, os.path.join(ancestors[-1], entry.name))  # noqa: PTH118 - hot loop
                _walk(source, entry.path, relative + "/", below, chosen, into)
            elif chosen(relative):
                status = entry.stat()
                if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for ever
                    into.refused.append((relative, Refusal(0, Reason.UNREADABLE, "not a regular file")))
                    continue
                into.files.append(CorpusFile(source.name, relative, entry.path, status.st_size))
        except OSError as error:
            if chosen(relative):
                loop = error.errno == 40  # ELOOP
                reason = Reason.SYMLINK_LOOP if loop else Reason.UNREADABLE
                into.refused.append((relative, Refusal(0, reason, str(error.strerror))))


def hugging_face_meta(folder: str, names: set[str]) -> set[str]:
    """Of a folder that `datasets` saved: the files that are no data (its descriptions, caches of transformations)."""
    if "dataset_dict.json" in names:
        return {"dataset_dict.json"}
    if not {"state.json", "dataset_info.json"} <= names:
        return set()
    try:
        state = json.loads(Path(folder, "state.json").read_bytes())
        data = {item["filename"] for item in state["_data_files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return {"state.json", "dataset_info.json"} | {name for name in names if name.endswith(".arrow")} - data


def _list_remote(source: SourceSettings, root: str, chosen: _Matcher) -> Listing:
    try:
        system, base = _remote_system(root)
        found = system.find(base, detail=True)
        if not found and system.isfile(base):
            found = {base: system.info(base)}
    except Exception as error:
        raise UserError(f"corpus source '{source.name}': cannot list '{source.root}': {error}") from None
    listing = Listing([], [])
    for name, info in found.items():
        relative = name[len(base) :].lstrip("/") if name != base else name.rsplit("/", 1)[-1]
        if name == base or chosen(relative):
            url = system.unstrip_protocol(name)
            listing.files.append(CorpusFile(source.name, relative, url, info.get("size") or 0, _version(url, info)))
    return listing


class _Matcher:
    """Does a relative path belong to the source? `prunes`: is everything below this folder left out?"""

    def __init__(self, source: SourceSettings) -> None:
        self._include = _any_of(source.include)
        self._exclude = _any_of(source.exclude)
        self._prune = _any_of([glob.removesuffix("/**") for glob in source.exclude if glob.endswith("/**")])

    def __call__(self, relative: str) -> bool:
        return bool(self._include.fullmatch(relative)) and not self._exclude.fullmatch(relative)

    def prunes(self, relative: str) -> bool:
        return bool(self._prune.fullmatch(relative))


def _any_of(globs: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(glob_pattern, globs)) or r"(?!)")


def glob_pattern(glob: str) -> str:
    """A regular expression for `glob`: `**/` crosses folders, `*` and `?` do not, `[...]` is a class of characters.

    >>> bool(re.fullmatch(glob_pattern("**/*.py"), "a/b.py")), bool(re.fullmatch(glob_pattern("*.py"), "a/b.py"))
    (True, False)
    """
    out, index = "", 0
    while index < len(glob):
        if glob.startswith("**/", index):
            out, index = out + "(?:[^/]+/)*", index + 3
        elif glob.startswith("**", index):
            out, index = out + ".*", index + 2
        elif glob[index] == "[" and (end := glob.find("]", index + 2)) > 0:
            inside = glob[index + 1 : end].replace("\\", r"\\")
            out, index = out + "[" + ("^/" + inside[1:] if inside[0] == "!" else inside) + "]", end + 1
        else:
            out += {"*": "[^/]*", "?": "[^/]"}.get(glob[index], re.escape(glob[index]))
            index += 1
    return f"(?:{out})"


def open_bytes(location: str) -> IO[bytes]:
    """The raw bytes of a file as they lie there, buffered."""
    if "://" not in location:
        return Path(location).open("rb", buffering=_CHUNK_BYTES)
    import fsspec

    opened: Any = fsspec.open(location, "rb").open()
    return opened  # type: ignore[no-any-return]


def raw_fingerprint(file: CorpusFile, *, again: bool = False) -> str:
    """Names the file's raw bytes: a SHA-256, or the version that an object store vouches for. Never a time stamp.

    `again`: look at the store now, instead of believing its listing. Raises OSError.
    """
    if "://" in file.location and (version := (None if again else file.version) or _remote_version(file.location)):
        return version
    digest = hashlib.sha256()
    with open_bytes(file.location) as handle:
        while chunk := handle.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _remote_version(url: str) -> str | None:
    system, path = _remote_system(url)
    try:
        return _version(url, system.info(path))
    except OSError:
        raise
    except Exception as error:  # of the store's own client
        raise OSError(f"{type(error).__name__}: {error}") from error


def _version(url: str, info: Mapping[str, Any]) -> str | None:
    """Of the first that the store gives: what it calls the content, with the size."""
    for key in ("ETag", "etag", "generation", "md5Hash", "crc32c"):
        if info.get(key):
            return hashlib.sha256(canonical_json([url, info.get("size"), key, str(info[key])])).hexdigest()
    return None


def _remote_system(url: str) -> tuple[Any, str]:
    """The file system and the path in it. Listings are not remembered: they would hide that a file has changed."""
    import fsspec

    found: tuple[Any, str] = fsspec.core.url_to_fs(url, use_listings_cache=False)
    return found
