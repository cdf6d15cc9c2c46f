"""The trial stage: a few dozen updates of one configuration, timed, on rows of a snapshot. It trains nothing to keep.

`tokenmill tune` compares configurations by it, and an estimate rests on it where no run like it is known. Start,
compile and warm-up stand apart from the timed updates. Running out of an accelerator's memory is an answer.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from tokenmill.errors import UserError
from tokenmill.pipelines import Pipeline
from tokenmill.protocol import StageName, StageResult
from tokenmill.stages.harness import StageContext, main
from tokenmill.telemetry.phases import PhaseClock
from tokenmill.tokens.order import row_numbers
from tokenmill.tokens.resize import ResizedRows
from tokenmill.tokens.snapshot import open_snapshot
from tokenmill.tokens.tokenizer import load_tokenizer
from tokenmill.training import hardware

KNOBS = ("global_batch_size", "micro_batch_size", "precision", "xla")
"""Of the training section, besides `sequence_length`."""


def with_knobs(pipeline: Pipeline, knobs: Mapping[str, Any]) -> Pipeline:
    """The pipeline with other training knobs and, where given, another `sequence_length`."""
    changed = {name: knobs[name] for name in KNOBS if name in knobs}
    training = pipeline.training.model_validate({**pipeline.training.model_dump(), **changed})
    tokens = pipeline.tokens.model_copy(
        update={"sequence_length": knobs.get("sequence_length", pipeline.tokens.sequence_length)}
    )
    return pipeline.model_copy(update={"training": training, "tokens": tokens})


def trial(context: StageContext) -> StageResult:
    """Inputs: `snapshot`, `knobs`, `steps` (timed), `warmup_steps`.

    Outputs: `step_seconds` (one an update), `start_seconds` (this process's start until the first timed update),
    `nonpadding_tokens` and `processed_tokens` of the timed updates, `peak_memory_bytes`, `out_of_memory`, and the
    frozen `choices`.
    """
    started = time.monotonic()
    inputs = context.spec.inputs
    pipeline = with_knobs(context.pipeline, inputs.get("knobs") or {})
    os.environ.update(hardware.tensorflow_environment(hardware.choose_xla(pipeline.training)[0]))
    with context.stop.nothing_to_save():
        import tensorflow as tf

        try:
            outputs = _measure(context, pipeline, started)
        except (tf.errors.ResourceExhaustedError, MemoryError) as error:
            context.log.warning("out of memory: %s", str(error).splitlines()[0])
            outputs = {"out_of_memory": True}
    return StageResult(status="completed", outputs=outputs, message=_sentence(outputs))


def _measure(context: StageContext, pipeline: Pipeline, started: float) -> dict[str, Any]:
    import tensorflow as tf

    from tokenmill.training import devices
    from tokenmill.training.batches import BatchReader
    from tokenmill.training.choices import freeze_choices
    from tokenmill.training.data import Data
    from tokenmill.training.engine import Engine

    training, inputs, phases = pipeline.training, context.spec.inputs, context.phases
    if training.workers > 1:
        raise UserError("training.workers: a trial measures one worker; set training.workers=1 to tune")
    if training.threads != "auto":
        tf.config.threading.set_intra_op_parallelism_threads(int(training.threads))
    claimed = devices.claim(training)
    frozen = freeze_choices(training, claimed)
    snapshot = open_snapshot(context.workspace, str(inputs["snapshot"]))
    manifest = snapshot.manifest
    source = ResizedRows(snapshot, manifest.sequence_length, pipeline.tokens.sequence_length, manifest.train.rows)
    tokenizer_folder = context.workspace.tokenizer(manifest.tokenizer)
    data = Data(
        source=source,
        order=row_numbers,
        train_rows=source.row_count,
        train_tokens=manifest.train.tokens,
        eval_rows=0,
        vocab_size=manifest.vocab_size,
        sequence_length=pipeline.tokens.sequence_length,
        tokenizer=load_tokenizer(tokenizer_folder),
        tokenizer_folder=tokenizer_folder,
    )
    phases.switch("compile")
    engine = Engine(pipeline.model, training, data, devices.strategy_for(claimed), frozen)
    engine.compile()
    reader = BatchReader(
        source, row_numbers, rows=source.row_count, seed=0, global_batch_size=training.global_batch_size, cursor=0
    )
    try:
        _steps(engine, reader, int(inputs["warmup_steps"]), phases)  # XLA compiles at its first update
        ready = time.monotonic()
        timed, nonpadding, processed = _steps(engine, reader, int(inputs["steps"]), phases, warm=True)
    finally:
        reader.close()
    return {
        "out_of_memory": False,
        "step_seconds": timed,
        "start_seconds": ready - started,
        "nonpadding_tokens": nonpadding,
        "processed_tokens": processed,
        "peak_memory_bytes": _peak_memory_bytes(claimed.kind),
        "parameters": engine.counts.parameters,
        "devices": len(claimed.names),
        "choices": frozen,
    }


def _steps(
    engine: Any, reader: Any, count: int, phases: PhaseClock, *, warm: bool = False
) -> tuple[list[float], int, int]:
    """Seconds of each update, the wait for its input included; non-padding and processed tokens of all."""
    seconds, nonpadding, processed = [], 0, 0
    for _ in range(count):
        begun = time.monotonic()
        phases.switch("input_wait" if warm else "compile")
        draw = reader.next()
        phases.switch("step" if warm else "compile")
        engine.updater.run([draw.batch], [1e-4])
        seconds.append(time.monotonic() - begun)
        nonpadding += draw.nonpadding_tokens
        processed += draw.processed_tokens
    return seconds, nonpadding, processed


def _peak_memory_bytes(kind: str) -> int:
    """Of the fullest accelerator; of this process where there is none."""
    import tensorflow as tf

    if kind == "gpu":
        gpus = range(len(tf.config.get_visible_devices("GPU")))
        return max(int(tf.config.experimental.get_memory_info(f"GPU:{number}")["peak"]) for number in gpus)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _sentence(outputs: Mapping[str, Any]) -> str:
    if outputs["out_of_memory"]:
        return "out of memory"
    rate = outputs["processed_tokens"] / max(1e-9, float(np.sum(outputs["step_seconds"])))
    return f"{len(outputs['step_seconds'])} updates timed, {rate:,.0f} tokens a second"


if __name__ == "__main__":
    main(StageName.TRIAL, trial)
