"""Fills in the columns that compare a snapshot with its reference, and the words for what moved most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tokenmill.quality.drift import (
    LENGTH_QUANTILES,
    band_shares,
    jensen_shannon_divergence,
    largest_ratio,
    largest_share_change,
    population_stability_index,
)
from tokenmill.quality.reference import ReferenceStatistics
from tokenmill.quality.rules import number
from tokenmill.quality.statistics import Statistics

BAND_NAMES = ("the 10 most frequent tokens", "the next 90", "the next 900", "the next 9,000", "all rarer tokens")
NO_REFERENCE = "there is no last good snapshot to compare with yet"


OTHER_UNIT = "the tokenizer is another one, so tokens cannot be compared"


def compare(
    statistics: Statistics, reference: ReferenceStatistics | None, *, tokenizer_change_is_meant: bool = False
) -> None:
    """Writes into the `snapshot` and `sources` rows of `statistics`, and into its notes.

    Another tokenizer counts in another unit: whatever is counted in tokens is then not measured, but for shares.
    """
    if reference is None:
        for rule in ("tokenizer", "token_distribution", "frequency_bands", "document_lengths", "bytes_per_token"):
            statistics.notes[f"drift_{rule}"] = NO_REFERENCE
        for rule in ("source_mix", "source_size", "scripts"):
            statistics.notes[f"drift_{rule}"] = NO_REFERENCE
        return
    before, now = reference.summary["tokenizer"], statistics.tokenizer
    if before == now:
        statistics.snapshot["tokenizer_changes"] = 0
        _compare_tokens(statistics, reference)
        _compare_lengths(statistics, reference.summary)
    else:
        if tokenizer_change_is_meant:
            statistics.notes["drift_tokenizer"] = (
                "another one was asked for: the tokenizer's settings in pipelines.yaml are other ones, or it was made "
                "anew on demand"
            )
        else:
            statistics.snapshot["tokenizer_changes"] = 1
            statistics.notes["drift_tokenizer"] = f"it was {before}, and is {now}"
        for rule in ("token_distribution", "frequency_bands", "document_lengths", "bytes_per_token", "source_size"):
            statistics.notes[f"drift_{rule}"] = OTHER_UNIT
    _compare_scripts(statistics, reference.summary)
    _compare_sources(statistics, reference.summary, same_unit=before == now)


def _compare_tokens(statistics: Statistics, reference: ReferenceStatistics) -> None:
    row, notes = statistics.snapshot, statistics.notes
    size = max(len(reference.token_counts_V), len(statistics.train_counts_V))
    old, new = (np.pad(c, (0, size - len(c))) for c in (reference.token_counts_V, statistics.train_counts_V))
    if not old.sum() or not new.sum():
        return
    row["token_divergence"] = jensen_shannon_divergence(old, new)
    expected, actual = band_shares(old, old), band_shares(old, new)
    row["band_psi"] = population_stability_index(expected, actual)
    widest = max(range(len(actual)), key=lambda band: abs(actual[band] - expected[band]))
    notes["drift_frequency_bands"] = _moved(BAND_NAMES[widest], 100 * expected[widest], 100 * actual[widest])
    statistics.band_shares = actual
    statistics.reference_band_shares = expected


def _compare_lengths(statistics: Statistics, before: Mapping[str, Any]) -> None:
    row, notes = statistics.snapshot, statistics.notes
    quartiles = {f"p{round(100 * q)}": float(row[f"tokens_per_document_p{round(100 * q)}"]) for q in LENGTH_QUANTILES}
    row["length_ratio"], name = largest_ratio(before["token_quartiles"], quartiles)
    what = {"p25": "a quarter of the documents had at most", "p50": "half of the documents had at most"}.get(
        name, "three quarters of the documents had at most"
    )
    notes["drift_document_lengths"] = (
        f"{what} {number(before['token_quartiles'][name])} tokens, and have at most {number(quartiles[name])} now"
    )
    old, new = before["bytes_per_token"], row["bytes_per_token"]
    row["bytes_per_token_change_pct"] = 100.0 * abs(new / old - 1.0)
    notes["drift_bytes_per_token"] = f"from {number(old)} to {number(new)}"


def _compare_scripts(statistics: Statistics, before: Mapping[str, Any]) -> None:
    shares = statistics.scripts_pct()
    change, script = largest_share_change(before["scripts_pct"], shares)
    statistics.snapshot["script_change_points"] = change
    moved = _moved(script, before["scripts_pct"].get(script, 0.0), shares.get(script, 0.0))
    statistics.notes["drift_scripts"] = f"{moved} of the documents"


def _compare_sources(statistics: Statistics, before: Mapping[str, Any], *, same_unit: bool) -> None:
    old = {source["source"]: source for source in before["sources"]}
    moves = []
    for source in statistics.sources:
        earlier = old.get(source["source"])
        share = float(earlier["token_share_pct"]) if earlier else 0.0
        source["reference_token_share_pct"] = share
        source["token_share_change_points"] = abs(source["token_share_pct"] - share)
        if same_unit and earlier and earlier["tokens"]:
            source["size_pct_of_reference"] = 100.0 * source["tokens"] / earlier["tokens"]
        moves.append((source["token_share_change_points"], source["source"], share, source["token_share_pct"]))
    gone = sorted(set(old) - {source["source"] for source in statistics.sources})
    words = "; ".join(_moved(f"'{name}'", was, now) for _, name, was, now in sorted(moves, reverse=True)[:3])
    missing = f"; {', '.join(gone)} is no longer in pipelines.yaml" if gone else ""
    statistics.notes["drift_source_mix"] = f"{words} of the tokens{missing}"


def _moved(name: str, before_pct: float, now_pct: float) -> str:
    return f"{name} went from {number(round(before_pct, 3))} % to {number(round(now_pct, 3))} %"
