"""Each rule catches the corpus that it was made for, in words that a person understands; honest nights pass."""

from __future__ import annotations

import base64
import hashlib
import re
import string
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.unit.quality.nights import (
    CYRILLIC,
    ENGLISH,
    HONEST,
    OTHER_LATIN,
    Language,
    Nights,
    finding,
    violated,
)
from tokenmill.quality import contamination
from tokenmill.quality.reference import read_last_good

Corpus = dict[str, Sequence[Any]]
WEB, NOTES = HONEST["web"], HONEST["notes"]


def noise(number: int) -> str:
    raw = b"".join(hashlib.sha256(f"{number}/{part}".encode()).digest() for part in range(12))
    return base64.b64encode(raw).decode()


def shout(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]


def near_copies(texts: list[str]) -> list[str]:
    """Each document once more, under another headline."""
    return [f"Copy number {number}. {text}" for number, text in enumerate(texts)]


BROKEN: dict[str, tuple[Callable[[], Corpus], str, str]] = {
    "a night of base64": (
        lambda: {"web": [noise(n) for n in range(300)], "notes": NOTES},
        "encoded_text",
        r"\d+(\.\d+)? % of the tokens are in 300 documents that look like base64",
    ),
    "a source duplicated a thousand times": (
        lambda: {"web": WEB, "notes": NOTES + [NOTES[0]] * 1000},
        "source_duplicates",
        r"89.3 % of the documents of source 'notes' are exact copies",
    ),
    "a corpus of copies": (
        lambda: {"web": WEB * 4, "notes": NOTES * 4},
        "duplicates",
        r"75 % of the documents are exact copies",
    ),
    "lines that are no JSON": (
        lambda: {"web": [*WEB, *[b"{broken"] * 60], "notes": NOTES},
        "refusals",
        r"12.5 % of the documents were refused",
    ),
    "a source of empty texts": (
        lambda: {"web": WEB, "notes": [*NOTES[:60], *[""] * 60]},
        "source_refusals",
        r"50 % of the documents of source 'notes' were refused",
    ),
    "another language in the same script": (
        lambda: {"web": Language(OTHER_LATIN, seed=3).documents(300, seed=1), "notes": NOTES},
        "drift_token_distribution",
        r"Jensen-Shannon divergence of 0\.\d+",
    ),
    "rare tokens everywhere": (
        lambda: {"web": Language(OTHER_LATIN, seed=3).documents(300, seed=1), "notes": NOTES},
        "drift_frequency_bands",
        r"went from \d+(\.\d+)? % to \d+(\.\d+)? %",
    ),
    "another script": (
        lambda: {"web": Language(CYRILLIC, seed=3).documents(300, seed=1), "notes": NOTES},
        "drift_scripts",
        r"CYRILLIC went from 0 % to 71.4 % of the documents",
    ),
    "a tokenizer that does not know the text": (
        lambda: {"web": shout(WEB), "notes": shout(NOTES)},
        "drift_bytes_per_token",
        r"Bytes per token moved by \d+(\.\d+)? %.*from 4\.\d+ to \d\.\d+",
    ),
    "a half-empty source": (
        lambda: {"web": WEB, "notes": NOTES[:50]},
        "drift_source_size",
        r"Source 'notes' holds \d+(\.\d+)? % of the tokens that it had",
    ),
    "a source that takes over": (
        lambda: {"web": WEB, "notes": NOTES + ENGLISH.documents(700, seed=9)},
        "drift_source_mix",
        r"'notes' went from 2\d(\.\d+)? % to 7\d(\.\d+)? %",
    ),
    "documents cut into pieces": (
        lambda: {
            name: [text[n : n + 60] for text in texts for n in range(0, len(text), 60)]
            for name, texts in HONEST.items()
        },
        "drift_document_lengths",
        r"documents had at most \d+ tokens, and have at most \d+ now",
    ),
    "documents of a letter": (
        lambda: {"web": [*WEB, *string.ascii_letters, *string.digits], "notes": NOTES},
        "document_lengths",
        r"documents \(\d+\) are odd in length",
    ),
    "a stuck key": (
        lambda: {"web": [*WEB, *[" the" * n for n in range(2000, 2020)]], "notes": NOTES},
        "repeated_tokens",
        r"repeat one token over and over",
    ),
    "near copies of everything": (
        lambda: {"web": WEB, "notes": [*NOTES, *near_copies(WEB + NOTES)]},
        "eval_contamination",
        r"of the eval documents \(\d+\) are near copies of train documents",
    ),
    "a source that holds nothing of its own": (
        lambda: {"web": WEB, "notes": NOTES, "notes.copy": NOTES},
        "sources_present",
        r"Source 'notes.copy' has no document in this snapshot \(120 came in, 120 of them exact copies",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_corpus_is_caught_by_the_rule_meant_for_it(name: str, nights: Nights) -> None:
    make, rule, sentence = BROKEN[name]
    before = read_last_good(nights.workspace, "test")
    found = nights.night(make())
    assert rule in violated(found)
    assert re.search(sentence, violated(found)[rule])
    assert any(text.startswith(violated(found)[rule][:40]) for text in found.verdict.sentences())
    assert (read_last_good(nights.workspace, "test") == before) == (found.verdict.verdict == "fail")
    assert (nights.workspace.root / found.folder / "report.html").exists()


def test_honest_nights_pass(nights: Nights) -> None:
    """Documents come, go and change; a tenth of each source."""
    second = nights.night(
        {
            name: [*texts[len(texts) // 10 :], *ENGLISH.documents(len(texts) // 9, seed=40)]
            for name, texts in HONEST.items()
        }
    )
    assert violated(second) == {}
    assert second.verdict.reference is not None
    assert [f.rule for f in second.verdict.findings if f.outcome == "not_measured"] == ["unknown_tokens"]
    third = nights.night({name: [*texts, *ENGLISH.documents(40, seed=41)] for name, texts in HONEST.items()})
    assert violated(third) == {}
    assert third.verdict.reference == second.verdict.snapshot


def test_offenders_are_named_with_place_and_text(nights: Nights) -> None:
    found = finding(nights.night({"web": [*WEB, *[noise(n) for n in range(200)]], "notes": NOTES}), "encoded_text")
    assert found.offender_count == 200
    assert len(found.offenders) == 10
    first = found.offenders[0]
    assert (first.source, first.position.split(":")[0]) == ("web", "part.jsonl")
    line = int(first.position.split(":")[1])
    text = noise(line - 1 - len(WEB))
    assert first.document == hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    assert text.startswith(first.excerpt.rstrip("…"))
    assert len(first.excerpt) > 20


def test_refused_records_are_offenders_with_their_reason(nights: Nights) -> None:
    found = finding(nights.night({"web": [*WEB, *[b"{<b>broken"] * 60], "notes": NOTES}), "refusals")
    assert found.offender_count == 60
    assert found.offenders[0].position == f"part.jsonl:{len(WEB) + 1}"
    assert found.offenders[0].observed == "broken_json"
    assert found.offenders[0].excerpt == "{<b>broken"


def test_a_first_night_has_nothing_to_drift_from(one_good_night: Nights) -> None:
    last = read_last_good(one_good_night.workspace, "test")
    assert last is not None
    found = one_good_night.validate(last.snapshot)
    drift = [f for f in found.verdict.findings if f.origin == "drift"]
    assert {f.outcome for f in drift} == {"not_measured"}
    assert found.verdict.reference is None
    assert "no last good snapshot" in drift[0].sentence


def test_a_verdict_on_a_part_of_the_eval_split_says_so(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contamination, "BUDGET_TOKENS", 500)
    found = finding(nights.night({"web": [*WEB, "One more document."], "notes": NOTES}), "eval_contamination")
    assert found.outcome == "pass"
    looked_at, all_tokens = re.search(r"\(([\d,]+) of ([\d,]+) eval tokens looked at\)", found.sentence).groups()  # type: ignore[union-attr]
    assert int(looked_at.replace(",", "")) < int(all_tokens.replace(",", ""))
