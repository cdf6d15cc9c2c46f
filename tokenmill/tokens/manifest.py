"""What a snapshot says of itself: `snapshots/<id>/manifest.json`, whose hash is the id.

It holds nothing that depends on time, machine, path or library version; those lie in provenance.json beside it.
A Parquet file's bytes depend on the version of its writer, so the manifest names the digest of a table's rows instead.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tokenmill.canonical import canonical_json, fingerprint
from tokenmill.errors import UserError

FORMAT_VERSION = 1
"""Of shards and snapshots. Another version has other keys, so its shards are never mixed with these."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SplitCounts(_Frozen):
    """Counts of one split. An epoch draws `rows`; a source's weight repeats or thins its rows, so `rows`, `tokens` and
    `padding_tokens` may differ from what is stored; documents are counted once."""

    documents: int = 0
    rows: int = 0
    tokens: int = 0
    """Non-padding tokens of an epoch."""
    padding_tokens: int = 0
    split_documents: int = 0
    """Documents in more than one piece."""
    stored_rows: int = 0
    stored_tokens: int = 0


class ShardSplit(_Frozen):
    """One split's records in a shard."""

    documents: int
    rows: int
    tokens: int
    split_documents: int
    sha256: str
    file_bytes: int


class Shard(_Frozen):
    """A group of documents, packed: `shards/<key>/`."""

    key: str
    documents: int
    text_bytes: int
    characters: int
    train: ShardSplit
    eval: ShardSplit
    documents_digest: str
    """Of the rows of documents.parquet."""

    def split(self, name: str) -> ShardSplit:
        return self.train if name == "train" else self.eval


class SourceCounts(_Frozen):
    """One source of the corpus. documents_in = kept + duplicates + refused."""

    name: str
    weight: float
    files: int
    documents_in: int
    documents_kept: int
    duplicates: int
    refused: dict[str, int]
    """By reason."""
    filtered: int
    """Records that `where` left out; they are no documents of the corpus."""
    shards: int
    """The next so many entries of `Manifest.shards` are this source's."""


class Manifest(_Frozen):
    format_version: int
    tokenizer: str
    """Fingerprint."""
    vocab_size: int
    end_of_document: int
    sequence_length: int
    packing: str
    eval_fraction: float
    documents_in: int
    documents_kept: int
    duplicates: int
    refused: int
    filtered: int
    tokens_dropped: dict[str, int]
    """By the rule that dropped them."""
    train: SplitCounts
    eval: SplitCounts
    sources: tuple[SourceCounts, ...]
    shards: tuple[Shard, ...]
    """In canonical order."""
    tables: dict[str, str]
    """sources, refused, duplicates: digest of the table's rows."""

    def split(self, name: str) -> SplitCounts:
        return self.train if name == "train" else self.eval

    def snapshot_id(self) -> str:
        return fingerprint(self.model_dump(mode="json"))

    def canonical_bytes(self) -> bytes:
        return canonical_json(self.model_dump(mode="json")) + b"\n"

    def shard_weights(self) -> list[float]:
        """Each shard's source's weight."""
        return [source.weight for source in self.sources for _ in range(source.shards)]


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the snapshot in `folder`, held against its id. Raises `UserError`."""
    path = folder / "manifest.json"
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"snapshot '{folder.name}' is not in this workspace ({path} is missing)") from None
    version = _format_version(raw)
    if version != FORMAT_VERSION:
        raise UserError(
            f"snapshot '{folder.name}' has format version {version}, this tokenmill reads {FORMAT_VERSION}; "
            "run prepare again to make one of this version"
        )
    try:
        manifest = Manifest.model_validate_json(raw)
    except ValueError:
        raise UserError(f"snapshot '{folder.name}': {path} is corrupt; run prepare again") from None
    if manifest.snapshot_id() != folder.name:
        raise UserError(f"snapshot '{folder.name}': {path} is not the manifest that names it; run prepare again")
    return manifest


def _format_version(raw: bytes) -> object:
    import orjson

    try:
        parsed = orjson.loads(raw)
    except ValueError:
        return "unknown"
    return parsed.get("format_version", "unknown") if isinstance(parsed, dict) else "unknown"
