"""The `checks` section of pipelines.yaml."""

from __future__ import annotations

from typing import Literal

from tokenmill.config import Section, operational


class ChecksSettings(Section):
    on_fail: Literal["stop", "train_on_last_good"] = operational("stop")
    """What a failed verdict leads to: exit code 2, or training on the last good snapshot, said loudly."""
    suite: str | None = operational(None)
    """Your own Great Expectations suite: a JSON file, or a Python file with a function `suite()`."""
    max_unknown_token_pct: float = operational(1.0, ge=0, le=100)
    min_bytes_per_token: float = operational(1.2, gt=0)
    max_bytes_per_token: float = operational(8.0, gt=0)
    max_duplicate_pct: float = operational(50.0, ge=0, le=100)
    max_refused_pct: float = operational(5.0, ge=0, le=100)
    max_padding_pct: float = operational(20.0, ge=0, le=100)
