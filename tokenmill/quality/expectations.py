"""Great Expectations measures the tables: our rules and a pipeline's own suite, shard by shard.

The only module that imports Great Expectations (seconds; analytics off, an ephemeral context, nothing but pandas and
local files).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tokenmill.errors import UserError
from tokenmill.quality.rules import Rule
from tokenmill.quality.tables import TABLES, TableName
from tokenmill.quality.tally import Measurement, OwnRule, Tally

os.environ["GX_ANALYTICS_ENABLED"] = "false"
with warnings.catch_warnings():
    # Its fluent data sources import the standard library's deprecated sre_constants.
    warnings.simplefilter("ignore", DeprecationWarning)
    import great_expectations as gx
    from great_expectations.core.run_identifier import RunIdentifier
    from great_expectations.expectations import ExpectColumnValuesToBeBetween

COMPLETE = {"result_format": "COMPLETE", "include_unexpected_rows": False, "return_unexpected_index_query": False}
MAX_DOCUMENTED_SHARDS = 8
"""Shards whose results stand in the Data Docs: the first, then those with violations. A page takes about 0.1 s."""


class Validator:
    """Holds the suites; `check` takes one table or one shard's documents at a time."""

    def __init__(self, rules: Sequence[Rule], own_suite: Sequence[Any] = ()) -> None:
        self._context = gx.get_context(mode="ephemeral")
        self._context.enable_analytics(False)
        self._context.variables.progress_bars = {"globally": False}
        self._rules = {rule.name: rule for rule in rules}
        self.tallies = {rule.name: Tally(rule.table, rule.column) for rule in rules}
        self.own_rules: dict[str, OwnRule] = {}
        self._documented_shards = 0
        expectations: dict[TableName, list[Any]] = {table: [] for table in TABLES}
        for rule in rules:
            expectations[rule.table].append(_expectation(rule))
        for index, expectation in enumerate(own_suite):
            table = _table_of(expectation)
            key = f"own:{index}"
            self.own_rules[key] = _own_rule(expectation, index, table)
            expectation.meta = {**(expectation.meta or {}), "rule": key}
            expectations[table].append(expectation)
        self._definitions = {table: self._define(table, items) for table, items in expectations.items() if items}

    def _define(self, table: TableName, expectations: list[Any]) -> Any:
        asset = self._context.data_sources.add_pandas(table).add_dataframe_asset(table)
        batch = asset.add_batch_definition_whole_dataframe("whole")
        suite = self._context.suites.add(gx.ExpectationSuite(name=table, expectations=expectations))
        return self._context.validation_definitions.add(gx.ValidationDefinition(name=table, data=batch, suite=suite))

    def check(self, table: TableName, rows: pa.Table, name: str) -> None:
        """Measure every rule over `table` on `rows`; `name` is the shard's, or the table's own."""
        if table not in self._definitions or not rows.num_rows:
            return
        definition = self._definitions[table]
        parameters = {"dataframe": rows.to_pandas()}
        batch = definition.data.get_batch(batch_parameters=parameters)
        outcome = batch.validate(definition.suite, result_format=COMPLETE)
        assert len(outcome.results) == len(definition.suite.expectations)
        for result in outcome.results:
            self._take(result, rows, name)
        # Data Docs render what the context stores, and it stores what a definition runs.
        first = self._documented_shards == 0
        if table != "documents" or first or (not outcome.success and self._documented_shards < MAX_DOCUMENTED_SHARDS):
            definition.run(batch_parameters=parameters, result_format="SUMMARY", run_id=RunIdentifier(run_name=name))
            self._documented_shards += table == "documents"

    def _take(self, result: Any, rows: pa.Table, name: str) -> None:
        config = result.expectation_config
        key = config.meta["rule"]
        own = self.own_rules.get(key)
        trouble = _exception_message(result.exception_info)
        if trouble:
            raise UserError(f"checks.suite: {own.name if own else key} cannot be measured: {trouble}")
        violating = result.result.get("unexpected_index_list")
        if own is None:
            self.tallies[key].add(rows, Measurement(violating or []))
        elif "unexpected_count" in result.result:
            own.tally.add(rows, Measurement(violating or []))
        else:
            own.add_aggregate(name, result.result.get("observed_value"), holds=bool(result.success))

    def write_data_docs(self, folder: Path) -> None:
        """Great Expectations' own pages; they load scripts and styles from public hosts."""
        store = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder)}
        site = {
            "class_name": "SiteBuilder",
            "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
            "store_backend": store,
            "show_how_to_buttons": False,
        }
        self._context.add_data_docs_site(site_name="local", site_config=site)
        self._context.build_data_docs(site_names=["local"])
        for moving_picture in folder.rglob("*.gif"):
            moving_picture.unlink()  # 3 MB of tutorial

    def suites_json(self) -> dict[str, Any]:
        """The suites as Great Expectations writes them, to start one of your own from."""
        return {table: definition.suite.to_json_dict() for table, definition in self._definitions.items()}


def _expectation(rule: Rule) -> Any:
    severity = "critical" if rule.severity == "fail" else "warning"
    return ExpectColumnValuesToBeBetween(
        column=rule.column,
        min_value=rule.minimum,
        max_value=rule.maximum,
        mostly=1.0 - rule.tolerated_pct / 100.0,
        severity=severity,
        meta={"rule": rule.name},
    )


def _table_of(expectation: Any) -> TableName:
    wanted = (expectation.meta or {}).get("table", "documents")
    for table in TABLES:
        if table == wanted:
            return table
    raise UserError(f"checks.suite: the table '{wanted}' is unknown; meta.table is one of {', '.join(TABLES)}")


def _own_rule(expectation: Any, index: int, table: TableName) -> OwnRule:
    config = expectation.configuration
    kwargs = ", ".join(f"{name}={value}" for name, value in config.kwargs.items() if name != "batch_id")
    return OwnRule(
        name=f"suite.{index + 1}.{config.type}",
        expected=expectation.description or f"{config.type}({kwargs})",
        severity=str(getattr(expectation.severity, "value", expectation.severity)),
        mostly=float(getattr(expectation, "mostly", 1.0) or 0.0),
        tally=Tally(table, config.kwargs.get("column")),
    )


def _exception_message(info: dict[str, Any]) -> str | None:
    """`exception_info` is one record, or one by metric."""
    records: Iterator[Any] = iter([info] if "raised_exception" in info else info.values())
    for record in records:
        if record.get("raised_exception"):
            return str(record.get("exception_message")).strip().splitlines()[0]
    return None
