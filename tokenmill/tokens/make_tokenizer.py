"""Making a pinned tokenizer: trained on documents here, or taken from a folder or a hub name."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokenmill.errors import UserError
from tokenmill.tokens.settings import TokenizerSettings
from tokenmill.tokens.tokenizer import Tokenizer, canonical_tokenizer_json, fault_of, pin_tokenizer, use_of

END_OF_DOCUMENT = "<|endoftext|>"
TRAINING_TEXT_BYTES = 32 << 20
"""About 9 seconds of training on two cores, 300 MB of memory."""


class TrainingSample:
    """Keeps the documents with the smallest digests, up to `limit_bytes` of text.

    A fair sample of the corpus that does not depend on the order, the files or the number of processes, and to which a
    duplicate adds nothing.
    """

    def __init__(self, limit_bytes: int = TRAINING_TEXT_BYTES) -> None:
        self._limit = limit_bytes
        self._heap: list[tuple[int, bytes]] = []  # (negative digest, text): the largest digest on top
        self._kept: set[int] = set()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._heap)

    def may_enter(self, digests: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        """Which documents could still enter: a quick look, by the first 64 bits."""
        if self._bytes < self._limit:
            return np.ones(len(digests), np.bool_)
        first = np.ascontiguousarray(digests).view(">u8").reshape(-1, 2)[:, 0]
        return first <= np.uint64(-self._heap[0][0] >> 64)

    def add(self, digest: bytes, text: bytes) -> None:
        number = int.from_bytes(digest, "big")
        if number in self._kept or (self._bytes >= self._limit and number > -self._heap[0][0]):
            return
        heapq.heappush(self._heap, (-number, text))
        self._kept.add(number)
        self._bytes += len(text)
        while self._bytes - len(self._heap[0][1]) >= self._limit:
            dropped, out = heapq.heappop(self._heap)
            self._kept.remove(-dropped)
            self._bytes -= len(out)

    def texts(self) -> list[bytes]:
        """In the order of digests."""
        return [text for _, text in sorted(self._heap, reverse=True)]


def pin_trained(
    folders: Path, texts: Iterable[bytes], settings: TokenizerSettings, *, special_tokens_are_text: bool
) -> Tokenizer:
    """A byte-level BPE of at most `vocab_size` tokens; the same `texts` give the same tokenizer.json."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    end = settings.end_of_document or END_OF_DOCUMENT
    truth = tokenizers.Tokenizer(models.BPE())
    truth.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    truth.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size,
        special_tokens=[end],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    truth.train_from_iterator((text.decode() for text in texts), trainer)
    raw = canonical_tokenizer_json(truth.to_str())
    use = use_of(raw, end, special_tokens_are_text=special_tokens_are_text, unknown=None)
    config = b'{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "%s"}\n' % end.encode()
    return pin_tokenizer(folders, raw, use, {"tokenizer_config.json": config})


def import_tokenizer(folders: Path, settings: TokenizerSettings, *, special_tokens_are_text: bool) -> Tokenizer:
    """Convert `settings.source` to a pinned tokenizer.json. Raises `UserError`."""
    from tokenmill.tokens.import_tokenizer import convert

    assert settings.source is not None
    found = convert(settings)
    use = use_of(
        found.raw,
        found.end_of_document,
        special_tokens_are_text=special_tokens_are_text,
        unknown=found.unknown,
    )
    if (reason := fault_of(found.raw)) is not None:
        raise UserError(f"tokenizer.source: '{settings.source}' is no tokenizer.json: {reason}")
    return pin_tokenizer(folders, found.raw, use, found.extra)
