"""From what was measured, shard by shard, to a finding: no Great Expectations needed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tokenmill.quality.rules import Rule, built_in_rules, number
from tokenmill.quality.settings import DRIFT_RULES, RULES, ChecksSettings
from tokenmill.quality.tables import COLUMNS
from tokenmill.quality.tally import Measurement, Tally, judge

LENGTHS: dict[str, Any] = {
    "name": "document_lengths",
    "table": "documents",
    "column": "tokens",
    "minimum": 3,
    "tolerated_pct": 25.0,
    "good": "{share} are odd.",
    "bad": "{share} ({violators}) are odd.",
}


def documents(*tokens: int | None) -> pa.Table:
    names = [f"{index:02d}" for index in range(len(tokens))]
    return pa.table(
        {
            "document": names,
            "source": ["web"] * len(tokens),
            "position": [f"file.txt:{name}" for name in names],
            "tokens": pa.array(tokens, pa.int64()),
        }
    )


def tally_of(rule: Rule, *shards: pa.Table) -> Tally:
    tally = Tally(rule.table, rule.column)
    for shard in shards:
        values = shard[rule.column].to_pylist()
        low = rule.minimum if rule.minimum is not None else float("-inf")
        high = rule.maximum if rule.maximum is not None else float("inf")
        tally.add(
            shard,
            Measurement([i for i, value in enumerate(values) if value is not None and not low <= value <= high]),
        )
    return tally


def test_violators_are_added_up_over_shards_before_they_are_judged() -> None:
    rule = Rule(**LENGTHS)
    # The second shard alone is over 25 %; both together are not.
    fine = judge(rule, tally_of(rule, documents(5, 5, 5, 5), documents(1, 5, 2)))
    assert fine.outcome == "fail"
    assert fine.sentence == "28.6 % (2) are odd."
    assert judge(rule, tally_of(rule, documents(5, 5, 5, 5, 5), documents(1, 5, 2))).outcome == "pass"


def test_a_share_of_tokens_weighs_long_documents() -> None:
    rule = Rule(**LENGTHS | {"minimum": None, "maximum": 50, "tolerated_of": "tokens"})
    found = judge(rule, tally_of(rule, documents(10, 10, 10, 100)))
    assert found.outcome == "fail"
    assert found.observed == "76.9 % of tokens, in 1 documents"
    assert found.expected == "at most 25 % of tokens in documents with tokens above 50"


def test_the_ten_heaviest_offenders_are_named_and_all_are_counted() -> None:
    rule = Rule(**LENGTHS | {"minimum": 1000, "maximum": None})
    shards = [documents(*range(i * 10, i * 10 + 10)) for i in range(4)]
    found = judge(rule, tally_of(rule, *shards))
    assert found.offender_count == 40
    assert [offender.observed for offender in found.offenders] == [f"tokens {n}" for n in range(39, 29, -1)]
    assert found.offenders[0].source == "web"
    assert found.offenders[0].position == "file.txt:09"


def test_nothing_to_measure_is_not_a_pass() -> None:
    rule = Rule(**LENGTHS)
    assert judge(rule, tally_of(rule, documents())).outcome == "not_measured"
    assert judge(rule, tally_of(rule, documents(None, None))).outcome == "not_measured"
    found = judge(rule, tally_of(rule, documents(None)), note="there is no earlier snapshot")
    assert found.sentence == "Not measured: there is no earlier snapshot."


def test_a_warning_stays_a_warning() -> None:
    rule = Rule(**LENGTHS | {"severity": "warn"})
    assert judge(rule, tally_of(rule, documents(1, 1))).outcome == "warn"


def test_the_worst_source_is_named() -> None:
    checks = ChecksSettings(max_duplicate_pct=10)
    rule = next(rule for rule in built_in_rules(checks) if rule.name == "source_duplicates")
    sources = pa.table({"source": ["web", "logs"], "tokens": [10, 900], "duplicate_pct": [11.0, 99.5]})
    found = judge(rule, tally_of(rule, sources))
    assert found.outcome == "fail"
    assert "99.5 % of the documents of source 'logs' are exact copies" in found.sentence


def test_every_rule_has_a_documented_column_and_words() -> None:
    rules = list(built_in_rules(ChecksSettings()))
    assert [rule.name for rule in rules if rule.origin == "built-in"] == list(RULES)
    assert [rule.name for rule in rules if rule.origin == "drift"] == list(DRIFT_RULES)
    for rule in rules:
        assert rule.column in COLUMNS[rule.table], rule.name
        assert rule.expected()
        for text in (rule.good, rule.bad):
            assert (
                text.format(observed="", expected="", violators="", share="", worst="", note="", partly="")[-1] in ".?"
            )


def test_a_rule_can_be_switched_off_or_made_milder() -> None:
    checks = ChecksSettings(severity={"padding": "fail", "vocabulary": "off"})
    rules = {rule.name: rule for rule in built_in_rules(checks)}
    assert "vocabulary" not in rules
    assert rules["padding"].severity == "fail"
    with pytest.raises(ValueError, match="there is no rule 'pading'; did you mean 'padding'"):
        ChecksSettings(severity={"pading": "warn"})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567, "1,234,567"),
        (61.0, "61"),
        (2.0412, "2.04"),
        (0.003123, "0.00312"),
        (1234.5, "1,234"),
        (None, "nothing"),
    ],
)
def test_numbers_for_people(value: float | None, text: str) -> None:
    assert number(value) == text
