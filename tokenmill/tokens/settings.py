"""The `tokenizer` and `tokens` sections of pipelines.yaml."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tokenmill.config import Section, identity, numeric


class TokenizerSettings(Section):
    """Either `source` names an existing tokenizer, or one is trained once on the train side of the first snapshot."""

    source: str | None = identity(None)
    """A local folder, or a hub name with `revision`."""
    revision: str | None = identity(None)
    """Commit of the hub repository."""
    vocab_size: int = identity(8192, ge=300, le=1_000_000)
    """Of a tokenizer trained here (byte-level BPE)."""
    end_of_document: str | None = identity(None, min_length=1)
    """Token that ends every document; none means the tokenizer's own end of text."""


class TokensSettings(Section):
    sequence_length: int = identity(512, ge=8, le=65_535)
    """Tokens in a packed row."""
    packing: Literal["best_fit", "concat", "one_per_row"] = identity("best_fit")
    group_documents: int = identity(5_000, ge=1)
    """Mean number of documents in a group, the unit that is re-tokenised when one of its documents changes."""
    eval_fraction: float = identity(0.01, ge=0, lt=1)
    """Share of documents held out, chosen by hash."""
    processes: Annotated[int, Field(ge=1)] | Literal["auto"] = numeric("auto")
    """Worker processes of prepare; the bytes do not depend on it."""
