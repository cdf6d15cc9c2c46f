"""The stage `prepare`: corpus in, snapshot out (see `tokenmill.tokens.prepare`); whole, or in parts for many machines.

| inputs | outputs |
|---|---|
| none, or `part`: `commit` | those of `tokenmill.tokens.prepare.Prepared` |
| `part`: `plan`, `batch_bytes` | `plan` (its name), `batches` (how many) |
| `part`: `build`, `plan`, `batch` (its number) | `built_shards` |
"""

from __future__ import annotations

from tokenmill.protocol import CORPUS_ROOT_PREFIX, StageName, StageResult
from tokenmill.stages.harness import StageContext, main
from tokenmill.tokens import parts
from tokenmill.tokens.prepare import PrepareRequest
from tokenmill.tokens.prepare import prepare as prepare_corpus


class _Hooks:
    def __init__(self, context: StageContext) -> None:
        self.log = context.log
        self.progress = context.progress
        self.check_stop = context.stop.check


def prepare(context: StageContext) -> StageResult:
    inputs = context.spec.inputs
    match inputs.get("part", "commit"):
        case "plan":
            return _plan(context, int(inputs["batch_bytes"]))
        case "build":
            return _build(context, str(inputs["plan"]), int(inputs["batch"]))
        case "commit":
            return _whole(context)
        case other:
            raise ValueError(f"part: {other!r}")


def _plan(context: StageContext, batch_bytes: int) -> StageResult:
    planned = parts.plan(_request(context), _Hooks(context), batch_bytes)
    shards = sum(len(keys) for keys, _ in planned.batches)
    message = f"{shards:,} shards to build, in {len(planned):,} batches"
    return StageResult(status="completed", outputs={"plan": planned.name, "batches": len(planned)}, message=message)


def _build(context: StageContext, plan: str, batch: int) -> StageResult:
    built = parts.build(_request(context), _Hooks(context), plan, batch)
    message = f"batch {batch + 1}: {built:,} shards built"
    return StageResult(status="completed", outputs={"built_shards": built}, message=message)


def _whole(context: StageContext) -> StageResult:
    prepared = prepare_corpus(_request(context), _Hooks(context))
    outputs = prepared.outputs()
    message = (
        f"{outputs['documents']:,} documents, {outputs['train_tokens']:,} train tokens "
        f"in {outputs['train_rows']:,} rows; "
        f"{outputs['built_shards']} shards built, {outputs['reused_shards']} re-used"
    )
    return StageResult(status="completed", outputs=outputs, message=message)


def _request(context: StageContext) -> PrepareRequest:
    pipeline = context.pipeline
    context.phases.switch("prepare")
    roots = {
        # A URL is the same everywhere; a folder is where the supervisor put it.
        source.name: source.root if "://" in source.root else str(context.roots[CORPUS_ROOT_PREFIX + source.name])
        for source in pipeline.corpus.sources
    }
    return PrepareRequest(
        workspace=context.workspace,
        pipeline=context.spec.pipeline_name,
        corpus=pipeline.corpus,
        tokenizer=pipeline.tokenizer,
        tokens=pipeline.tokens,
        roots=roots,
    )


if __name__ == "__main__":
    main(StageName.PREPARE, prepare)
