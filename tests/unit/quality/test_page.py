from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from tokenmill.quality.page import render
from tokenmill.quality.verdict import Finding, Offender, Verdict

SUMMARY: dict[str, Any] = {
    "snapshot": "5f2d8c0b9a1e4f37",
    "tokenizer": "a3b1c2d4e5f60718",
    "vocab_size": 4096,
    "sequence_length": 256,
    "documents": {"in": 702, "kept": 690, "duplicates": 11, "refused": 1, "train": 668, "eval": 22},
    "tokens": {"train": 3_456_789, "eval": 98_765},
    "bytes_per_token": 3.382,
    "unigram_entropy_nats": 6.241,
    "train_padding_pct": 0.41,
    "token_quartiles": {"p25": 812.0, "p50": 2411.0, "p75": 6120.0},
    "length_histogram": [0, 0, 0, 4, 6, 9, 14, 30, 62, 90, 120, 140, 110, 70, 26, 8, 1],
    "scripts_pct": {"LATIN": 98.6, "CJK": 1.1, "NONE": 0.3},
    "band_shares_pct": [31.2, 29.8, 27.4, 11.6],
    "reference_band_shares_pct": [30.9, 30.4, 27.0, 11.7],
    "sources": [
        {
            "source": "logs",
            "documents": 400,
            "tokens": 2_100_000,
            "token_share_pct": 61.0,
            "reference_token_share_pct": 2.0,
            "duplicates": 11,
            "refused": 0,
        },
        {
            "source": "web",
            "documents": 290,
            "tokens": 1_400_000,
            "token_share_pct": 39.0,
            "reference_token_share_pct": 98.0,
            "duplicates": 0,
            "refused": 1,
        },
    ],
}

VERDICT = Verdict(
    verdict="fail",
    snapshot="5f2d8c0b9a1e4f37",
    rules="9c4b7d1e02a3f586",
    reference="0011223344556677",
    findings=(
        Finding(
            rule="sums",
            origin="built-in",
            outcome="pass",
            expected="0",
            observed="0",
            sentence="The manifest, the records and the tables agree on every count.",
        ),
        Finding(
            rule="drift_source_mix",
            origin="drift",
            outcome="fail",
            expected="at most 20 points",
            observed="59 points",
            sentence="The mix of sources moved: 'logs' went from 2 % to 61 % of the tokens.",
            offenders=(Offender(source="logs", position="", observed="token_share_change_points 59 points"),),
            offender_count=2,
        ),
        Finding(
            rule="encoded_text",
            origin="built-in",
            outcome="warn",
            expected="at most 5 % of tokens in documents with class_change_pct above 35 %",
            observed="12.4 % of tokens, in 31 documents",
            sentence="12.4 % of the tokens are in 31 documents that look like base64, not text.",
            offenders=(
                Offender(
                    source="web",
                    position="2026-11/part-00017.jsonl.zst:48211",
                    observed="class_change_pct 64.8 %",
                    excerpt='<img src=x onerror=alert(1)> "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUl',
                ),
            ),
            offender_count=31,
        ),
        Finding(
            rule="unknown_tokens",
            origin="built-in",
            outcome="not_measured",
            expected="at most 1 %",
            observed="not measured",
            sentence="Not measured: the tokenizer has no unknown token.",
        ),
    ),
)

CLEAN = Verdict(verdict="pass", snapshot="s", rules="r", reference=None, findings=VERDICT.findings[:1])


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href"}]
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("verdict", [VERDICT, CLEAN])
def test_the_page_needs_no_network_and_no_script(verdict: Verdict) -> None:
    summary = SUMMARY
    if verdict.reference is None:
        sources = [source | {"reference_token_share_pct": None} for source in SUMMARY["sources"]]
        summary = SUMMARY | {"reference_band_shares_pct": None, "sources": sources}
    text = render(verdict, summary)
    page = Page(text)
    assert page.open == []
    assert page.links == ["data_docs/index.html"]
    assert page.tags.isdisjoint({"script", "link", "img"})
    assert "@import" not in text
    assert "url(" not in text


def test_the_page_says_what_was_found_and_escapes_the_corpus() -> None:
    text = render(VERDICT, SUMMARY)
    assert '<h1><span class="fail">Refused</span></h1>' in text
    assert text.index("drift_source_mix") < text.index("encoded_text") < text.index("sums")
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "3,456,789" in text
    assert "1 of 31 that violate it" in text


def test_the_page_is_the_same_every_time() -> None:
    assert render(VERDICT, SUMMARY) == render(VERDICT, SUMMARY)
