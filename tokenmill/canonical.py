"""Canonical JSON and fingerprints: the same value gives the same bytes on every machine.

>>> canonical_json({"b": 1, "a": [1.5, "ü"]})
b'{"a":[1.5,"\\xc3\\xbc"],"b":1}'
>>> fingerprint({"a": 1})
'015abd7f5cc57a2d'
"""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no spaces, UTF-8, NaN and infinities refused (``ValueError``)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def fingerprint(value: Any, *, length: int = 16) -> str:
    """The first `length` hex digits of the SHA-256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()[:length]
