"""What the beginning of a document's text tells: its script, and whether it is text at all.

The script is a guess from the first word of the letters' Unicode names (LATIN, CJK, CYRILLIC, ...): the standard
library knows no Script property, and for "is this the language that it was yesterday" the names do as well.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

NO_SCRIPT = "NONE"
"""Of a text without letters."""
MIN_PAIRS = 40
"""Fewer pairs of letters and digits than this say nothing about encoding."""

_BMP = 0x10000
_UPPER, _LOWER, _DIGIT = 1, 2, 3


@cache
def _tables() -> tuple[NDArray[np.uint8], list[str]]:
    """For each code point of the Basic Multilingual Plane, the number of its script; and the scripts' names.

    Letters beyond are ideographs nearly always, and count as CJK.
    """
    names = [NO_SCRIPT]
    numbers: dict[str, int] = {}
    table = np.zeros(_BMP + 1, np.uint8)
    for code in range(_BMP):
        if not chr(code).isalpha():
            continue
        script = unicodedata.name(chr(code), "UNNAMED").split(maxsplit=1)[0].split("-")[0]
        if script not in numbers:
            # 255 is shared by the rarest scripts' names, should a future Unicode have that many.
            numbers[script] = min(len(names), 255)
            names[numbers[script] :] = [script]
        table[code] = numbers[script]
    table[_BMP] = numbers["CJK"]
    return table, names


def scripts(texts: Sequence[str]) -> list[str]:
    """The script of most of each text's letters, by their bytes in UTF-8; `NONE` where it has no letter.

    An ideograph says as much as some letters: Chinese prose about a command has more Latin letters than others.
    """
    table, names = _tables()
    found = []
    for text in texts:
        codes = np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32)
        sizes = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= _BMP)
        counts = np.bincount(table[np.minimum(codes, _BMP)], weights=sizes, minlength=2)
        best = int(counts[1:].argmax()) + 1
        found.append(names[best] if counts[best] else NO_SCRIPT)
    return found


def class_change_pcts(texts: Sequence[str]) -> NDArray[np.float64]:
    """float64[D]: of the pairs of adjacent ASCII letters and digits, the share (percent) whose two differ in class
    (upper case, lower case, digit); NaN for a text with fewer than `MIN_PAIRS` pairs.

    Independent draws from base64's alphabet give 65 (1 - (26/64)² - (26/64)² - (10/64)² over 62), from hexadecimal
    digits 47; prose and source code lie below 15.
    """
    classes = np.zeros(256, np.uint8)
    classes[ord("A") : ord("Z") + 1] = _UPPER
    classes[ord("a") : ord("z") + 1] = _LOWER
    classes[ord("0") : ord("9") + 1] = _DIGIT
    found = np.full(len(texts), np.nan)
    for index, text in enumerate(texts):
        kinds = classes[np.frombuffer(text.encode("utf-8", "replace"), np.uint8)]
        both = (kinds[1:] > 0) & (kinds[:-1] > 0)
        pairs = int(both.sum())
        if pairs >= MIN_PAIRS:
            found[index] = 100.0 * float((both & (kinds[1:] != kinds[:-1])).sum()) / pairs
    return found


def excerpt(text: str, length: int = 120) -> str:
    """The first `length` characters, with control and other unprintable characters escaped, on one line."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:length])
    return shown + ("…" if len(text) > length else "")
