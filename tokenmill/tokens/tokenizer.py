"""A pinned tokenizer: `tokenizers/<fingerprint>/` with tokenizer.json (the truth) and tokenmill.json (how it is used).

`tokenizers` reads tokenizer.json and is the truth; `gigatoken` reads the same file and is the fast path, used where it
loads the file and agrees with the truth on a sample (`tokenmill.tokens.encode`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import orjson

from tokenmill.canonical import fingerprint
from tokenmill.errors import UserError
from tokenmill.workspace import publish_folder, write_json

if TYPE_CHECKING:
    import tokenizers

TRUTH = "tokenizer.json"
USE = "tokenmill.json"


@dataclass(frozen=True)
class TokenizerUse:
    """What tokenizer.json does not say."""

    end_of_document: int
    """Token that ends every document."""
    special_tokens_are_text: bool
    vocab_size: int
    """One more than the largest id."""
    unknown: int | None
    """Token for what the vocabulary cannot say, where there is one."""


class Tokenizer:
    """Encodes documents without adding special tokens; the truth that the fast path is held against."""

    def __init__(self, raw: bytes, use: TokenizerUse, tokenizer_fingerprint: str) -> None:
        self.raw = raw
        self.use = use
        self.fingerprint = tokenizer_fingerprint

    @property
    def vocab_size(self) -> int:
        return self.use.vocab_size

    @property
    def end_of_document(self) -> int:
        return self.use.end_of_document

    @cached_property
    def truth(self) -> tokenizers.Tokenizer:
        truth = parse_truth(self.raw)
        truth.encode_special_tokens = self.use.special_tokens_are_text
        return truth

    def encode_batch(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        """Token ids of each text, no end-of-document added."""
        encoded = self.truth.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(item.ids, np.int32) for item in encoded]

    def decode(self, ids: Sequence[int] | npt.NDArray[np.integer]) -> str:
        """The text of `ids`, special tokens shown."""
        return self.truth.decode([int(token) for token in ids], skip_special_tokens=False)

    @cached_property
    def special_texts(self) -> list[str]:
        """Texts that stand for special tokens."""
        added = parsed_json(self.raw).get("added_tokens") or []
        return [token["content"] for token in added if token.get("special")]

    def fast_json(self) -> bytes:
        """tokenizer.json for the fast path: where special tokens are text, it does not know them."""
        if not self.use.special_tokens_are_text:
            return self.raw
        parsed = parsed_json(self.raw)
        kept = [token for token in parsed.get("added_tokens") or [] if not token.get("special")]
        return orjson.dumps({**parsed, "added_tokens": kept})


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer pinned in `folder` (its name is the fingerprint). Raises `UserError` if it is not whole."""
    try:
        raw = (folder / TRUTH).read_bytes()
        use = TokenizerUse(**orjson.loads((folder / USE).read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"tokenizer '{folder.name}' cannot be read from {folder}: {error}") from None
    if _fingerprint(raw, use) != folder.name:
        raise UserError(f"tokenizer '{folder.name}' in {folder} is not the one it was pinned as; restore the folder")
    return Tokenizer(raw, use, folder.name)


def pin_tokenizer(folders: Path, raw: bytes, use: TokenizerUse, extra: dict[str, bytes] | None = None) -> Tokenizer:
    """Put a tokenizer into `folders`/<fingerprint>; `extra` files (tokenizer_config.json) lie beside the truth."""
    name = _fingerprint(raw, use)
    if not (folders / name).is_dir():
        with publish_folder(folders / name) as folder:
            for file, content in {**(extra or {}), TRUTH: raw}.items():
                (folder / file).write_bytes(content)
            write_json(folder / USE, vars(use))
    return Tokenizer(raw, use, name)


def _fingerprint(raw: bytes, use: TokenizerUse) -> str:
    return fingerprint([raw.decode(), vars(use)])


@lru_cache(maxsize=1)
def parsed_json(raw: bytes) -> dict[str, Any]:
    """A tokenizer.json (megabytes of it) as an object; not to be written to."""
    return dict(orjson.loads(raw))


def canonical_tokenizer_json(raw: bytes | str) -> bytes:
    """A tokenizer.json without padding and truncation, its keys in order."""
    parsed = orjson.loads(raw)
    return orjson.dumps({**parsed, "padding": None, "truncation": None}, option=orjson.OPT_SORT_KEYS)


def vocabulary(raw: bytes) -> dict[str, int]:
    """Every token and its id, special ones too."""
    parsed = parsed_json(raw)
    vocab = parsed["model"].get("vocab") or {}
    if isinstance(vocab, list):  # Unigram: [token, score] in the order of ids
        vocab = {token: number for number, (token, _) in enumerate(vocab)}
    return {**vocab, **{token["content"]: token["id"] for token in parsed.get("added_tokens") or []}}


def use_of(raw: bytes, end: str, *, special_tokens_are_text: bool, unknown: str | None) -> TokenizerUse:
    """How to use a tokenizer.json, documents ending with the token `end`. Raises `UserError` if there is none such."""
    tokens = vocabulary(raw)
    if end not in tokens:
        raise UserError(f"tokenizer.end_of_document: '{end}' is not a token of this tokenizer; name one that is")
    return TokenizerUse(
        end_of_document=tokens[end],
        special_tokens_are_text=special_tokens_are_text,
        vocab_size=max(tokens.values()) + 1,
        unknown=tokens.get(unknown) if unknown else None,
    )


@lru_cache(maxsize=2)
def parse_truth(raw: bytes) -> tokenizers.Tokenizer:
    """Raises whatever `tokenizers` raises for what is no tokenizer.json."""
    import tokenizers

    return tokenizers.Tokenizer.from_buffer(raw)


def fault_of(raw: bytes) -> str | None:
    """What is wrong with a tokenizer.json, or None."""
    try:
        parse_truth(raw)
    except Exception as error:
        return str(error)
    return None


def plain(value: Any) -> str | None:
    """The text of a special token in a tokenizer_config.json: a string, or an AddedToken as a mapping."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None
