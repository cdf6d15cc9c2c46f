"""The built-in rules, as data: each says between which bounds a column of a table must lie.

Great Expectations measures them (`expectations`), `tally` adds the shards up, and the sentences here say in words what
was found. A rule over `documents` tolerates a share of violators, counted in documents or in tokens; over the other
tables none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tokenmill.quality.settings import ChecksSettings
from tokenmill.quality.tables import TableName


@dataclass(frozen=True, kw_only=True)
class Rule:
    """`bad` and `good` are format strings over `observed`, `expected`, `violators` (how many rows), `share` (of
    violators, percent), `worst` (name of the worst source or shard), `note` (what only the statistics know) and
    `partly` (the same in brackets, or nothing)."""

    name: str
    table: TableName
    column: str
    minimum: float | None = None
    maximum: float | None = None
    severity: Literal["fail", "warn"] = "fail"
    unit: str = ""
    tolerated_pct: float = 0.0
    tolerated_of: Literal["documents", "tokens"] = "documents"
    good: str
    bad: str

    @property
    def origin(self) -> Literal["built-in", "drift"]:
        return "drift" if self.name.startswith("drift_") else "built-in"

    def expected(self) -> str:
        """The bounds in words: 'at most 5 % of tokens in documents with class_change_pct above 35 %'."""
        low, high = self.minimum, self.maximum
        if self.tolerated_pct:
            below = f"below {number(low)}{self.unit}" if low is not None else ""
            above = f"above {number(high)}{self.unit}" if high is not None else ""
            what = "documents" if self.tolerated_of == "documents" else "tokens in documents"
            odd = " or ".join(part for part in (below, above) if part)
            return f"at most {number(self.tolerated_pct)} % of {what} with {self.column} {odd}"
        if low is not None and high is not None:
            same = f"{number(low)}{self.unit}"
            return same if low == high else f"{number(low)} to {number(high)}{self.unit}"
        return f"at least {number(low)}{self.unit}" if low is not None else f"at most {number(high)}{self.unit}"


ACCEPT = "if the change is meant, start this night once with --set checks.drift.reference=none"


def built_in_rules(checks: ChecksSettings) -> Iterator[Rule]:
    """All rules that `checks` does not switch off, in the order of reports."""
    for rule in (*_integrity(), *_content(checks), *_amounts(checks), *_evaluation(checks), *_drift(checks)):
        severity = checks.severity_of(rule.name)
        if severity != "off":
            yield Rule(**{**rule.__dict__, "severity": severity})


def _integrity() -> Iterator[Rule]:
    yield Rule(
        name="sums",
        table="snapshot",
        column="broken_sums",
        minimum=0,
        maximum=0,
        good="The manifest, the records and the tables agree on every count.",
        bad="The counts do not add up, so something was lost or counted twice: {note}. Prepare this snapshot anew.",
    )
    yield Rule(
        name="records",
        table="shards",
        column="damaged",
        minimum=0,
        maximum=0,
        good="All record files are as they were written.",
        bad="Data on disk is damaged: {note}. Delete the shard's folder and prepare again.",
    )
    yield Rule(
        name="round_trip",
        table="snapshot",
        column="round_trip_failures",
        minimum=0,
        maximum=0,
        good="The sampled documents decode to the text that they came from.",
        bad="Tokens do not decode to the text that they came from ({note}): "
        "the tokenizer is not the one that wrote these shards. Restore it or prepare anew.",
    )
    yield Rule(
        name="vocabulary",
        table="documents",
        column="ids_outside_vocabulary",
        minimum=0,
        maximum=0,
        good="All token ids are within the vocabulary.",
        bad="{violators} documents hold token ids outside the vocabulary, which the model has no embedding for: "
        "tokenizer and shards do not belong together.",
    )


def _content(checks: ChecksSettings) -> Iterator[Rule]:
    yield Rule(
        name="unknown_tokens",
        table="snapshot",
        column="unknown_token_pct",
        maximum=checks.max_unknown_token_pct,
        unit=" %",
        good="{observed} of the tokens are unknown to the tokenizer.",
        bad="{observed} of the tokens are unknown to the tokenizer (allowed: {expected}): the text is in a language "
        "or an encoding that it was not made for.",
    )
    yield Rule(
        name="bytes_per_token",
        table="snapshot",
        column="bytes_per_token",
        minimum=checks.min_bytes_per_token,
        maximum=checks.max_bytes_per_token,
        good="A token stands for {observed} bytes of text.",
        bad="A token stands for {observed} bytes of text, outside {expected}: the tokenizer does not fit this text.",
    )
    yield Rule(
        name="document_lengths",
        table="documents",
        column="tokens",
        minimum=checks.min_document_tokens,
        maximum=checks.max_document_tokens,
        tolerated_pct=checks.max_odd_length_pct,
        tolerated_of="documents",
        good="{share} of the documents are odd in length.",
        bad="{share} of the documents ({violators}) are odd in length: {expected}. Look at how the corpus is cut.",
    )
    yield Rule(
        name="encoded_text",
        table="documents",
        column="class_change_pct",
        maximum=35.0,
        unit=" %",
        tolerated_pct=checks.max_encoded_pct,
        tolerated_of="tokens",
        good="{share} of the tokens are in documents that look encoded.",
        bad="{share} of the tokens are in {violators} documents that look like base64, hexadecimal dumps or keys, "
        "not text.",
    )
    yield Rule(
        name="repeated_tokens",
        table="documents",
        column="top_token_pct",
        maximum=checks.max_top_token_pct,
        unit=" %",
        tolerated_pct=checks.max_repetitive_pct,
        tolerated_of="tokens",
        good="{share} of the tokens are in documents that repeat one token.",
        bad="{share} of the tokens are in {violators} documents that repeat one token over and over.",
    )


def _amounts(checks: ChecksSettings) -> Iterator[Rule]:
    for prefix, table in (("", "snapshot"), ("source_", "sources")):
        whole = "the documents" if table == "snapshot" else "the documents of source '{worst}'"
        yield Rule(
            name=f"{prefix}duplicates",
            table="snapshot" if table == "snapshot" else "sources",
            column="duplicate_pct",
            maximum=checks.max_duplicate_pct,
            unit=" %",
            good=f"{{observed}} of {whole} are exact copies.",
            bad=f"{{observed}} of {whole} are exact copies of others ({{expected}} is allowed): "
            "was something delivered twice?",
        )
        yield Rule(
            name=f"{prefix}refusals",
            table="snapshot" if table == "snapshot" else "sources",
            column="refused_pct",
            maximum=checks.max_refused_pct,
            unit=" %",
            good=f"{{observed}} of {whole} were refused.",
            bad=f"{{observed}} of {whole} were refused by prepare ({{expected}} is allowed); "
            "refused.parquet in the snapshot's folder names each with its reason.",
        )
    yield Rule(
        name="padding",
        table="snapshot",
        column="train_padding_pct",
        maximum=checks.max_padding_pct,
        unit=" %",
        good="{observed} of the train rows is padding.",
        bad="{observed} of the train rows is padding ({expected} is allowed), and paid for: use tokens.packing "
        "best_fit or a shorter tokens.sequence_length.",
    )
    yield Rule(
        name="sources_present",
        table="sources",
        column="documents",
        minimum=1,
        good="Every source has documents.",
        bad="Source '{worst}' has no document in this snapshot ({note}): is its folder empty, "
        "or does its glob still match?",
    )


def _evaluation(checks: ChecksSettings) -> Iterator[Rule]:
    yield Rule(
        name="eval_present",
        table="snapshot",
        column="eval_rows",
        minimum=1,
        good="The eval split has {observed} rows.",
        bad="The eval split is empty, so nothing would say whether the model learned: raise tokens.eval_fraction, or "
        "bring more documents.",
    )
    yield Rule(
        name="eval_disjoint",
        table="snapshot",
        column="eval_documents_in_train",
        minimum=0,
        maximum=0,
        good="No eval document stands in train.",
        bad="{observed} eval documents stand in train, word for word: the evaluation would measure memory.",
    )
    yield Rule(
        name="eval_contamination",
        table="documents",
        column="train_overlap_pct",
        maximum=checks.max_train_overlap_pct,
        unit=" %",
        tolerated_pct=checks.max_contaminated_pct,
        tolerated_of="documents",
        good="{share} of the eval documents are near copies of train documents{partly}.",
        bad=f"{{share}} of the eval documents ({{violators}}) are near copies of train documents{{partly}}: more than "
        f"{number(checks.max_train_overlap_pct)} % of their {checks.contamination_ngram}-token sequences stand in "
        "train, so the evaluation loss will look better than it is.",
    )


def _drift(checks: ChecksSettings) -> Iterator[Rule]:
    drift = checks.drift
    yield Rule(
        name="drift_tokenizer",
        table="snapshot",
        column="tokenizer_changes",
        minimum=0,
        maximum=0,
        good="The tokenizer is that of the last good snapshot.",
        bad="The tokenizer was swapped: {note}. A model that goes on training would see other words behind the same "
        f"ids. Restore it; {ACCEPT}.",
    )
    yield Rule(
        name="drift_token_distribution",
        table="snapshot",
        column="token_divergence",
        maximum=drift.max_token_divergence,
        good="The token distribution is close to the last good one (divergence {observed}).",
        bad="The token distribution moved away from the last good snapshot: a Jensen-Shannon divergence of {observed} "
        f"({{expected}} is allowed; 0 is the same text, 1 shares no token). Look at the new documents; {ACCEPT}.",
    )
    yield Rule(
        name="drift_frequency_bands",
        table="snapshot",
        column="band_psi",
        maximum=drift.max_band_psi,
        good="Frequent and rare tokens keep their shares (stability index {observed}).",
        bad="The balance of frequent and rare tokens moved: a population stability index of {observed} "
        f"({{expected}} is allowed): {{note}}. Look at the new documents; {ACCEPT}.",
    )
    yield Rule(
        name="drift_document_lengths",
        table="snapshot",
        column="length_ratio",
        maximum=drift.max_length_ratio,
        unit=" times",
        good="Document lengths are as in the last good snapshot.",
        bad="Document lengths moved by {observed} ({expected} is allowed): {note}.",
    )
    yield Rule(
        name="drift_bytes_per_token",
        table="snapshot",
        column="bytes_per_token_change_pct",
        maximum=drift.max_bytes_per_token_change_pct,
        unit=" %",
        good="Bytes per token are within {observed} of the last good snapshot's.",
        bad="Bytes per token moved by {observed} ({expected} is allowed): {note}. The tokenizer meets text that it was "
        f"not made for; {ACCEPT}.",
    )
    yield Rule(
        name="drift_source_mix",
        table="sources",
        column="token_share_change_points",
        maximum=drift.max_source_mix_change_points,
        unit=" points",
        good="The sources keep their shares of the tokens.",
        bad=f"The mix of sources moved: {{note}}. Look for what came or went; {ACCEPT}.",
    )
    yield Rule(
        name="drift_source_size",
        table="sources",
        column="size_pct_of_reference",
        minimum=drift.min_source_size_pct,
        unit=" %",
        good="No source shrank much.",
        bad=f"Source '{{worst}}' holds {{observed}} of the tokens that it had in the last good snapshot ({{expected}} "
        f"is wanted): was it delivered in full? Otherwise, {ACCEPT}.",
    )
    yield Rule(
        name="drift_scripts",
        table="snapshot",
        column="script_change_points",
        maximum=drift.max_script_change_points,
        unit=" points",
        good="The documents are in the scripts that they were in.",
        bad=f"The documents changed their script: {{note}}. Another language came in; {ACCEPT}.",
    )


def number(value: float | None) -> str:
    """For people: 1,234,567 · 61 · 2.04 · 0.00312."""
    if value is None:
        return "nothing"
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
