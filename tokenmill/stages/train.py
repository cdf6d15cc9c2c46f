"""The train stage: a snapshot with a passing verdict in, a model, a receipt and a ledger out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from tokenmill import runs
from tokenmill.cost.spot import checkpoint_interval_seconds
from tokenmill.protocol import StageName, StageResult
from tokenmill.quality.verdict import require_passing
from tokenmill.stages.forecast import budget_watch
from tokenmill.stages.harness import StageContext, main
from tokenmill.stages.observer import Observer, ObserverConfig
from tokenmill.stages.preflight import meet_workers, preflight
from tokenmill.telemetry.samples import allowed_cores
from tokenmill.tokens.manifest import SplitCounts
from tokenmill.tokens.order import row_numbers
from tokenmill.tokens.snapshot import open_snapshot
from tokenmill.tokens.tokenizer import load_tokenizer
from tokenmill.training import hardware
from tokenmill.training.lease import run_lease
from tokenmill.training.schedule import total_steps
from tokenmill.workspace import read_json, write_json

if TYPE_CHECKING:
    from tokenmill.training.data import Data
    from tokenmill.training.loop import Hook
    from tokenmill.training.session import Session

UNKNOWN_RATE_SECONDS = 60.0
"""Between two checkpoints where no interruption rate is given."""
MAX_AUTOMATIC_SECONDS = 900.0
"""A crash of our own may come at any rate: no more than this is lost to it."""
FIRST_SECONDS = 5.0
"""Until the first save has been timed."""
FREEZING_SECONDS = 300.0
"""That a worker waits for the chief's choices of a new run."""
RESULT = "result.json"
"""In the run's folder, once it is trained to its length."""


def train(context: StageContext) -> StageResult:
    """Inputs: `run_id`, `snapshot`, `validation` (its folder), `attempt`.

    Outputs: `run_id`, `step`, `cursor`, `eval_loss`, `eval_loss_first`, `train_loss`, `nonpadding_tokens`,
    `processed_tokens`, `model` (folder). A run that is trained already answers from its folder.
    """
    inputs = context.spec.inputs
    run_id, snapshot_id = str(inputs["run_id"]), str(inputs["snapshot"])
    require_passing(context.workspace.root / str(inputs["validation"]), snapshot_id)
    folder = context.workspace.run(run_id)
    # One writer: of several workers the chief.
    with nullcontext() if context.worker else run_lease(folder):
        if (folder / RESULT).is_file():
            return StageResult.model_validate(read_json(folder / RESULT))
        attempt = int(inputs["attempt"])
        with Observer(_observer_config(context, run_id, attempt)):
            ending, outputs = _session(context, run_id, snapshot_id, attempt).run()
        outputs |= {"run_id": run_id, "model": context.workspace.relative(folder / "model")}
        result = StageResult(status=ending.status, outputs=outputs, message=ending.message)
        if ending.status == "completed" and not context.worker:
            write_json(folder / RESULT, result.model_dump(mode="json"))
    return result


def _observer_config(context: StageContext, run_id: str, attempt: int) -> ObserverConfig:
    training = context.pipeline.training
    return ObserverConfig(
        pid=os.getpid(),
        run_id=run_id,
        run_folder=context.workspace.run(run_id),
        attempt=attempt,
        ledger=context.ledger_path,
        worker=context.worker,
        settings=context.pipeline.telemetry,
        workers=training.workers,
        devices=1 if training.devices == "auto" else training.devices,
    )


def _session(context: StageContext, run_id: str, snapshot_id: str, attempt: int) -> Session:
    """Everything that must come before TensorFlow's first use, in its order."""
    training, workspace = context.pipeline.training, context.workspace
    run = runs.read_run(workspace, run_id)
    os.environ.update(hardware.tensorflow_environment(str(run.frozen.get("xla", training.xla))))
    with context.stop.nothing_to_save():
        import tensorflow as tf

        from tokenmill.training import devices
        from tokenmill.training.choices import freeze_choices
        from tokenmill.training.data import Data
        from tokenmill.training.session import Session

        if training.threads != "auto":
            tf.config.threading.set_intra_op_parallelism_threads(int(training.threads))
        if training.deterministic:
            tf.config.experimental.enable_op_determinism()
        meet_workers()
        claimed = devices.claim(training)
        frozen = _frozen(context, run_id, freeze_choices(training, claimed))
        snapshot = open_snapshot(workspace, snapshot_id)
        manifest = snapshot.manifest
        peak = preflight(context, workspace.run(run_id), claimed, str(frozen["precision"]), manifest.vocab_size)
        # After the preflight, which tries the workers' ports; with several workers nothing has computed until here.
        strategy = devices.strategy_for(claimed, training.workers)
        tokenizer_folder = workspace.tokenizer(manifest.tokenizer)
        data = Data(
            source=snapshot,
            order=row_numbers,
            train_rows=manifest.train.rows,
            train_tokens=manifest.train.tokens,
            eval_rows=manifest.eval.rows,
            vocab_size=manifest.vocab_size,
            sequence_length=manifest.sequence_length,
            tokenizer=load_tokenizer(tokenizer_folder),
            tokenizer_folder=tokenizer_folder,
        )
    return Session(
        folder=workspace.run(run_id),
        attempt=attempt,
        model_settings=context.pipeline.model,
        training=training,
        data=data,
        devices=claimed,
        strategy=strategy,
        frozen=frozen,
        phases=context.phases,
        stop=context.stop,
        write_ledger=context.ledger.write,
        show=lambda done, total, detail: context.progress("train", done, total, "steps", detail),
        more_hooks=[
            _profile_hook(context, run_id, claimed.kind, frozen, data),
            *_budget_hooks(context, run_id, manifest.train),
        ],
        log=context.log,
        starting_model=None if run.starting_model is None else workspace.root / "models" / run.starting_model,
        automatic_interval=_automatic_interval(context),
        peak_flops_per_second=peak,
        worker=context.worker,
    )


def _profile_hook(context: StageContext, run_id: str, kind: str, frozen: dict[str, Any], data: Data) -> Hook:
    from tokenmill.training import counts
    from tokenmill.training.profiling import ProfileHook

    def asked() -> bool:
        wanted = context.profile_asked.is_set()
        context.profile_asked.clear()
        return wanted

    model = counts.count(context.pipeline.model, vocab_size=data.vocab_size, sequence_length=data.sequence_length)
    facts = {
        "device": kind,
        "cores": allowed_cores(len(os.sched_getaffinity(0))),
        "flops_per_token": model.flops_per_token,
        "precision": frozen["precision"],
        "precision_reason": frozen.get("precision_reason", ""),
    }
    return ProfileHook(
        context.workspace.run(run_id),
        context.phases,
        steps=context.pipeline.training.profile_steps,
        asked=asked,
        facts=facts,
        log=context.log,
    )


def _frozen(context: StageContext, run_id: str, choices: Mapping[str, Any]) -> dict[str, Any]:
    """The run's choices: the chief's, for which the other workers wait."""
    if not context.worker:
        return runs.freeze(context.workspace, run_id, choices)
    deadline = time.monotonic() + FREEZING_SECONDS
    while not choices.keys() <= (frozen := runs.read_run(context.workspace, run_id).frozen).keys():
        if time.monotonic() > deadline:
            raise RuntimeError(f"worker {context.worker} waited {FREEZING_SECONDS:g} s for the chief's choices")
        time.sleep(0.1)
    return frozen


def _automatic_interval(context: StageContext) -> Callable[[float], float]:
    """The best time between checkpoints at the interruption rate that the pipeline expects; without one, a minute."""
    cost = context.pipeline.cost
    rate = None if cost == "unpriced" else cost.interruptions_per_hour
    if not rate:
        return lambda save_seconds: UNKNOWN_RATE_SECONDS
    return lambda save_seconds: min(
        MAX_AUTOMATIC_SECONDS, checkpoint_interval_seconds(save_seconds, rate) if save_seconds else FIRST_SECONDS
    )


def _budget_hooks(context: StageContext, run_id: str, train: SplitCounts) -> list[Hook]:
    """The stop before `cost.budget_usd` is passed, where there is a budget."""
    watch = budget_watch(context.workspace, context.pipeline, context.spec.ledger, context.spec.invocation_id, run_id)
    if watch is None:
        return []
    from tokenmill.stages.budget_hook import BudgetHook

    settings = context.pipeline.training
    batch = settings.global_batch_size
    steps = total_steps(settings.length, rows=train.rows, tokens=train.tokens, global_batch_size=batch)
    tokens_in_all = steps * batch * context.pipeline.tokens.sequence_length
    return [BudgetHook(watch, tokens_in_all, context.log.warning, context.ledger.write)]


if __name__ == "__main__":
    main(StageName.TRAIN, train)
