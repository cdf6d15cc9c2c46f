"""How to read a source's files: plain data, so that a worker process needs no settings models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenmill.corpus.settings import SourceSettings


@dataclass(frozen=True)
class ReadOptions:
    """See `tokenmill.corpus.settings.SourceSettings` for what each means."""

    format: str = "auto"
    encoding: str = "utf-8"
    separator: str | None = None
    text_column: str = "text"
    id_column: str | None = None
    where: dict[str, str | int | float | bool] = field(default_factory=dict)
    max_document_bytes: int = 50_000_000

    @classmethod
    def of(cls, source: SourceSettings, max_document_bytes: int) -> ReadOptions:
        return cls(
            source.format,
            source.encoding,
            source.separator,
            source.text_column,
            source.id_column,
            dict(source.where),
            max_document_bytes,
        )
