"""Puts names and text to what violates a rule: source, position and the beginning of the document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokenmill.quality.reading import SPLITS, SnapshotReader, where
from tokenmill.quality.texts import excerpt
from tokenmill.quality.verdict import MAX_OFFENDERS, Finding, Offender
from tokenmill.tokens.tokenizer import Tokenizer

EXCERPT_TOKENS = 60


class OffenderFinder:
    def __init__(
        self, reader: SnapshotReader, snapshot_folder: Path, documents_path: Path, tokenizer: Tokenizer
    ) -> None:
        self._reader, self._snapshot_folder = reader, snapshot_folder
        self._documents_path, self._tokenizer = documents_path, tokenizer

    def enrich(self, findings: Sequence[Finding], by_digest: dict[str, Sequence[str]]) -> list[Finding]:
        """`findings`, those that are violated with all that is known of their offenders. `by_digest` names documents
        that violate rules which are measured on the whole snapshot."""
        filled = [self._add_offenders(finding, by_digest.get(finding.rule, ())) for finding in findings]
        wanted = {o.document for f in filled if f.outcome in {"fail", "warn"} for o in f.offenders if o.document}
        excerpts = self._excerpts(wanted)
        return [
            finding.model_copy(
                update={
                    "offenders": tuple(
                        o.model_copy(update={"excerpt": excerpts[o.document]}) if o.document in excerpts else o
                        for o in finding.offenders
                    )
                }
            )
            for finding in filled
        ]

    def _add_offenders(self, finding: Finding, digests: Sequence[str]) -> Finding:
        if finding.outcome not in {"fail", "warn"} or finding.offenders:
            return finding
        table = {"duplicates": "duplicates", "refusals": "refused"}.get(finding.rule)
        if table:
            offenders = self._first_rows(table)
            count = self._reader.table_rows(table) or 0
        elif digests:
            offenders = self._documents(digests[:MAX_OFFENDERS])
            count = len(digests)
        else:
            return finding
        return finding.model_copy(update={"offenders": tuple(offenders), "offender_count": count})

    def _first_rows(self, name: str) -> list[Offender]:
        for batch in pq.ParquetFile(self._snapshot_folder / f"{name}.parquet").iter_batches(MAX_OFFENDERS):
            rows = pa.Table.from_batches([batch])
            places = where(rows)
            return [
                Offender(
                    source=row["source"],
                    position=place,
                    observed=row.get("reason") or f"copy of {row['digest'].hex()}",
                    excerpt=excerpt(row.get("excerpt") or ""),
                )
                for row, place in zip(rows.to_pylist(), places, strict=True)
            ]
        return []

    def _documents(self, digests: Iterable[str]) -> list[Offender]:
        wanted = pa.array(list(digests), pa.string())
        found: list[Offender] = []
        file = pq.ParquetFile(self._documents_path)
        for number in range(file.num_row_groups):
            rows = file.read_row_group(number, columns=["document", "source", "position", "tokens"])
            for row in rows.filter(pc.is_in(rows["document"], wanted)).to_pylist():
                found.append(
                    Offender(
                        source=row["source"],
                        position=row["position"],
                        observed=f"tokens {row['tokens']:,}",
                        document=row["document"],
                    )
                )
        return found

    def _excerpts(self, wanted: set[str]) -> dict[str, str]:
        """By content hash: the beginning of the text, decoded from the tokens."""
        found: dict[str, str] = {}
        keys = pa.array([bytes.fromhex(key) for key in sorted(wanted)], pa.binary(16))
        for _, shard in self._reader.shards():
            if len(found) == len(wanted):
                break
            rows = set(pc.indices_nonzero(pc.is_in(shard.table["digest"], keys)).to_pylist())
            if not rows:
                continue
            for split in SPLITS:
                for chunk in shard.chunks(split):
                    ends = chunk.lengths_D.cumsum()
                    for place, row in enumerate(chunk.documents_D.tolist()):
                        if row in rows:
                            start, stop = ends[place] - chunk.lengths_D[place], ends[place] - 1
                            tokens = chunk.tokens_N[start : min(stop, start + EXCERPT_TOKENS)]
                            found[shard.digests[row].hex()] = excerpt(self._text(tokens))
        return found

    def _text(self, tokens: Any) -> str:
        return self._tokenizer.decode([token for token in tokens.tolist() if 0 <= token < self._tokenizer.vocab_size])
