"""One attempt at a run: builds model, state and loop, restores, trains, saves, exports.

The folder of a run:

    checkpoints/  model/  tensorboard/  profile/
    metrics.jsonl  evaluation.jsonl  samples.json  receipt.json  summary.json
"""

from __future__ import annotations

import logging
import math
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tokenmill.errors import Interrupted, UserError
from tokenmill.telemetry.phases import PhaseClock
from tokenmill.training import checkpoint, counts, export, generate, hardware, hooks
from tokenmill.training.batches import BatchReader, RowOrder, RowSource
from tokenmill.training.checkpoint import Checkpoint, CheckpointWriter
from tokenmill.training.devices import Devices, strategy_for
from tokenmill.training.evaluation import Evaluation, Evaluator
from tokenmill.training.loop import Ending, Hook, Loop, StopSignal
from tokenmill.training.model import Decoder
from tokenmill.training.progress import Progress
from tokenmill.training.receipt import Receipt
from tokenmill.training.schedule import learning_rate, total_steps
from tokenmill.training.settings import ModelSettings, TrainingSettings
from tokenmill.training.state import TrainState
from tokenmill.training.update import Updater
from tokenmill.workspace import write_json

DEFAULT_CHECKPOINT_SECONDS = 60.0


class Tokenizer(Protocol):
    def encode_batch(self, texts: list[str]) -> list[Any]: ...

    def decode(self, ids: Any) -> str: ...

    @property
    def end_of_document(self) -> int: ...


@dataclass(frozen=True)
class Data:
    """What a run trains on. `tokens` are the non-padding ones of the train split."""

    source: RowSource
    order: RowOrder
    train_rows: int
    train_tokens: int
    eval_rows: int
    vocab_size: int
    sequence_length: int
    tokenizer: Tokenizer
    tokenizer_folder: Path | None = None


@dataclass
class Session:
    """`frozen` holds the choices of `freeze_choices`, made at the run's first attempt."""

    folder: Path
    attempt: int
    model_settings: ModelSettings
    training: TrainingSettings
    data: Data
    devices: Devices
    frozen: dict[str, Any]
    phases: PhaseClock
    stop: StopSignal
    write_ledger: Callable[..., None]
    show: Callable[[int, int, str], None] = lambda done, total, detail: None
    more_hooks: Sequence[Hook] = ()
    """Of the stage's, after the session's own."""
    log: logging.Logger = logging.getLogger(__name__)  # noqa: RUF009 - loggers are shared on purpose
    starting_model: Path | None = None
    """Folder of a model that a new run starts from (config.json, model.safetensors); none means random weights."""
    automatic_interval: Callable[[float], float] = lambda save_seconds: DEFAULT_CHECKPOINT_SECONDS
    """Seconds between checkpoints where the pipeline says `auto`, from the measured seconds of a save."""
    _stalls: list[float] = field(default_factory=list)

    def run(self) -> tuple[Ending, dict[str, Any]]:
        """Train to the run's end; returns why it ended and the stage's outputs.

        Raises `Interrupted` once everything is committed, or `UserError`.
        """
        with self.stop.nothing_to_save():
            self._build()
            self._restore()
            self._compile()
        reader = self._reader()
        try:
            ending = self._train(reader)
        finally:
            reader.close()
        if ending.status == "interrupted":
            self._save()
            self._writer.wait()
            raise Interrupted(f"{ending.message}; everything is committed at step {self.progress.step:,}")
        return ending, self._finish(ending)

    # -- setting up

    def _build(self) -> None:
        self.phases.switch("compile")
        started = time.monotonic()
        data, training = self.data, self.training
        if data.train_rows < 1:
            raise UserError(
                "training: the snapshot has no train rows; enlarge the corpus or lower tokens.eval_fraction"
            )
        self.strategy = strategy_for(self.devices)
        self.replicas = int(self.strategy.num_replicas_in_sync)
        self.micro_batch_size = int(self.frozen["micro_batch_size"])
        precision = str(self.frozen["precision"])
        with self.strategy.scope():
            model = Decoder(self.model_settings, data.vocab_size, data.sequence_length, precision=precision)
            self.state = TrainState(model, seed=training.seed, dynamic_loss_scale=precision == "float16")
        self.updater = Updater(
            self.state,
            training.optimizer,
            self.strategy,
            rows_per_replica=training.global_batch_size // self.replicas,
            micro_batch_size=self.micro_batch_size,
            seed=training.seed,
            z_loss=training.z_loss,
            jit_compile=self.frozen["xla"] == "on",
        )
        self.total_steps = total_steps(
            training.length,
            rows=data.train_rows,
            tokens=data.train_tokens,
            global_batch_size=training.global_batch_size,
        )
        self.counts = counts.count(
            self.model_settings, vocab_size=data.vocab_size, sequence_length=data.sequence_length
        )
        self.evaluator: Evaluator | None = None
        if rows := min(data.eval_rows, training.evaluation.max_rows):
            self.evaluator = Evaluator(
                self.state, data.source, rows=rows, batch_size=self.micro_batch_size, count_bytes=self._text_bytes
            )
        self.progress = Progress(Receipt(data.train_rows))
        self._writer = CheckpointWriter(self.folder / "checkpoints", training.checkpoint, on_commit=self._committed)
        self._evaluations = hooks.JsonLines(self.folder / "evaluation.jsonl")
        self._stop_conditions = hooks.StopConditions(training)
        self._build_seconds = time.monotonic() - started

    def _restore(self) -> None:
        with self.phases.phase("checkpoint_restore"):
            found = checkpoint.newest_valid(self.folder / "checkpoints")
            if found is None:
                if self.starting_model is not None:
                    self._start_from(self.starting_model)
                return
            self.state.load_weights(found.weights)
            self.state.load_optimizer(found.optimizer)
            self.progress = Progress.restore(found.state, self.data.train_rows)
            self.log.info("going on from step %s", f"{found.step:,}")
            self.write_ledger("event", name="restored", step=found.step)

    def _start_from(self, folder: Path) -> None:
        try:
            weights = export.read_model(folder, self.model_settings)
            self.state.load_weights(weights)
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"training.init_from: the model in {folder} does not fit the pipeline's model and tokenizer ({error})"
            ) from None
        self.log.info("starting from the model in %s", folder)

    def _compile(self) -> None:
        started = time.monotonic()
        self.updater.compile()
        if self.evaluator is not None:
            self.evaluator.compile()
        self.compile_seconds = self._build_seconds + time.monotonic() - started
        self.log.info("built and compiled in %.1f s", self.compile_seconds)

    def _reader(self) -> BatchReader:
        return BatchReader(
            self.data.source,
            self.data.order,
            rows=self.data.train_rows,
            seed=self.training.seed,
            global_batch_size=self.training.global_batch_size,
            cursor=self.progress.cursor,
        )

    # -- training

    def _train(self, reader: BatchReader) -> Ending:
        if self.progress.step == 0 and self.evaluator is not None:
            self._evaluate()
        if ending := self._stop_conditions.at_start(self.progress):
            return ending
        settings = self.training
        scalars = tf.summary.create_file_writer(str(self.folder / "tensorboard"))

        def write_scalars(step: int, values: dict[str, float]) -> None:
            with scalars.as_default(step=step):
                for name, value in values.items():
                    tf.summary.scalar(name, value)

        used: list[Hook] = [
            hooks.LedgerHook(self.write_ledger),
            hooks.MetricsHook(
                self.folder,
                every_seconds=settings.log_every_seconds,
                attempt=self.attempt,
                total_steps=self.total_steps,
                flops_per_token=self.counts.flops_per_token,
                show=self.show,
                scalars=write_scalars,
            ),
        ]
        if settings.profile_steps and not (self.folder / "profile").exists():
            used.append(hooks.ProfileHook(settings.profile_steps, self._start_profile, self._finish_profile))
        if settings.evaluation.every_steps is not None and self.evaluator is not None:
            used.append(hooks.EvaluationHook(settings.evaluation.every_steps, self._evaluate))
        used += [hooks.CheckpointHook(self._checkpoint_interval, self._save), self._stop_conditions, *self.more_hooks]
        loop = Loop(
            updater=self.updater,
            reader=reader,
            progress=self.progress,
            learning_rate=lambda step: learning_rate(settings.optimizer, step, self.total_steps),
            total_steps=self.total_steps,
            hooks=used,
            phases=self.phases,
            stop=self.stop,
        )
        ending = loop.run()
        hooks.write_counts(self.write_ledger, self.progress)
        scalars.close()
        return ending

    def _evaluate(self) -> Ending | None:
        """Record the loss on held-out rows. An interruption in between ends the loop at its next look."""
        assert self.evaluator is not None
        with self.phases.phase("evaluate"):
            try:
                found = self.evaluator.run(self.stop.check)
            except Interrupted:
                return None
            self.progress.evaluated(found.loss)
            self._record(found)
        return self._stop_conditions.after_evaluation(found.loss, self.progress.step)

    def _record(self, found: Evaluation) -> None:
        step = self.progress.step
        self._evaluations.write(
            step=step,
            loss=found.loss,
            bits_per_byte=found.bits_per_byte,
            perplexity=found.perplexity,
            tokens=found.tokens,
            rows=found.rows,
            time=time.time(),
        )
        self.log.info("step %s: eval loss %.4f nats a token", f"{step:,}", found.loss)

    def _text_bytes(self, ids: np.ndarray) -> int:
        end = self.data.tokenizer.end_of_document
        return len(self.data.tokenizer.decode([int(token) for token in ids if token != end]).encode())

    # -- saving

    def _checkpoint_interval(self) -> float:
        setting = self.training.checkpoint.every_seconds
        return self.automatic_interval(self._writer.save_seconds) if setting == "auto" else setting

    def _save(self) -> None:
        """Copy the state and start writing it; training stands still for the copy (and an earlier write) only."""
        started = time.monotonic()
        with self.phases.phase("checkpoint_save"):
            self._writer.wait()
            if self.progress.step in checkpoint.steps(self._writer.root)[-1:]:
                return
            hooks.write_counts(self.write_ledger, self.progress)
            moment = Checkpoint(
                self.progress.step, self.state.weight_arrays(), self.state.optimizer_arrays(), self.progress.state()
            )
            self._writer.save(moment, self.progress.best_step)
        self._stalls.append(time.monotonic() - started)

    def _committed(self, step: int, seconds: float) -> None:
        self.write_ledger("checkpoint", sync=True, step=step, seconds=seconds)

    def _start_profile(self) -> None:
        self.phases.switch("profile")
        tf.profiler.experimental.start(str(self.folder / "profile"))

    def _finish_profile(self) -> None:
        with self.phases.phase("profile"):
            tf.profiler.experimental.stop()

    # -- the end

    def _finish(self, ending: Ending) -> dict[str, Any]:
        self._save()
        if self.evaluator is not None and self.progress.evaluated_step != self.progress.step:
            self._evaluate()
        self.phases.switch("export")
        self._writer.wait()
        self.stop.check()
        receipt = self.progress.receipt.document(self.data.order, self.training.seed, self.progress.cursor)
        write_json(self.folder / "receipt.json", receipt)
        if not receipt["balanced"]:
            raise RuntimeError(f"{self.folder / 'receipt.json'}: rows were lost or trained twice")
        export.export_model(
            self.folder / "model",
            self.state.weight_arrays(),
            self.model_settings,
            vocab_size=self.data.vocab_size,
            sequence_length=self.data.sequence_length,
            end_of_document=self.data.tokenizer.end_of_document,
            tokenizer_folder=self.data.tokenizer_folder,
        )
        self._write_samples()
        write_json(self.folder / "summary.json", self._summary(ending))
        progress = self.progress
        return {
            "step": progress.step,
            "cursor": progress.cursor,
            "eval_loss": progress.eval_loss,
            "eval_loss_first": progress.eval_loss_first,
            "train_loss": progress.train_loss,
            "nonpadding_tokens": progress.nonpadding_tokens,
            "processed_tokens": progress.processed_tokens,
        }

    def _write_samples(self) -> None:
        prompts, tokenizer = self.training.sample_prompts, self.data.tokenizer
        samples = []
        if prompts:
            encoded = [list(map(int, ids)) for ids in tokenizer.encode_batch(list(prompts))]
            continuations = generate.generate(
                self.state.model,
                [ids or [tokenizer.end_of_document] for ids in encoded],
                self.training.sample_tokens,
                end_of_document=tokenizer.end_of_document,
                seed=self.training.seed,
            )
            samples = [
                {"prompt": prompt, "text": tokenizer.decode(ids)}
                for prompt, ids in zip(prompts, continuations, strict=True)
            ]
        write_json(self.folder / "samples.json", samples)

    def _summary(self, ending: Ending) -> dict[str, Any]:
        progress = self.progress
        rate = progress.nonpadding_tokens / progress.training_seconds if progress.training_seconds else None
        perplexity = None if progress.eval_loss is None else math.exp(min(progress.eval_loss, 700.0))
        return {
            "ending": {"status": ending.status, "message": ending.message},
            "steps": progress.step,
            "total_steps": self.total_steps,
            "skipped_updates": progress.skipped_updates,
            "parameters": self.counts.parameters,
            "flops_per_token": self.counts.flops_per_token,
            "frozen": self.frozen,
            "devices": {"kind": self.devices.kind, "count": len(self.devices.names), "models": self.devices.models},
            "threads": hardware.usable_cores() if self.training.threads == "auto" else self.training.threads,
            "architecture": export.architecture_name(self.model_settings),
            "compile_seconds": self.compile_seconds,
            "training_seconds": progress.training_seconds,
            "tokens_per_second": rate,
            "checkpoint_stall_seconds": self._stalls,
            "checkpoint_save_seconds": self._writer.save_seconds,
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "eval_loss": progress.eval_loss,
            "eval_loss_first": progress.eval_loss_first,
            "eval_perplexity": perplexity,
            "tensorflow": tf.__version__,
        }


def freeze_choices(training: TrainingSettings, devices: Devices) -> dict[str, Any]:
    """Every `auto` of the training section, resolved for these devices, with reasons. `UserError` if the global batch
    cannot be split so."""
    precision, precision_reason = hardware.choose_precision(
        training, hardware.cpu_flags(), devices.compute_capabilities
    )
    xla, xla_reason = hardware.choose_xla(training)
    if training.workers > 1:
        raise UserError(f"training.workers: {training.workers} workers are not supported yet; set it to 1")
    replicas = len(devices.names)
    if training.global_batch_size % replicas:
        raise UserError(
            f"training.global_batch_size: {training.global_batch_size} cannot be split evenly over {replicas} devices; "
            f"choose a multiple of {replicas}"
        )
    rows = training.global_batch_size // replicas
    micro = rows if training.micro_batch_size == "auto" else int(training.micro_batch_size)
    if rows % micro:
        raise UserError(
            f"training.micro_batch_size: {micro} does not divide the {rows} sequences of a device; choose a divisor"
        )
    return {
        "precision": precision,
        "precision_reason": precision_reason,
        "xla": xla,
        "xla_reason": xla_reason,
        "micro_batch_size": micro,
    }
