from __future__ import annotations

from pathlib import Path

import pytest

from tokenmill.errors import UserError
from tokenmill.quality.artifacts import markdown, table_rows
from tokenmill.quality.verdict import Finding, Offender, Outcome, Verdict, decide, read_verdict, require_passing
from tokenmill.workspace import write_json


def finding(rule: str, outcome: Outcome, **fields: object) -> Finding:
    words = {"expected": "at most 5 %", "observed": "9 %", "sentence": f"{rule} is {outcome}."}
    return Finding.model_validate({"rule": rule, "origin": "built-in", "outcome": outcome, **words, **fields})


def verdict(*findings: Finding) -> Verdict:
    return Verdict(verdict=decide(findings), snapshot="s1", rules="r1", reference=None, findings=findings)


def test_the_worst_outcome_decides_and_unmeasured_is_no_violation() -> None:
    assert decide([]) == "pass"
    assert decide([finding("a", "pass"), finding("b", "not_measured")]) == "pass"
    assert decide([finding("a", "warn"), finding("b", "pass")]) == "warn"
    assert decide([finding("a", "warn"), finding("b", "fail")]) == "fail"


def test_sentences_tell_the_gravest_first() -> None:
    found = verdict(finding("a", "warn"), finding("b", "fail"), finding("c", "pass"))
    assert found.sentences() == ["b is fail.", "a is warn."]
    well = verdict(finding("a", "pass"), finding("b", "not_measured"))
    assert well.sentences() == ["All 1 rules that could be measured hold; 1 could not be measured."]
    assert len(verdict(*[finding(str(n), "fail") for n in range(30)]).sentences()) == 10


def test_training_needs_a_passing_verdict_of_its_own_snapshot(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no validation"):
        require_passing(tmp_path, "s1")
    write_json(tmp_path / "verdict.json", verdict(finding("a", "warn")).model_dump(mode="json"))
    assert require_passing(tmp_path, "s1") == read_verdict(tmp_path)
    with pytest.raises(UserError, match="is of snapshot s1, not of s2"):
        require_passing(tmp_path, "s2")
    write_json(tmp_path / "verdict.json", verdict(finding("a", "fail")).model_dump(mode="json"))
    with pytest.raises(UserError, match="refused by validation: a is fail"):
        require_passing(tmp_path, "s1")


def test_artifacts_hold_every_rule_and_cannot_be_broken_by_the_corpus() -> None:
    nasty = Offender(source="web", position="a|b`.txt:1", observed="x", excerpt="`<script>|alert(1)")
    found = verdict(finding("a", "pass"), finding("b", "fail", offenders=(nasty,), offender_count=12))
    assert [row["rule"] for row in table_rows(found)] == ["b", "a"]
    text = markdown(found)
    assert text.startswith("## ❌ The snapshot is refused")
    assert "**b**, 1 of 12:" in text
    offender = text.splitlines()[-1]
    assert "|" not in offender
    assert offender.count("`") == 6
