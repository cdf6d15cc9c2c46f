"""The validate stage: no training starts on data that nobody checked.

Inputs: `snapshot`. Outputs: `verdict`, `validation` (folder), `rules`, `snapshot` (to train on), `sentences`,
`unigram_entropy_nats`; `report`, `markdown` and `table` are files about tonight's verdict. Where a refused snapshot is
replaced by the last good one, `verdict` stays `fail`, `snapshot` and `validation` are the last good ones, and `refused`
names tonight's, with the sentence that says why.
"""

from __future__ import annotations

from tokenmill.protocol import StageName, StageResult
from tokenmill.quality.reference import LastGood, read_last_good, write_last_good
from tokenmill.quality.validation import Validation, validate_snapshot
from tokenmill.quality.verdict import require_passing
from tokenmill.stages.harness import StageContext, main
from tokenmill.tokens.pinning import what_was_asked_for
from tokenmill.workspace import read_json


def validate(context: StageContext) -> StageResult:
    snapshot = str(context.spec.inputs["snapshot"])
    checks, name = context.pipeline.checks, context.spec.pipeline_name
    context.phases.switch("validate")

    def progress(label: str, done: int, total: int) -> None:
        context.stop.check()
        context.progress(f"validate: {label}", done, total, "shards")

    validation = validate_snapshot(context.workspace, name, snapshot, checks, progress)
    for sentence in validation.verdict.sentences():
        context.log.info("%s", sentence)
    if validation.verdict.verdict != "fail":
        settings = what_was_asked_for(context.workspace, name)
        write_last_good(context.workspace, name, LastGood(snapshot, validation.folder, validation.reference, settings))
        how = "found" if validation.found else "made"
        return StageResult(
            status="completed",
            outputs=_outputs(validation),
            message=f"snapshot {snapshot}: {validation.verdict.verdict} ({how} in {validation.folder})",
        )
    return _refused(context, validation)


def _outputs(validation: Validation) -> dict[str, object]:
    verdict = validation.verdict
    return {
        "verdict": verdict.verdict,
        "validation": validation.folder,
        "rules": verdict.rules,
        "snapshot": verdict.snapshot,
        "reference": verdict.reference,
        "sentences": verdict.sentences(),
        "unigram_entropy_nats": validation.summary["unigram_entropy_nats"],
        "report": f"{validation.folder}/report.html",
        "markdown": f"{validation.folder}/verdict.md",
        "table": f"{validation.folder}/rules.json",
    }


def _refused(context: StageContext, validation: Validation) -> StageResult:
    outputs = _outputs(validation)
    first = validation.verdict.sentences()[0]
    wish = context.pipeline.checks.on_fail
    last = read_last_good(context.workspace, context.spec.pipeline_name) if wish == "train_on_last_good" else None
    if last is None:
        why = "" if wish == "stop" else " There is no earlier good snapshot to train on."
        message = f"snapshot {validation.verdict.snapshot} is refused: {first}{why} See {outputs['report']}."
        return StageResult(status="failed", outputs=outputs | {"user_error": True}, message=message)
    require_passing(context.workspace.root / last.validation, last.snapshot)
    summary = read_json(context.workspace.root / last.validation / "summary.json")
    message = (
        f"snapshot {validation.verdict.snapshot} is refused: {first} "
        f"As checks.on_fail says, the last good snapshot {last.snapshot} is trained on instead."
    )
    context.log.warning("%s", message)
    refused = {
        "snapshot": validation.verdict.snapshot,
        "validation": validation.folder,
        "rules": outputs["rules"],
        "sentence": first,
    }
    replaced = {
        "snapshot": last.snapshot,
        "validation": last.validation,
        "unigram_entropy_nats": summary["unigram_entropy_nats"],
        "refused": refused,
    }
    return StageResult(status="completed", outputs=outputs | replaced, message=message)


if __name__ == "__main__":
    main(StageName.VALIDATE, validate)
