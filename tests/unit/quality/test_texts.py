from __future__ import annotations

import base64
import hashlib
import inspect
import math

import pytest

from tokenmill.quality.texts import class_change_pcts, excerpt, scripts


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Once upon a time", "LATIN"),
        ("Größe, señor, œuvre", "LATIN"),
        ("从前有一座山", "CJK"),
        ("𠮷野家𠮷", "CJK"),
        ("ls 列出目录的内容, directory", "CJK"),
        ("Жили-были дед да баба", "CYRILLIC"),
        ("昔々あるところにおじいさんがいました", "HIRAGANA"),
        ("كان يا ما كان", "ARABIC"),
        ("12 + 34 = 46 !?", "NONE"),
        ("", "NONE"),
        ("\ud800 lone surrogate", "LATIN"),
    ],
)
def test_script_of_a_text(text: str, script: str) -> None:
    assert scripts([text]) == [script]


def test_encoded_data_stands_apart_from_text() -> None:
    noise = b"".join(hashlib.sha256(bytes([i])).digest() for i in range(40))
    encoded, dump = base64.b64encode(noise).decode(), noise.hex()
    prose = (
        "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of Foolishness."
    )
    code = inspect.getsource(hashlib)
    camel = "getElementById setAttribute HTMLInputElement addEventListener parseInt toUpperCase fromCharCode URI3 " * 2
    in_base64, in_hex, in_prose, in_code, in_camel = class_change_pcts([encoded, dump, prose, code, camel])
    assert in_base64 > 55
    assert in_hex > 40
    assert max(in_prose, in_code) < 15
    assert in_camel < 35


def test_a_short_text_says_nothing() -> None:
    assert math.isnan(class_change_pcts(["a1b2C3"])[0])
    assert class_change_pcts([]).shape == (0,)


def test_excerpts_are_short_and_printable() -> None:
    assert excerpt("line\nbell\x07\u202e end") == "line\\nbell\\x07\\u202e end"
    assert excerpt("x" * 200, 10) == "x" * 10 + "…"
