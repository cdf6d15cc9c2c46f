"""Great Expectations at work on tables made by hand. Importing it takes seconds, once."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tokenmill.errors import UserError
from tokenmill.quality.rules import built_in_rules
from tokenmill.quality.settings import ChecksSettings
from tokenmill.quality.suites import load_suite, suite_hash
from tokenmill.quality.tables import COLUMNS, TableName, schema
from tokenmill.quality.tally import judge, judge_own
from tokenmill.quality.verdict import Finding

RULES = list(built_in_rules(ChecksSettings()))


def table(name: TableName, rows: int, columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    """A table with all documented columns; those that are not given are null."""
    return pa.table(
        {column: pa.array(columns.get(column, [None] * rows), kind) for column, (kind, _) in COLUMNS[name].items()},
        schema=schema(name),
    )


def documents(**columns: Sequence[Any]) -> pa.Table:
    rows = len(next(iter(columns.values())))
    names = [f"{index:064x}" for index in range(rows)]
    given = {"document": names, "source": ["web"] * rows, "position": names, "tokens": [100] * rows, **columns}
    return table("documents", rows, given)


def own_findings(suite: Sequence[Any], *shards: pa.Table) -> list[Finding]:
    from tokenmill.quality.expectations import Validator

    validator = Validator([], suite)
    for number, shard in enumerate(shards):
        validator.check("documents", shard, f"shard{number}")
    return [judge_own(rule) for rule in validator.own_rules.values()]


def test_built_in_rules_are_measured_by_great_expectations(tmp_path: Path) -> None:
    from tokenmill.quality.expectations import Validator

    validator = Validator(RULES)
    validator.check("documents", documents(ids_outside_vocabulary=[0, 0, 0]), "shard0")
    validator.check("documents", documents(ids_outside_vocabulary=[0, 1, 0], tokens=[5, 6, 7]), "shard1")
    validator.check("sources", table("sources", 2, {"source": ["web", "logs"], "documents": [6, 0]}), "sources")
    validator.check("snapshot", table("snapshot", 1, {"broken_sums": [0], "duplicate_pct": [50.5]}), "snapshot")
    findings = {rule.name: judge(rule, validator.tallies[rule.name]) for rule in RULES}
    vocabulary = findings["vocabulary"]
    assert vocabulary.outcome == "fail"
    assert vocabulary.observed == "1 of 6 documents (16.7 %)"
    assert [offender.position for offender in vocabulary.offenders] == [f"{1:064x}"]
    assert findings["sources_present"].outcome == "fail"
    assert "'logs'" in findings["sources_present"].sentence
    assert findings["duplicates"].outcome == "fail"
    assert findings["sums"].outcome == "pass"
    assert findings["drift_token_distribution"].outcome == "not_measured"
    assert findings["document_lengths"].outcome == "pass"

    validator.write_data_docs(tmp_path)
    assert (tmp_path / "index.html").exists()
    assert len(list((tmp_path / "validations").rglob("*.html"))) == 4
    assert not list(tmp_path.rglob("*.gif"))
    json.dumps(validator.suites_json())


def test_analytics_are_off() -> None:
    import tokenmill.quality.expectations

    assert tokenmill.quality.expectations
    assert os.environ["GX_ANALYTICS_ENABLED"] == "false"


def test_own_row_rules_are_judged_over_all_shards() -> None:
    import great_expectations.expectations as gxe

    suite = [
        gxe.ExpectColumnValuesToBeBetween(column="tokens", max_value=10, mostly=0.7, description="short documents"),
        gxe.ExpectColumnValuesToBeBetween(column="tokens", max_value=10, mostly=0.9, severity="warning"),
        gxe.ExpectColumnValuesToBeInSet(column="source", value_set=["docs"], severity="info"),
    ]
    # Two of eight are too long: the second shard alone would be under 70 %.
    found = own_findings(suite, documents(tokens=[1, 1, 1, 1, 1]), documents(tokens=[99, 1, 98]))
    assert [finding.outcome for finding in found] == ["pass", "warn", "pass"]
    assert found[0].sentence == "Your own rule holds: short documents (2 of 8 documents violate it)."
    assert [offender.observed for offender in found[1].offenders] == ["99", "98"]
    assert found[2].offender_count == 8
    assert "does not hold" in found[2].sentence
    assert found[1].rule == "suite.2.expect_column_values_to_be_between"


def test_own_aggregates_hold_in_every_shard_or_not_at_all() -> None:
    import great_expectations.expectations as gxe

    suite = [
        gxe.ExpectColumnMeanToBeBetween(column="tokens", max_value=50),
        gxe.ExpectTableRowCountToBeBetween(min_value=1),
    ]
    found = own_findings(suite, documents(tokens=[10, 20]), documents(tokens=[90, 20]))
    assert [finding.outcome for finding in found] == ["fail", "pass"]
    assert found[0].observed == "55.0 in shard1"
    assert found[0].offender_count == 1


def test_a_suite_comes_from_python_or_json(tmp_path: Path) -> None:
    python, saved = tmp_path / "own.py", tmp_path / "own.json"
    python.write_text(
        "import great_expectations.expectations as gxe\n"
        "def suite():\n"
        "    return [gxe.ExpectColumnMaxToBeBetween(column='refused', max_value=0, meta={'table': 'sources'})]\n"
    )
    saved.write_text(
        json.dumps(
            {
                "name": "mine",
                "expectations": [
                    {
                        "type": "expect_column_values_to_not_be_null",
                        "kwargs": {"column": "source"},
                        "id": "0b9a2a4e-58c1-4c1f-9c5e-000000000000",
                        "severity": "warning",
                    }
                ],
            }
        )
    )
    from tokenmill.quality.expectations import Validator

    validator = Validator([], [*load_suite(python), *load_suite(saved)])
    validator.check("sources", table("sources", 1, {"source": ["web"], "refused": [3]}), "sources")
    validator.check("documents", documents(source=["web", None]), "shard0")
    assert [judge_own(rule).outcome for rule in validator.own_rules.values()] == ["fail", "warn"]
    assert suite_hash(python) != suite_hash(saved)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.py", "x = 1", "has no function `suite"),
        ("broken.py", "def suite():\n    return 1 / 0", "ZeroDivisionError: division by zero"),
        ("broken.json", "{", "JSONDecodeError"),
        ("unknown.json", '{"expectations": [{"type": "expect_magic", "kwargs": {}}]}', "expect_magic"),
        ("other.json", '{"rules": []}', "KeyError: 'expectations'"),
    ],
)
def test_a_broken_suite_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        load_suite(path)


def test_a_suite_over_what_is_not_there_is_a_user_error(tmp_path: Path) -> None:
    import great_expectations.expectations as gxe

    with pytest.raises(UserError, match="colour"):
        own_findings([gxe.ExpectColumnValuesToNotBeNull(column="colour")], documents(tokens=[1]))
    with pytest.raises(UserError, match="the table 'pages' is unknown"):
        own_findings([gxe.ExpectColumnValuesToNotBeNull(column="source", meta={"table": "pages"})])
    with pytest.raises(UserError, match="cannot be read"):
        suite_hash(tmp_path / "missing.json")
