"""`tokenmill plan`: what a start would do. Reads the workspace and the corpus's bytes; starts and writes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.readiness import check_ready
from tokenmill.cost.money import format_rate
from tokenmill.cost.prices import resolve_price
from tokenmill.invocations import running_invocation
from tokenmill.pipelines import Pipeline
from tokenmill.runs import Run, finished_run, list_runs, unfinished_run
from tokenmill.stages.forecast import forecast
from tokenmill.tokens.prepare import PrepareRequest
from tokenmill.tokens.preview import Preview, preview
from tokenmill.workspace import Workspace


def plan_lines(name: str, pipeline: Pipeline) -> Iterator[str]:
    workspace = Workspace(pipeline.local_workspace)
    check_ready(pipeline, workspace)
    yield f"pipeline   {name} (identity {pipeline.identity_fingerprint()})"
    yield f"workspace  {workspace.root}"
    running = running_invocation(workspace, name)
    if running is not None:
        yield f"running    {running}: a start now would be refused"
    run = unfinished_run(workspace, name, pipeline)
    if run is not None:
        yield f"train      would go on with run {run.id} from step {run.committed_step:,}, on snapshot {run.snapshot}"
        yield "prepare    nothing: the corpus is not looked at while a run is unfinished (--fresh gives it up)"
    else:
        found = preview(_request(name, pipeline, workspace))
        yield from _prepare_lines(found)
        yield from _train_lines(name, pipeline, workspace, found)
    yield f"price      {_price(pipeline)}"
    yield from _estimate_lines(workspace, pipeline, run)


def _request(name: str, pipeline: Pipeline, workspace: Workspace) -> PrepareRequest:
    roots = {source.name: source.root for source in pipeline.corpus.sources}
    return PrepareRequest(workspace, name, pipeline.corpus, pipeline.tokenizer, pipeline.tokens, roots)


def _prepare_lines(found: Preview) -> Iterator[str]:
    corpus = f"{found.files:,} files, {found.bytes / 2**20:,.1f} MiB"
    if found.snapshot is not None:
        shards = found.snapshot.reused_shards
        yield f"prepare    nothing: snapshot {found.snapshot.snapshot} holds these {corpus} in {shards} cached shards"
        return
    new = found.files - found.known_files
    yield f"prepare    {corpus}; {found.known_files:,} files are known, {new:,} are new or changed"
    if found.known_files:
        yield "prepare    only groups whose documents changed are tokenised again"
    if found.tokenizer is None:
        yield "prepare    the pipeline's tokenizer is made first, and pinned"


def _train_lines(name: str, pipeline: Pipeline, workspace: Workspace, found: Preview) -> Iterator[str]:
    snapshot = None if found.snapshot is None else found.snapshot.snapshot
    trained = None if snapshot is None else finished_run(workspace, name, pipeline, snapshot)
    if trained is not None:
        yield f"train      nothing: run {trained.id} has trained this snapshot"
        return
    wanted = pipeline.identity_fingerprint()
    earlier = [run for run in list_runs(workspace) if run.pipeline == name and run.identity_fingerprint == wanted]
    if not any(run.snapshot == snapshot for run in earlier):
        yield (
            f"train      a new run; {len(earlier)} earlier ones of the same identity"
            if earlier
            else ("train      a new run: this pipeline has none of the same identity")
        )
    for run in earlier:
        if run.snapshot == snapshot:
            yield f"train      would go on with run {run.id} ({run.status}) from step {run.committed_step:,}"


def _estimate_lines(workspace: Workspace, pipeline: Pipeline, run: Run | None) -> Iterator[str]:
    made = forecast(workspace, pipeline, resolve_price(pipeline.cost), run)
    if made is None:
        yield "estimate   none: how many steps there are is known once a snapshot is prepared"
        return
    for sentence in made.sentences:
        yield f"estimate   {sentence}"
    if pipeline.cost != "unpriced" and pipeline.cost.budget_usd is not None and made.usd is not None:
        fits = "within" if made.usd[1] <= pipeline.cost.budget_usd else "OVER"
        yield f"budget     {fits} ${pipeline.cost.budget_usd}"


def _price(pipeline: Pipeline) -> str:
    price = resolve_price(pipeline.cost)
    if price is None:
        return "unpriced: reports show seconds and tokens, no dollars"
    note = f" ({price.note})" if price.note else ""
    return (
        f"{format_rate(price.usd_per_hour)} an hour for {price.machine_type}, {price.market}, from {price.source}{note}"
    )
