"""Many documents to tokens: the fast path, held against the truth on a sample, and the fall-back that says so.

Every document ends with the end-of-document token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.tokens.tokenizer import Tokenizer

_BLOCK_BYTES = 2 << 20
"""Text encoded in one call: its padded matrix takes four times that."""
SAMPLE_DOCUMENTS = 24
_SAMPLE_BYTES = 1 << 13


@dataclass(frozen=True)
class Encoded:
    tokens: list[npt.NDArray[np.uint32]]
    """A document each, with its end-of-document token."""
    note: str = ""
    """Why the fast path was not used, where it was not."""


class Encoder:
    """One tokenizer's encoder in one process."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._fast: Any = None
        self._note = ""
        try:
            from gigatoken.gigatoken_rs import load_hf_json

            self._fast = load_hf_json(tokenizer.fast_json())
        except BaseException as error:
            # A Rust panic is a BaseException; whatever it is, the truth can still do the work.
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            self._note = f"gigatoken cannot load this tokenizer ({reason}); encoded with tokenizers, which is slower"

    def encode(self, texts: list[bytes], characters: npt.NDArray[np.integer]) -> Encoded:
        """Encode documents of UTF-8 `texts` with known `characters`; checks a sample, falls back for all of them."""
        if self._fast is None:
            return self._encode_truth(texts, self._note)
        try:
            encoded = self._encode_fast(texts)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            return self._encode_truth(texts, f"gigatoken failed ({error}); encoded with tokenizers, which is slower")
        wrong = self._first_mismatch(texts, characters, encoded)
        if wrong is None:
            return encoded
        text = texts[wrong].decode()[:40]
        note = f"gigatoken and tokenizers differ on {text!r}; encoded with tokenizers, which is slower"
        return self._encode_truth(texts, note)

    def _encode_fast(self, texts: list[bytes]) -> Encoded:
        """In blocks of documents of like length: the fast path answers with a padded matrix, which stays small so."""
        from gigatoken.gigatoken_rs import PadTruncate

        options = PadTruncate(pad_id=0, suffix=[self._tokenizer.end_of_document])
        bytes_D = np.fromiter(map(len, texts), np.int64, len(texts))
        order = np.argsort(bytes_D, kind="stable")
        tokens: list[Any] = [None] * len(texts)
        done = 0
        while done < len(order):
            # The longest of a block decides its matrix's width; keep it within twice the shortest, or 64 bytes.
            shortest = int(bytes_D[order[done]])
            block = order[done : done + max(1, _BLOCK_BYTES // (shortest + 1))]
            block = block[: max(1, int(np.searchsorted(bytes_D[block], max(2 * shortest, 64), side="right")))].tolist()
            ids, lengths = self._fast.encode_batch_padded([texts[d] for d in block], options, parallel=False)
            for d, row, length in zip(block, ids, lengths.tolist(), strict=True):
                tokens[d] = row[:length]
            done += len(block)
        return Encoded(tokens)

    def _encode_truth(self, texts: list[bytes], note: str) -> Encoded:
        end = self._tokenizer.end_of_document
        tokens: list[npt.NDArray[np.uint32]] = []
        for at in range(0, len(texts), 256):
            batch = self._tokenizer.encode_batch([text.decode() for text in texts[at : at + 256]])
            tokens += [np.append(ids, end).astype(np.uint32) for ids in batch]
        return Encoded(tokens, note)

    def _first_mismatch(self, texts: list[bytes], characters: npt.NDArray[np.integer], encoded: Encoded) -> int | None:
        """A document of the sample that the truth encodes otherwise. Rare scripts and special tokens come first."""
        sample = choose_sample(texts, characters, self._tokenizer.special_texts)
        cut = [texts[d] if len(texts[d]) <= _SAMPLE_BYTES else None for d in sample]
        chosen = [d for d, text in zip(sample, cut, strict=True) if text is not None]
        for d, ids in zip(chosen, self._tokenizer.encode_batch([texts[d].decode() for d in chosen]), strict=True):
            if not np.array_equal(encoded.tokens[d][:-1], ids):
                return int(d)
        return None


def choose_sample(texts: list[bytes], characters: npt.NDArray[np.integer], special_texts: list[str]) -> list[int]:
    """Numbers of `SAMPLE_DOCUMENTS` documents: those with special tokens' text, those with most bytes a character
    (rare scripts), and others spread evenly. Long documents are left to their neighbours: the check must stay cheap."""
    count = len(texts)
    if count <= SAMPLE_DOCUMENTS:
        return list(range(count))
    bytes_D = np.fromiter(map(len, texts), np.int64, count)
    density = np.where(bytes_D <= _SAMPLE_BYTES, bytes_D / np.maximum(characters, 1), 0.0)
    rare = np.argpartition(-density, SAMPLE_DOCUMENTS // 2)[: SAMPLE_DOCUMENTS // 2].tolist()
    needles = [text.encode() for text in special_texts if len(text) > 2]
    whole = b"\0".join(texts) if needles else b""
    needles = [needle for needle in needles if needle in whole]  # seldom any: then no document need be looked at
    special = [d for d, text in enumerate(texts) if needles and any(needle in text for needle in needles)]
    even = np.linspace(0, count - 1, SAMPLE_DOCUMENTS // 2).astype(int).tolist()
    return list(dict.fromkeys([*special[: SAMPLE_DOCUMENTS // 4], *rare, *even]))[:SAMPLE_DOCUMENTS]
