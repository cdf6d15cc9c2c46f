"""What a run leaves at its end: receipt, exported model, samples, summary."""

from __future__ import annotations

import math
import resource
from pathlib import Path
from typing import Any

import tensorflow as tf

from tokenmill.training import export, generate, hardware
from tokenmill.training.data import Data
from tokenmill.training.devices import Devices
from tokenmill.training.engine import Engine
from tokenmill.training.loop import Ending
from tokenmill.training.progress import Progress
from tokenmill.training.saving import Saver
from tokenmill.training.settings import ModelSettings, TrainingSettings
from tokenmill.workspace import write_json


def write_receipt(folder: Path, progress: Progress, data: Data, training: TrainingSettings) -> None:
    """`RuntimeError` if its sums differ from those of the order."""
    receipt = progress.receipt.document(data.order, training.seed, progress.cursor)
    write_json(folder / "receipt.json", receipt)
    if not receipt["balanced"]:
        raise RuntimeError(f"{folder / 'receipt.json'}: rows were lost or trained twice")


def write_model(folder: Path, engine: Engine, model: ModelSettings, data: Data) -> None:
    export.export_model(
        folder / "model",
        engine.state.weight_arrays(),
        model,
        vocab_size=data.vocab_size,
        sequence_length=data.sequence_length,
        end_of_document=data.tokenizer.end_of_document,
        tokenizer_folder=data.tokenizer_folder,
    )


def write_samples(folder: Path, engine: Engine, data: Data, training: TrainingSettings) -> list[dict[str, str]]:
    prompts, tokenizer = training.sample_prompts, data.tokenizer
    samples = []
    if prompts:
        encoded = [list(map(int, ids)) for ids in tokenizer.encode_batch(list(prompts))]
        continuations = generate.generate(
            engine.state.model,
            [ids or [tokenizer.end_of_document] for ids in encoded],
            training.sample_tokens,
            end_of_document=tokenizer.end_of_document,
            seed=training.seed,
        )
        samples = [
            {"prompt": prompt, "text": tokenizer.decode(ids)}
            for prompt, ids in zip(prompts, continuations, strict=True)
        ]
    write_json(folder / "samples.json", samples)
    return samples


def outputs(progress: Progress) -> dict[str, Any]:
    """Of the stage's result."""
    return {
        "step": progress.step,
        "cursor": progress.cursor,
        "eval_loss": progress.eval_loss,
        "eval_loss_first": progress.eval_loss_first,
        "train_loss": progress.train_loss,
        "nonpadding_tokens": progress.nonpadding_tokens,
        "processed_tokens": progress.processed_tokens,
    }


def summary(
    ending: Ending,
    progress: Progress,
    engine: Engine,
    saver: Saver,
    *,
    model: ModelSettings,
    training: TrainingSettings,
    devices: Devices,
    frozen: dict[str, Any],
) -> dict[str, Any]:
    rate = progress.nonpadding_tokens / progress.training_seconds if progress.training_seconds else None
    perplexity = None if progress.eval_loss is None else math.exp(min(progress.eval_loss, 700.0))
    return {
        "ending": {"status": ending.status, "message": ending.message},
        "steps": progress.step,
        "total_steps": engine.total_steps,
        "skipped_updates": progress.skipped_updates,
        "rollbacks": len(progress.skipped_draws),
        "parameters": engine.counts.parameters,
        "flops_per_token": engine.counts.flops_per_token,
        "frozen": frozen,
        "devices": {
            "kind": devices.kind,
            "count": len(devices.names),
            "workers": training.workers,
            "models": devices.models,
        },
        "threads": hardware.usable_cores() if training.threads == "auto" else training.threads,
        "architecture": export.architecture_name(model),
        "compile_seconds": engine.compile_seconds,
        "training_seconds": progress.training_seconds,
        "tokens_per_second": rate,
        "checkpoint_stall_seconds": saver.stalls,
        "checkpoint_save_seconds": saver.save_seconds,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "eval_loss": progress.eval_loss,
        "eval_loss_first": progress.eval_loss_first,
        "eval_perplexity": perplexity,
        "tensorflow": tf.__version__,
    }
