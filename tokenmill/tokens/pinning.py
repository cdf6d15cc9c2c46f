"""Which tokenizer a pipeline uses: the one in `pipelines/<name>/tokenizer.json`, else one made and pinned now."""

from __future__ import annotations

import hashlib
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
    pin = _read(workspace, pipeline)
    return load_tokenizer(workspace.tokenizer(pin["tokenizer"])) if pin.get("settings") == wanted else None


def pin(workspace: Workspace, pipeline: str, wanted: str, tokenizer: Tokenizer, source: str | None) -> None:
    """Remember the pipeline's tokenizer, and what its source folder held then."""
    content = {"settings": wanted, "tokenizer": tokenizer.fingerprint, "source": source_digest(source)}
    write_json(_path(workspace, pipeline), content | {"retrained": _read(workspace, pipeline).get("retrained", 0)})


def source_changed(workspace: Workspace, pipeline: str, source: str | None) -> bool:
    """Whether the folder that the pinned tokenizer came from holds something else by now."""
    pin = _read(workspace, pipeline)
    return "tokenizer" in pin and pin.get("source") != source_digest(source)


def what_was_asked_for(workspace: Workspace, pipeline: str) -> str | None:
    """Of the pinned tokenizer: its settings and how often it was made anew on demand. Another answer than last night's
    means that somebody wanted another tokenizer; the same answer with another tokenizer, that it was swapped.
    """
    pin = _read(workspace, pipeline)
    if "tokenizer" not in pin:
        return None
    times = pin.get("retrained", 0)
    return f"{pin['settings']}+{times}" if times else str(pin["settings"])


def source_digest(source: str | None) -> str | None:
    """Of the files of a tokenizer's folder; None where the tokenizer does not come from a folder."""
    folder = Path(source).expanduser() if source else None
    if folder is None or not folder.is_dir():
        return None
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def unpin(workspace: Workspace, pipeline: str) -> None:
    """The next prepare makes a tokenizer anew (`--retrain-tokenizer`)."""
    pin = _read(workspace, pipeline)
    if pin:
        write_json(_path(workspace, pipeline), {"retrained": pin.get("retrained", 0) + 1})


def _read(workspace: Workspace, pipeline: str) -> dict[str, Any]:
    path = _path(workspace, pipeline)
    return dict(read_json(path)) if path.exists() else {}


def _path(workspace: Workspace, pipeline: str) -> Path:
    return workspace.pipeline(pipeline) / "tokenizer.json"
