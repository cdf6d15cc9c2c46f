"""Any tokenizer that `transformers` can load, as a tokenizer.json: a folder, or a hub name at a pinned revision.

A folder that has a tokenizer.json is taken as it is; vocab.json + merges.txt, SentencePiece models and WordPiece
vocabularies are converted by `transformers`. Where no config says which of its tokenizers they are meant for, the
files do: vocab.json + merges.txt are GPT-2's byte-level BPE, vocab.txt is BERT's WordPiece, a lone *.model is
SentencePiece as its own library encodes it. Code of a repository is never run (`trust_remote_code` stays off).
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tokenmill.errors import UserError
from tokenmill.tokens.settings import TokenizerSettings
from tokenmill.tokens.tokenizer import TRUTH, canonical_tokenizer_json, parsed_json, plain, vocabulary

_CONFIG = "tokenizer_config.json"
_COMMON_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")


@dataclass(frozen=True)
class Converted:
    raw: bytes
    """tokenizer.json, canonical."""
    end_of_document: str
    unknown: str | None
    extra: dict[str, bytes]
    """Files to keep beside tokenizer.json."""


def convert(settings: TokenizerSettings) -> Converted:
    """Raises `UserError` when the source is missing, unpinned, or no tokenizer."""
    source = settings.source
    assert source is not None
    folder = Path(source).expanduser()
    if folder.is_dir():
        return _from_folder(folder, settings)
    if source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise UserError(f"tokenizer.source: '{source}' is not a folder; name a folder or a hub name with a revision")
    if settings.revision is None or not re.fullmatch(r"[0-9a-f]{40}", settings.revision):
        raise UserError(
            f"tokenizer.revision: got {settings.revision!r}; pin the hub name '{source}' to a commit (40 hex digits)"
        )
    return _with_transformers(source, settings)


def _from_folder(folder: Path, settings: TokenizerSettings) -> Converted:
    if not (folder / TRUTH).exists():
        if (folder / _CONFIG).exists() or (folder / "config.json").exists():
            return _with_transformers(str(folder), settings)
        return _from_bare_files(folder, settings)
    try:
        raw = canonical_tokenizer_json((folder / TRUTH).read_bytes())
        tokens = vocabulary(raw)
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise UserError(f"tokenizer.source: {folder / TRUTH} is no tokenizer.json: {error}") from None
    path = folder / _CONFIG
    try:
        config: dict[str, Any] = orjson.loads(path.read_bytes()) if path.exists() else {}
    except ValueError:
        raise UserError(f"tokenizer.source: {path} is not valid JSON") from None
    ends = [settings.end_of_document, plain(config.get("eos_token")), plain(config.get("sep_token"))]
    unknown = plain(config.get("unk_token")) or plain(parsed_json(raw)["model"].get("unk_token"))
    extra = {_CONFIG: path.read_bytes()} if path.exists() else {}
    return Converted(raw, _end(tokens, ends, settings), unknown, extra)


def _from_bare_files(folder: Path, settings: TokenizerSettings) -> Converted:
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        return _with_transformers(str(folder), settings, "GPT2Tokenizer")
    if (folder / "vocab.txt").exists():
        return _with_transformers(str(folder), settings, "BertTokenizer")
    models = list(folder.glob("*.model"))
    if len(models) != 1:
        raise UserError(
            f"tokenizer.source: '{folder}' holds no tokenizer; it needs tokenizer.json, vocab.json and merges.txt, "
            "vocab.txt, or one SentencePiece *.model"
        )
    with tempfile.TemporaryDirectory() as beside:
        shutil.copy(models[0], Path(beside) / "tokenizer.model")  # the name under which transformers looks for it
        return _with_transformers(beside, settings)


def _with_transformers(source: str, settings: TokenizerSettings, kind: str = "AutoTokenizer") -> Converted:
    """`kind`: the class of `transformers` that reads `source`."""
    import transformers

    try:
        loaded = getattr(transformers, kind).from_pretrained(
            source, revision=settings.revision or "main", trust_remote_code=False, use_fast=True
        )
        raw = canonical_tokenizer_json(loaded.backend_tokenizer.to_str())
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"tokenizer.source: '{settings.source}' cannot be loaded: {reason}") from None
    ends = [settings.end_of_document, loaded.eos_token, loaded.sep_token]
    return Converted(raw, _end(vocabulary(raw), ends, settings), loaded.unk_token, {})


def _end(tokens: dict[str, int], candidates: list[str | None], settings: TokenizerSettings) -> str:
    if settings.end_of_document is not None:
        return settings.end_of_document
    for candidate in [*candidates, *_COMMON_ENDS]:
        if candidate and candidate in tokens:
            return candidate
    raise UserError(
        "tokenizer.end_of_document: this tokenizer names no end-of-text token; name the token that ends a document"
    )
