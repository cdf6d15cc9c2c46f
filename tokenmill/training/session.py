"""One attempt at a run: builds the engine, restores, trains, saves, and leaves what the report needs.

The folder of a run:

    checkpoints/  model/  tensorboard/  profile/
    metrics.jsonl  evaluation.jsonl  samples.json  receipt.json  summary.json
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.errors import Interrupted, UserError
from tokenmill.telemetry.phases import PhaseClock
from tokenmill.training import ending, hooks
from tokenmill.training.batches import BatchReader
from tokenmill.training.data import Data
from tokenmill.training.devices import Devices
from tokenmill.training.engine import Engine
from tokenmill.training.evaluation import Evaluation
from tokenmill.training.loop import Ending, Hook, Loop, LossSpike, StopSignal
from tokenmill.training.observers import Scalars, write_texts
from tokenmill.training.progress import Progress
from tokenmill.training.receipt import Receipt
from tokenmill.training.saving import Saver
from tokenmill.training.schedule import learning_rate
from tokenmill.training.settings import ModelSettings, TrainingSettings
from tokenmill.workspace import write_json

DEFAULT_CHECKPOINT_SECONDS = 60.0


@dataclass
class Session:
    """`frozen` holds the choices of `choices.freeze_choices`, made at the run's first attempt."""

    folder: Path
    attempt: int
    model_settings: ModelSettings
    training: TrainingSettings
    data: Data
    devices: Devices
    strategy: Any
    """Of the devices and workers; see `devices.strategy_for`."""
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
    peak_flops_per_second: float | None = None
    """Of all devices together, for `mfu`; None where no peak is known."""
    automatic_interval: Callable[[float], float] = lambda save_seconds: DEFAULT_CHECKPOINT_SECONDS
    """Seconds between checkpoints where the pipeline says `auto`, from the measured seconds of a save."""
    worker: int = 0
    """This process among the `training.workers`; 0 is the chief, who alone writes to `folder`."""

    def run(self) -> tuple[Ending, dict[str, Any]]:
        """Train to the run's end; returns why it ended and the stage's outputs.

        Raises `Interrupted` once everything is committed, or `UserError`.
        """
        with self.stop.nothing_to_save():
            self._set_up()
        how = self._train()
        while how is None:
            how = self._train()
        try:
            if self.engine.crew.is_chief:
                self._conclude(how)
        finally:
            # A worker that left would look dead to a chief that still saves.
            self.engine.crew.wait_for_all()
        if how.status == "interrupted":
            raise Interrupted(f"{how.message}; everything is committed at step {self.progress.step:,}")
        return how, ending.outputs(self.progress)

    def _conclude(self, how: Ending) -> None:
        self._save()
        if how.status == "interrupted":
            self._saver.wait()
        else:
            self._finish(how)

    # -- setting up

    def _set_up(self) -> None:
        self.phases.switch("compile")
        self.engine = Engine(self.model_settings, self.training, self.data, self.strategy, self.frozen, self.worker)
        self.progress = Progress(Receipt(self.data.train_rows))
        self._stop_conditions = hooks.StopConditions(self.training)
        if self.engine.crew.is_chief:
            self._open_folder()
            self._restore()
        self._join_chief()
        self.engine.compile()
        self.log.info("built and compiled in %.1f s", self.engine.compile_seconds)

    def _open_folder(self) -> None:
        self._saver = Saver(
            self.folder / "checkpoints",
            self.training.checkpoint,
            self.engine.state,
            phases=self.phases,
            write_ledger=self.write_ledger,
            automatic_interval=self.automatic_interval,
        )
        self._evaluations = hooks.JsonLines(self.folder / "evaluation.jsonl")

    def _restore(self, event: str = "restored") -> None:
        with self.phases.phase("checkpoint_restore"):
            found = self._saver.restore(event)
            if found is not None:
                self.progress = Progress.restore(found.state, self.data.train_rows)
                self.log.info("going on from step %s", f"{found.step:,}")
            elif self.starting_model is not None:
                self.engine.start_from(self.starting_model)
                self.log.info("starting from the model in %s", self.starting_model)

    def _join_chief(self) -> None:
        """Begin where the chief begins."""
        crew = self.engine.crew
        if crew.size > 1:
            crew.share_state(self.engine.state)
            self.stop.listen_again()
            state = json.loads(crew.share_text(json.dumps(self.progress.state())))
            self.progress = Progress.restore(state, self.data.train_rows)

    def _reader(self) -> BatchReader:
        return BatchReader(
            self.data.source,
            self.data.order,
            rows=self.data.train_rows,
            seed=self.training.seed,
            global_batch_size=self.training.global_batch_size,
            cursor=self.progress.cursor,
            share=(self.worker, self.training.workers),
        )

    # -- training

    def _train(self) -> Ending | None:
        """Until an ending; none if a loss spiked and the run has been rolled back."""
        reader = self._reader()
        try:
            return self._loop(reader).run(self._begin())
        except LossSpike as spike:
            self._roll_back(spike)
            return None
        finally:
            reader.close()
            hooks.write_counts(self.write_ledger, self.progress)

    def _loop(self, reader: BatchReader) -> Loop:
        return Loop(
            updater=self.engine.updater,
            reader=reader,
            progress=self.progress,
            learning_rate=lambda step: learning_rate(self.training.optimizer, step, self.engine.total_steps),
            total_steps=self.engine.total_steps,
            hooks=self._hooks() if self.engine.crew.is_chief else [hooks.LedgerHook(self.write_ledger)],
            phases=self.phases,
            stop=self.stop,
            agree=self.engine.crew.agree,
            spikes=self.training.loss_spike,
        )

    def _roll_back(self, spike: LossSpike) -> None:
        """To before the batches that led to the spike, which the run goes on without. Each worker sees the same loss.

        What comes out is the same whichever checkpoint there is to go back to, since training repeats to the bit.
        """
        settings = self.training.loss_spike
        assert settings is not None
        batch = self.training.global_batch_size
        skipped = max(0, spike.cursor - (settings.skip_batches - 1) * batch), spike.cursor + batch
        ranges = [*self.progress.skipped_draws, skipped]
        sentence = f"{spike}, at row {spike.cursor:,} of the order"
        if len(ranges) > settings.max_rollbacks:
            raise UserError(
                f"training: {sentence}, after {len(ranges) - 1} roll-backs (loss_spike.max_rollbacks); choose a lower "
                "optimizer.learning_rate, or look at the documents there"
            )
        self.log.warning("%s: rolling back, and skipping rows %s to %s", sentence, *(f"{row:,}" for row in skipped))
        self.write_ledger("event", name="rolled_back", step=self.progress.step, cursor=spike.cursor)
        self.progress = Progress(Receipt(self.data.train_rows))
        if self.engine.crew.is_chief:
            self._saver.discard_from(skipped[0])
            self.engine.reset(self.training.seed)
            self._restore("rolled_back_to")
        self._join_chief()
        self.progress.skipped_draws = ranges

    def _begin(self) -> Ending | None:
        if not self.engine.crew.is_chief:
            return None
        if self.progress.step == 0 and self.engine.evaluator is not None:
            self._evaluate()
        return self._stop_conditions.at_start(self.progress)

    def _hooks(self) -> list[Hook]:
        """The chief's, in the order in which they are called."""
        settings = self.training
        scalars = Scalars(self.folder / "tensorboard", self._scalars)
        used: list[Hook] = [
            hooks.LedgerHook(self.write_ledger),
            hooks.MetricsHook(
                self.folder,
                every_seconds=settings.log_every_seconds,
                attempt=self.attempt,
                total_steps=self.engine.total_steps,
                flops_per_token=self.engine.counts.flops_per_token,
                peak_flops_per_second=self.peak_flops_per_second,
                show=self.show,
                scalars=scalars.write,
            ),
        ]
        if settings.evaluation.every_steps is not None and self.engine.evaluator is not None:
            used.append(hooks.EvaluationHook(settings.evaluation.every_steps, self._evaluate))
        used += [hooks.CheckpointHook(self._saver.interval, self._save), self._stop_conditions, *self.more_hooks]
        return used

    def _scalars(self) -> dict[str, float]:
        """For TensorBoard, besides the metrics."""
        found = {f"phases/{name}_seconds": seconds for name, seconds in self.phases.totals().items()}
        if self.engine.state.loss_scale is not None:
            found["loss_scale"] = float(self.engine.state.loss_scale.numpy())
        return found

    def _evaluate(self) -> Ending | None:
        """Record the loss on held-out rows. An interruption in between ends the loop at its next look."""
        assert self.engine.evaluator is not None
        with self.phases.phase("evaluate"):
            try:
                found = self.engine.evaluator.run(self.stop.check)
            except Interrupted:
                return None
            self.progress.evaluated(found.loss)
            self._record(found)
        return self._stop_conditions.after_evaluation(self.progress)

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

    def _save(self) -> None:
        self._saver.save(self.progress)

    # -- the end

    def _finish(self, how: Ending) -> None:
        if self.engine.evaluator is not None and self.progress.evaluated_step != self.progress.step:
            self._evaluate()
        self.phases.switch("export")
        self._saver.wait()
        self.stop.check()
        ending.write_receipt(self.folder, self.progress, self.data, self.training)
        ending.write_model(self.folder, self.engine, self.model_settings, self.data)
        samples = ending.write_samples(self.folder, self.engine, self.data, self.training)
        write_texts(self.folder / "tensorboard", self.progress.step, samples)
        summary = ending.summary(
            how,
            self.progress,
            self.engine,
            self._saver,
            model=self.model_settings,
            training=self.training,
            devices=self.devices,
            frozen=self.frozen,
        )
        write_json(self.folder / "summary.json", summary)
