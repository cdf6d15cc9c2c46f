"""Which tokenizer a pipeline uses: the one in `pipelines/<name>/tokenizer.json`, else one made and pinned now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenmill.canonical import fingerprint
from tokenmill.config import Role, values_with_role
from tokenmill.tokens.settings import TokenizerSettings
from tokenmill.tokens.tokenizer import Tokenizer, load_tokenizer
from tokenmill.workspace import Workspace, read_json, write_json


def settings_fingerprint(settings: TokenizerSettings, *, special_tokens_are_text: bool) -> str:
    return fingerprint([values_with_role(settings, Role.IDENTITY), special_tokens_are_text])


def pinned_tokenizer(workspace: Workspace, pipeline: str, wanted: str) -> Tokenizer | None:
    """The pipeline's tokenizer, if one was pinned for the settings `wanted` (a `settings_fingerprint`)."""
    path = _path(workspace, pipeline)
    if not path.exists():
        return None
    pin: dict[str, Any] = read_json(path)
    return load_tokenizer(workspace.tokenizer(pin["tokenizer"])) if pin["settings"] == wanted else None


def pin(workspace: Workspace, pipeline: str, wanted: str, tokenizer: Tokenizer) -> None:
    write_json(_path(workspace, pipeline), {"settings": wanted, "tokenizer": tokenizer.fingerprint})


def unpin(workspace: Workspace, pipeline: str) -> None:
    """The next prepare makes a tokenizer anew (`--retrain-tokenizer`)."""
    _path(workspace, pipeline).unlink(missing_ok=True)


def _path(workspace: Workspace, pipeline: str) -> Path:
    return workspace.pipeline(pipeline) / "tokenizer.json"
