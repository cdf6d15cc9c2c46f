"""The `corpus` section of pipelines.yaml."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from tokenmill.config import Section, identity, operational


class SourceSettings(Section):
    """One source of documents: the files under a root that match its globs."""

    name: str = identity(pattern=r"^[a-z0-9][a-z0-9_.-]*$")
    """How reports call the source; unique in the pipeline."""
    root: str = operational(min_length=1)
    """Folder or URL that holds the files; `${python:stdlib}` and `${env:NAME}` are resolved at load."""
    include: tuple[str, ...] = identity(("**/*",), min_length=1)
    """Globs under `root`; `**` crosses folders."""
    exclude: tuple[str, ...] = identity(())
    """Globs under `root` to leave out."""
    format: Literal["auto", "text", "jsonl", "csv", "parquet", "arrow"] = identity("auto")
    """How a file holds documents; `auto` goes by the file's extension."""
    encoding: str = identity("utf-8")
    """Of text, JSON Lines and CSV files."""
    separator: str | None = identity(None)
    """For `text`: the string between two documents in a file; none means a file a document."""
    text_column: str = identity("text")
    id_column: str | None = identity(None)
    """A stable document id; with one, train and eval are split by id, else by content hash."""
    where: dict[str, str | int | float | bool] = identity({})
    """Keep only records whose columns have these values."""
    weight: float = identity(1.0, gt=0)
    """Times that the source's documents are repeated in the mixture (2.5: twice, and half of them once more)."""


class CorpusSettings(Section):
    sources: tuple[SourceSettings, ...] = Field(min_length=1)
    limit_documents: int | None = identity(None, ge=1)
    """Stop after this many documents in canonical order, to try things out."""
    max_document_bytes: int = identity(50_000_000, ge=1, le=2**32 - 1)
    """A larger document is refused."""
    max_refused_pct: float = operational(5.0, ge=0, le=100)
    """Over this share of refused documents prepare fails."""
    special_tokens_are_text: bool = identity(True)
    """Whether a special token's text in a document is ordinary text."""

    @field_validator("sources")
    @classmethod
    def _names_differ(cls, sources: tuple[SourceSettings, ...]) -> tuple[SourceSettings, ...]:
        names = [source.name for source in sources]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two sources are named '{twice}'; give each its own name")
        return sources
