"""What a prepare would find and have to do, without doing it: for `tokenmill plan`. Writes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.corpus.options import ReadOptions
from tokenmill.corpus.reading import index_key
from tokenmill.tokens.catalogue import take_stock
from tokenmill.tokens.index_cache import IndexCache
from tokenmill.tokens.pinning import pinned_tokenizer, settings_fingerprint
from tokenmill.tokens.prepare import Prepared, PrepareRequest, find_snapshot


@dataclass(frozen=True)
class Preview:
    """The corpus as it is now, beside what the workspace knows of it."""

    files: int
    bytes: int
    known_files: int
    """Files whose raw bytes an earlier prepare has read: they are tokenised again only where their group changed."""
    tokenizer: str | None
    """Fingerprint of the pipeline's pinned tokenizer; None if it is still to be made."""
    snapshot: Prepared | None
    """The snapshot that holds exactly this corpus, if there is one: nothing to do."""


def preview(request: PrepareRequest) -> Preview:
    """Reads every file's raw bytes once, to tell what changed. Raises `UserError` for a corpus that cannot be used."""
    stock = take_stock(request.corpus.sources, request.roots)
    cache = IndexCache(request.workspace.root / "indexes")
    known = 0
    for source in stock:
        options = ReadOptions.of(source.settings, request.corpus.max_document_bytes)
        known += sum(index_key(file, raw, options) in cache for file, raw in zip(source.files, source.raw, strict=True))
    wanted = settings_fingerprint(request.tokenizer, special_tokens_are_text=request.corpus.special_tokens_are_text)
    tokenizer = pinned_tokenizer(request.workspace, request.pipeline, wanted)
    return Preview(
        files=sum(len(source.files) for source in stock),
        bytes=sum(source.bytes for source in stock),
        known_files=known,
        tokenizer=None if tokenizer is None else tokenizer.fingerprint,
        snapshot=None if tokenizer is None else find_snapshot(request, stock, tokenizer),
    )
