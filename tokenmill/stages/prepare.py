"""The stage `prepare`: corpus in, snapshot out (see `tokenmill.tokens.prepare`)."""

from __future__ import annotations

from tokenmill.protocol import CORPUS_ROOT_PREFIX, StageName, StageResult
from tokenmill.stages.harness import StageContext, main
from tokenmill.tokens.prepare import PrepareRequest
from tokenmill.tokens.prepare import prepare as prepare_corpus


class _Hooks:
    def __init__(self, context: StageContext) -> None:
        self.log = context.log
        self.progress = context.progress
        self.check_stop = context.stop.check


def prepare(context: StageContext) -> StageResult:
    pipeline = context.pipeline
    context.phases.switch("prepare")
    roots = {
        # A URL is the same everywhere; a folder is where the supervisor put it.
        source.name: source.root if "://" in source.root else str(context.roots[CORPUS_ROOT_PREFIX + source.name])
        for source in pipeline.corpus.sources
    }
    request = PrepareRequest(
        workspace=context.workspace,
        pipeline=context.spec.pipeline_name,
        corpus=pipeline.corpus,
        tokenizer=pipeline.tokenizer,
        tokens=pipeline.tokens,
        roots=roots,
    )
    prepared = prepare_corpus(request, _Hooks(context))
    outputs = prepared.outputs()
    message = (
        f"{outputs['documents']:,} documents, {outputs['train_tokens']:,} train tokens "
        f"in {outputs['train_rows']:,} rows; "
        f"{outputs['built_shards']} shards built, {outputs['reused_shards']} re-used"
    )
    return StageResult(status="completed", outputs=outputs, message=message)


if __name__ == "__main__":
    main(StageName.PREPARE, prepare)
