"""A validation: statistics of a snapshot, rules over them, a verdict, all in one published folder.

``validations/<snapshot>/<hash of rules and reference>/``: verdict.json, verdict.md and rules.json (for whoever shows
them), summary.json, report.html, suites.json, data_docs/,
statistics/{documents,shards,sources,snapshot,tokens}.parquet.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.canonical import fingerprint
from tokenmill.quality.artifacts import markdown, table_rows
from tokenmill.quality.comparison import compare
from tokenmill.quality.contamination import EvalOverlap
from tokenmill.quality.offenders import OffenderFinder
from tokenmill.quality.page import render
from tokenmill.quality.reading import SnapshotReader
from tokenmill.quality.reference import ReferenceStatistics, choose_reference, tokenizer_change_is_meant
from tokenmill.quality.rules import built_in_rules
from tokenmill.quality.settings import ChecksSettings
from tokenmill.quality.statistics import Statistics, collect_statistics
from tokenmill.quality.suites import load_suite, suite_hash
from tokenmill.quality.summary import summarise
from tokenmill.quality.tables import TableName, schema
from tokenmill.quality.tally import judge, judge_own
from tokenmill.quality.totals import add_totals
from tokenmill.quality.verdict import FORMAT_VERSION, VERDICT_NAME, Verdict, decide, read_verdict
from tokenmill.tokens.manifest import Manifest, read_manifest
from tokenmill.tokens.tokenizer import Tokenizer, load_tokenizer
from tokenmill.workspace import Workspace, publish_folder, read_json, write_json

Progress = Callable[[str, int, int], None]
"""(label, done, total); may raise to stop the work: nothing is committed before the end."""


@dataclass(frozen=True)
class Validation:
    verdict: Verdict
    summary: dict[str, Any]
    folder: str
    """Relative to the workspace."""
    reference: str | None
    """Folder of the validation that drift was measured against, relative to the workspace."""
    found: bool
    """Whether it was there already."""


def validate_snapshot(
    workspace: Workspace, pipeline: str, snapshot: str, checks: ChecksSettings, progress: Progress
) -> Validation:
    """The validation of `snapshot` under these rules and the reference that they name; made if it is not there."""
    manifest = read_manifest(workspace.snapshot(snapshot))
    reference = choose_reference(workspace, pipeline, snapshot, checks.drift.reference)
    meant = tokenizer_change_is_meant(workspace, pipeline)
    rules = rules_hash(checks, reference, meant)
    folder = workspace.validation(snapshot, rules)
    # A refusal is looked at again: somebody may have mended a file, and the snapshot's id stays the same.
    found = (folder / VERDICT_NAME).exists() and read_verdict(folder).verdict != "fail"
    if not found:
        # Its import takes seconds in which the statistics can be on their way.
        warm_up = threading.Thread(target=import_module, args=("tokenmill.quality.expectations",), daemon=True)
        warm_up.start()
        with publish_folder(folder) as beside:
            _Work(workspace, snapshot, manifest, checks, rules, reference, meant, beside, progress).run(warm_up)
            shutil.rmtree(folder, ignore_errors=True)
    return Validation(
        read_verdict(folder), read_json(folder / "summary.json"), workspace.relative(folder), reference, found
    )


def rules_hash(checks: ChecksSettings, reference: str | None, tokenizer_change_is_meant: bool) -> str:
    """What makes another validation of the same snapshot. What follows from a verdict (`on_fail`) does not."""
    values = checks.model_dump(mode="json", exclude={"on_fail", "suite"})
    own = suite_hash(Path(checks.suite)) if checks.suite else None
    meant = reference is not None and tokenizer_change_is_meant
    return fingerprint(
        {"checks": values, "suite": own, "reference": reference, "meant": meant, "format": FORMAT_VERSION}
    )


class _Work:
    def __init__(
        self,
        workspace: Workspace,
        snapshot: str,
        manifest: Manifest,
        checks: ChecksSettings,
        rules: str,
        reference: str | None,
        tokenizer_change_is_meant: bool,
        folder: Path,
        progress: Progress,
    ) -> None:
        self._workspace, self._snapshot, self._manifest, self._checks = workspace, snapshot, manifest, checks
        self._rules_hash, self._folder, self._progress = rules, folder, progress
        self._tokenizer_change_is_meant = tokenizer_change_is_meant
        self._tables = folder / "statistics"
        self._reader = SnapshotReader(workspace.root / "shards", workspace.snapshot(snapshot), manifest)
        self._tokenizer: Tokenizer = load_tokenizer(workspace.tokenizer(manifest.tokenizer))
        self._reference = ReferenceStatistics.read(workspace.root / reference) if reference else None

    def run(self, warm_up: threading.Thread) -> None:
        self._tables.mkdir()
        unfinished = self._tables / "unfinished.parquet"
        statistics, overlap, round_trip = collect_statistics(
            self._snapshot,
            self._reader,
            self._tokenizer,
            self._checks,
            unfinished,
            lambda done, total: self._progress("statistics", done, total),
        )
        add_totals(statistics, self._reader, self._tokenizer, overlap, round_trip)
        compare(statistics, self._reference, tokenizer_change_is_meant=self._tokenizer_change_is_meant)
        warm_up.join()
        self._judge(statistics, overlap, unfinished, {"round_trip": round_trip.failures})

    def _judge(
        self, statistics: Statistics, overlap: EvalOverlap, unfinished: Path, by_digest: dict[str, list[str]]
    ) -> None:
        from tokenmill.quality.expectations import Validator

        rules = list(built_in_rules(self._checks))
        own = load_suite(Path(self._checks.suite)) if self._checks.suite else []
        validator = Validator(rules, own)
        documents_path = self._tables / "documents.parquet"
        contaminated = 0
        for name, rows in self._finished_documents(statistics, overlap, unfinished, documents_path):
            validator.check("documents", rows, name)
            over = rows["train_overlap_pct"].to_numpy() > self._checks.max_train_overlap_pct
            contaminated += int(np.count_nonzero(over))
        unfinished.unlink()
        statistics.snapshot["contaminated_eval_documents"] = contaminated if self._manifest.eval.documents else None
        small: tuple[tuple[TableName, list[dict[str, Any]]], ...] = (
            ("shards", statistics.shards),
            ("sources", statistics.sources),
            ("snapshot", [statistics.snapshot]),
        )
        for table, rows_of in small:
            made = pa.Table.from_pylist(rows_of, schema=schema(table))
            pq.write_table(made, self._tables / f"{table}.parquet")
            validator.check(table, made, table)
        self._write_token_counts(statistics)
        findings = [judge(rule, validator.tallies[rule.name], statistics.notes.get(rule.name, "")) for rule in rules]
        findings += [judge_own(rule) for rule in validator.own_rules.values()]
        finder = OffenderFinder(self._reader, self._workspace.snapshot(self._snapshot), documents_path, self._tokenizer)
        findings = finder.enrich(findings, dict(by_digest))
        verdict = Verdict(
            verdict=decide(findings),
            snapshot=self._snapshot,
            rules=self._rules_hash,
            reference=self._reference.snapshot if self._reference else None,
            findings=tuple(findings),
        )
        summary = summarise(statistics)
        validator.write_data_docs(self._folder / "data_docs")
        write_json(self._folder / "suites.json", validator.suites_json())
        (self._folder / "report.html").write_text(render(verdict, summary), encoding="utf-8")
        (self._folder / "verdict.md").write_text(markdown(verdict), encoding="utf-8")
        write_json(self._folder / "rules.json", table_rows(verdict))
        write_json(self._folder / "summary.json", summary)
        write_json(self._folder / VERDICT_NAME, json.loads(verdict.model_dump_json()))

    def _finished_documents(
        self, statistics: Statistics, overlap: EvalOverlap, unfinished: Path, final: Path
    ) -> Iterator[tuple[str, pa.Table]]:
        """(shard, its documents) with what only the whole pass could tell; written to `final` on the way."""
        by_shard = overlap.by_shard()
        file = pq.ParquetFile(unfinished)
        column = schema("documents").get_field_index("train_overlap_pct")
        with pq.ParquetWriter(final, schema("documents"), compression="zstd") as sink:
            for group, number in enumerate(statistics.measured_shards):
                rows = file.read_row_group(group)
                pcts = np.full(rows.num_rows, np.nan)
                if number in by_shard:
                    places, values = by_shard[number]
                    pcts[places] = values
                    filled = pa.array(pcts, pa.float64(), from_pandas=True)
                    rows = rows.set_column(column, schema("documents").field(column), filled)
                sink.write_table(rows)
                yield self._manifest.shards[number].key, rows
                self._progress("rules", group + 1, len(statistics.measured_shards))

    def _write_token_counts(self, statistics: Statistics) -> None:
        columns = {
            "id": np.arange(len(statistics.train_counts_V)),
            "train": statistics.train_counts_V,
            "eval": statistics.eval_counts_V,
        }
        table = pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})
        pq.write_table(table, self._tables / "tokens.parquet", compression="zstd")
