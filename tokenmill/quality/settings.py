"""The `checks` section of pipelines.yaml."""

from __future__ import annotations

import difflib
from typing import Literal

from pydantic import Field, field_validator

from tokenmill.config import Section, operational

RULES = (
    "sums",
    "records",
    "round_trip",
    "vocabulary",
    "unknown_tokens",
    "bytes_per_token",
    "document_lengths",
    "encoded_text",
    "repeated_tokens",
    "duplicates",
    "refusals",
    "source_duplicates",
    "source_refusals",
    "padding",
    "sources_present",
    "eval_present",
    "eval_disjoint",
    "eval_contamination",
)
"""Names of the built-in rules that look at one snapshot."""

DRIFT_RULES = (
    "drift_tokenizer",
    "drift_token_distribution",
    "drift_frequency_bands",
    "drift_document_lengths",
    "drift_bytes_per_token",
    "drift_source_mix",
    "drift_source_size",
    "drift_scripts",
)
"""Names of the built-in rules that compare a snapshot with the last good one."""

WARN_BY_DEFAULT = frozenset({"document_lengths", "padding", "eval_contamination", "drift_document_lengths"})

Severity = Literal["fail", "warn", "off"]


class DriftSettings(Section):
    """How far a snapshot may be from the last good one."""

    reference: str = operational("last_good")
    """`last_good`, `none` (drift is not measured: for a night whose change is meant), or a snapshot's id."""
    max_token_divergence: float = operational(0.05, ge=0, le=1)
    """Jensen-Shannon divergence (base 2: 0 to 1) of the token distributions."""
    max_band_psi: float = operational(0.25, ge=0)
    """Population stability index over bands of token frequency; 0.25 is the usual mark of a major shift."""
    max_length_ratio: float = operational(2.0, gt=1)
    """Factor, up or down, that a quartile of the document lengths (tokens) may move by."""
    max_bytes_per_token_change_pct: float = operational(15.0, ge=0)
    max_source_mix_change_points: float = operational(20.0, ge=0, le=100)
    """Percentage points that a source's share of the tokens may move by."""
    min_source_size_pct: float = operational(60.0, ge=0)
    """A source's tokens, as a share of what it had in the reference."""
    max_script_change_points: float = operational(20.0, ge=0, le=100)
    """Percentage points that a script's share of the documents may move by."""


class ChecksSettings(Section):
    on_fail: Literal["stop", "train_on_last_good"] = operational("stop")
    """What a failed verdict leads to: exit code 2, or training on the last good snapshot, said loudly."""
    severity: dict[str, Severity] = operational({})
    """By rule: what a violation leads to, where the default is not wanted."""
    suite: str | None = operational(None)
    """Your own Great Expectations suite: a JSON file, or a Python file with a function `suite()`; relative to
    pipelines.yaml."""
    deep: bool = operational(False)
    """Check the CRC of each record instead of a sample's."""
    max_unknown_token_pct: float = operational(1.0, ge=0, le=100)
    """Share of tokens that the tokenizer had no id for."""
    min_bytes_per_token: float = operational(1.2, gt=0)
    max_bytes_per_token: float = operational(8.0, gt=0)
    min_document_tokens: int = operational(3, ge=0)
    """A shorter document (its end-of-document token counts) is odd ..."""
    max_document_tokens: int | None = operational(None, ge=1)
    """... and so is a longer one."""
    max_odd_length_pct: float = operational(10.0, ge=0, le=100)
    """Share of documents that may be odd in length."""
    max_encoded_pct: float = operational(5.0, ge=0, le=100)
    """Share of tokens in documents that look like base64, hexadecimal dumps or keys."""
    max_top_token_pct: float = operational(60.0, ge=0, le=100)
    """A document is repetitive if one token makes up more than this share of it ..."""
    max_repetitive_pct: float = operational(5.0, ge=0, le=100)
    """... and this share of the tokens may be in such documents."""
    max_duplicate_pct: float = operational(50.0, ge=0, le=100)
    """Share of all documents, and of a source's, that are exact copies."""
    max_refused_pct: float = operational(5.0, ge=0, le=100)
    """Share of all documents, and of a source's, that prepare refused."""
    max_padding_pct: float = operational(20.0, ge=0, le=100)
    """Share of the train rows that is padding."""
    contamination_ngram: int = operational(32, ge=8)
    """Length, in tokens, of the sequences by which an eval document is looked for in train."""
    max_train_overlap_pct: float = operational(80.0, ge=0, le=100)
    """An eval document is contaminated if more than this share of its n-grams occurs in train ..."""
    max_contaminated_pct: float = operational(33.0, ge=0, le=100)
    """... and this share of the eval documents may be."""
    drift: DriftSettings = Field(default_factory=DriftSettings)

    @field_validator("severity")
    @classmethod
    def _known_rules(cls, severity: dict[str, Severity]) -> dict[str, Severity]:
        for name in severity:
            if name not in RULES + DRIFT_RULES:
                close = difflib.get_close_matches(name, RULES + DRIFT_RULES, n=1)
                hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(RULES + DRIFT_RULES)}"
                raise ValueError(f"there is no rule '{name}'; {hint}")
        return severity

    def severity_of(self, rule: str) -> Severity:
        """What a violation of a built-in rule leads to."""
        return self.severity.get(rule, "warn" if rule in WARN_BY_DEFAULT else "fail")
