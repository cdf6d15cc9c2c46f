"""What a run trains on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tokenmill.training.batches import RowOrder, RowSource


class Tokenizer(Protocol):
    def encode_batch(self, texts: list[str]) -> list[Any]: ...

    def decode(self, ids: Any) -> str: ...

    @property
    def end_of_document(self) -> int: ...


@dataclass(frozen=True)
class Data:
    """`train_tokens` are the non-padding ones of the train split."""

    source: RowSource
    order: RowOrder
    train_rows: int
    train_tokens: int
    eval_rows: int
    vocab_size: int
    sequence_length: int
    tokenizer: Tokenizer
    tokenizer_folder: Path | None = None

    def text_bytes(self, ids: np.ndarray) -> int:
        """UTF-8 bytes of the text that a run of token ids stands for."""
        end = self.tokenizer.end_of_document
        return len(self.tokenizer.decode([int(token) for token in ids if token != end]).encode())
