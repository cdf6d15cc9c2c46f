"""Decodes a sample of documents and compares them with the content hash that prepare took of their text.

It holds tokenizer, packing and tables against the corpus at once, with nothing of the corpus but its hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tokenmill.tokens.tokenizer import Tokenizer

SAMPLED_DOCUMENTS = 128
MAX_DOCUMENT_TOKENS = 200_000
"""A longer document is not sampled: decoding it would take seconds."""
PROBE = "  Ein Ärger:\tIs it\r\n\n\nlossless?  naïve 北京 🙂 \u00a0end\n"


class RoundTrip:
    """Feed it documents; it picks some of each shard."""

    def __init__(self, tokenizer: Tokenizer, shards: int) -> None:
        self._tokenizer = tokenizer
        self._per_shard = -(-SAMPLED_DOCUMENTS // max(1, shards))
        self.lossless = tokenizer.decode(tokenizer.encode_batch([PROBE])[0]) == PROBE
        """Whether the tokenizer keeps all of a text. One that lower-cases cannot be checked like this."""
        self.checked = 0
        self.failures: list[str] = []
        """Digests of documents that do not come back, hexadecimal."""

    def choose(self, digests: Iterable[bytes], lengths_D: NDArray[np.int64]) -> set[int]:
        """Which documents of a shard to check: those of the smallest digests, as good as drawn by lot."""
        if not self.lossless:
            return set()
        ranked = sorted(
            (digest, index) for index, digest in enumerate(digests) if lengths_D[index] <= MAX_DOCUMENT_TOKENS
        )
        return {index for _, index in ranked[: self._per_shard]}

    def check(self, tokens: NDArray[np.int32], digest: bytes) -> None:
        """`tokens` are one document's, with the end-of-document token."""
        self.checked += 1
        ended = len(tokens) > 0 and int(tokens[-1]) == self._tokenizer.end_of_document
        try:
            text = self._tokenizer.decode(tokens[:-1]).encode("utf-8", "surrogatepass")
        except (OverflowError, TypeError):
            text = b""  # an id that no tokenizer has
        # The format's content hash, taken anew: BLAKE2b-128 of the text in UTF-8.
        if not ended or hashlib.blake2b(text, digest_size=16).digest() != digest:
            self.failures.append(digest.hex())
