from __future__ import annotations

import json
import re

import numpy as np
from small_mill import Mill, make_texts

from tokenmill.tokens.inspect import bars, render_page, token_counts
from tokenmill.tokens.tokenizer import load_tokenizer


def test_tokens_are_counted_once_each(mill: Mill) -> None:
    texts = make_texts(50)
    mill.write({f"{number}.txt": text for number, text in enumerate(texts)})
    snapshot = mill.open()
    tokenizer = load_tokenizer(snapshot.tokenizer_folder)
    expected = np.bincount(np.concatenate(tokenizer.encode_batch(texts)), minlength=tokenizer.vocab_size)
    expected[tokenizer.end_of_document] += len(texts)
    assert np.array_equal(token_counts(snapshot), expected)


def test_bars_are_powers_of_two() -> None:
    assert bars(np.array([4, 5, 7, 16, 1000])) == [
        ("4 – 7", 3, 1.0),
        ("8 – 15", 0, 0.0),
        ("16 – 31", 1, 1 / 3),
        ("32 – 63", 0, 0.0),
        ("64 – 127", 0, 0.0),
        ("128 – 255", 0, 0.0),
        ("256 – 511", 0, 0.0),
        ("512 – 1,023", 1, 1 / 3),
    ]
    assert bars(np.array([], np.int64)) == []


def test_the_page_is_self_contained_and_escapes_the_corpus(mill: Mill) -> None:
    lines = [json.dumps({"text": text}) for text in make_texts(60)]
    lines += [json.dumps({"text": "<script>alert(1)</script> " * 20}), '{"text": "<img src=x', json.dumps({"text": ""})]
    mill.write({"a.jsonl": "\n".join(lines)})
    page = render_page(mill.open())
    assert "<script" not in page
    assert "<img" not in page
    assert not re.search(r"(?:src|href)=|url\(|@import", page.replace("&lt;img src=x", ""))
    for words in ("broken_json", "Most frequent tokens", "Packed rows", "bytes per token", "a.jsonl, record 62"):
        assert words in page
    assert page.count('<div class="row">') == 12
