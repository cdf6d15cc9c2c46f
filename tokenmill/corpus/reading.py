"""Corpus files in, a spool of their documents and an index out.

    outcomes, index = read_files(files, raw, options, spool_path)

Whatever cannot be a document is refused with a reason (`tokenmill.corpus.refusals`), never passed over in silence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokenmill.canonical import fingerprint
from tokenmill.corpus import lines, tables
from tokenmill.corpus.compression import chunks, split_suffix
from tokenmill.corpus.files import CorpusFile, open_bytes, raw_fingerprint
from tokenmill.corpus.options import ReadOptions
from tokenmill.corpus.refusals import Reason, Refusal, WholeFileRefused, excerpt
from tokenmill.corpus.spool import FileOutcome, Spool

_EXTENSIONS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}
READER_VERSION = 1
"""Part of every index's key: raise it when a reader's outcome changes."""


def file_format(path: str, options: ReadOptions) -> str:
    if options.format != "auto":
        return options.format
    return _EXTENSIONS.get(Path(split_suffix(path)[0]).suffix.lower(), "text")


def index_key(file: CorpusFile, raw: str, options: ReadOptions) -> str:
    """Names all that decides what is read from a file: its bytes, how its name says to read them, the options."""
    name, codec = split_suffix(file.path)
    return fingerprint([READER_VERSION, raw, file_format(file.path, options), codec, _delimiter(name), asdict(options)])


def read_files(
    files: Sequence[CorpusFile], raw: Sequence[str], options: ReadOptions, spool_path: Path
) -> tuple[list[FileOutcome], npt.NDArray[np.void]]:
    """Read `files`, whose raw bytes were seen to have the fingerprints `raw`, into one spool.

    Gives each file's outcome, and the index (`tokenmill.corpus.spool.INDEX_DTYPE`) of the documents of all. A file
    whose bytes are others by now is refused as a whole: a plan made of it would not hold.
    """
    spool = Spool(spool_path, max_document_bytes=options.max_document_bytes)
    outcomes = []
    for file, seen in zip(files, raw, strict=True):
        spool.begin()
        try:
            _read(file, seen, options, spool)
            outcomes.append(spool.end())
        except WholeFileRefused as refused:
            outcomes.append(spool.abandon(refused.refusal))
        except OSError as error:
            outcomes.append(spool.abandon(Refusal(0, Reason.UNREADABLE, excerpt(error.strerror or str(error)))))
    return outcomes, spool.close()


def _read(file: CorpusFile, raw: str, options: ReadOptions, spool: Spool) -> None:
    kind = file_format(file.path, options)
    name, codec = split_suffix(file.path)
    if kind in {"parquet", "arrow"}:
        tables.read_columnar(file.location, kind, options, spool)
        seen = raw_fingerprint(file, again=True)
    else:
        digest = hashlib.sha256()
        with open_bytes(file.location) as handle:
            content = chunks(handle, codec, digest)
            if kind == "csv":
                tables.read_csv(content, _delimiter(name), options, spool)
            elif kind == "jsonl":
                lines.read_json_lines(content, options, spool)
            else:
                lines.read_text(content, options, spool)
        seen = raw_fingerprint(file, again=True) if "://" in file.location else digest.hexdigest()
    if seen != raw:
        raise WholeFileRefused(Reason.CHANGED_WHILE_READ, "its bytes changed between two looks")


def _delimiter(name: str) -> str:
    return "\t" if name.lower().endswith(".tsv") else ","
