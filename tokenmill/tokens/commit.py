"""The last step of prepare: sums that must agree, and the manifest made of them."""

from __future__ import annotations

from collections import Counter

from tokenmill.errors import UserError
from tokenmill.tokens.manifest import FORMAT_VERSION, Manifest, Shard, SourceCounts, SplitCounts
from tokenmill.tokens.mixture import epoch_rows, row_counts_of_part
from tokenmill.tokens.records import RecordLayout
from tokenmill.tokens.settings import TokensSettings
from tokenmill.tokens.tokenizer import Tokenizer
from tokenmill.workspace import Workspace


def refuse_too_many_refused(sources: list[SourceCounts], max_refused_pct: float) -> None:
    """Raises `UserError` when a larger share of the documents is refused, naming the reasons that lead."""
    total = sum(source.documents_in for source in sources)
    reasons: Counter[str] = Counter()
    for source in sources:
        reasons.update(source.refused)
    refused = reasons.total()
    if not total:
        raise UserError("corpus: the sources' files hold no document; check `include`, `where` and `text_column`")
    leading = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common(3))
    if refused == total:
        raise UserError(
            f"corpus: all {total} documents are refused ({leading}); check format, encoding and text_column"
        )
    if 100 * refused > max_refused_pct * total:
        raise UserError(
            f"corpus: {refused} of {total} documents are refused ({100 * refused / total:.1f} %, more than "
            f"corpus.max_refused_pct: {max_refused_pct:g}); leading reasons: {leading}; mend them or raise the limit"
        )


def make_manifest(
    workspace: Workspace,
    settings: TokensSettings,
    tokenizer: Tokenizer,
    sources: list[SourceCounts],
    shards: list[Shard],
    tables: dict[str, str],
) -> Manifest:
    """Raises RuntimeError if a document or a token is not accounted for."""
    kept = sum(source.documents_kept for source in sources)
    in_shards = sum(shard.documents for shard in shards)
    by_split = sum(shard.split(split).documents for shard in shards for split in ("train", "eval"))
    if not kept == in_shards == by_split:
        raise RuntimeError(f"{kept} documents kept, {in_shards} in shards, {by_split} by split: some were lost")
    layout = RecordLayout(settings.sequence_length, tokenizer.vocab_size)
    weights = [source.weight for source in sources for _ in range(source.shards)]
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        tokenizer=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        end_of_document=tokenizer.end_of_document,
        sequence_length=settings.sequence_length,
        packing=settings.packing,
        eval_fraction=settings.eval_fraction,
        documents_in=sum(source.documents_in for source in sources),
        documents_kept=kept,
        duplicates=sum(source.duplicates for source in sources),
        refused=sum(sum(source.refused.values()) for source in sources),
        filtered=sum(source.filtered for source in sources),
        tokens_dropped={},
        train=_split_counts(workspace, layout, shards, weights, "train"),
        eval=_split_counts(workspace, layout, shards, [1.0] * len(shards), "eval"),
        sources=tuple(sources),
        shards=tuple(shards),
        tables=tables,
    )
    if not manifest.train.rows:
        raise UserError(
            f"corpus: {kept} documents, and none is left to train on; lower tokens.eval_fraction or add documents"
        )
    return manifest


def _split_counts(
    workspace: Workspace, layout: RecordLayout, shards: list[Shard], weights: list[float], split: str
) -> SplitCounts:
    rows = tokens = 0
    for shard, weight in zip(shards, weights, strict=True):
        part = shard.split(split)
        whole = int(weight)
        rows += epoch_rows(part.rows, weight)
        tokens += whole * part.tokens
        if extra := epoch_rows(part.rows, weight) - whole * part.rows:
            path = workspace.shard(shard.key) / f"{split}.tfrecord"
            tokens += int(row_counts_of_part(layout, path, part.rows, extra).sum())
    parts = [shard.split(split) for shard in shards]
    return SplitCounts(
        documents=sum(part.documents for part in parts),
        rows=rows,
        tokens=tokens,
        padding_tokens=rows * layout.sequence_length - tokens,
        split_documents=sum(part.split_documents for part in parts),
        stored_rows=sum(part.rows for part in parts),
        stored_tokens=sum(part.tokens for part in parts),
    )
