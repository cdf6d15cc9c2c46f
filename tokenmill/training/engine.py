"""What an attempt computes with: strategy, state, compiled updates and evaluation, built from the frozen choices."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tokenmill.errors import UserError
from tokenmill.training import counts, export
from tokenmill.training.crew import Crew
from tokenmill.training.data import Data
from tokenmill.training.evaluation import Evaluator
from tokenmill.training.model import Decoder
from tokenmill.training.schedule import total_steps
from tokenmill.training.settings import ModelSettings, TrainingSettings
from tokenmill.training.state import TrainState
from tokenmill.training.update import Updater


class Engine:
    """Made once an attempt; `compile` before the first update, so that its time stands apart."""

    def __init__(
        self,
        model: ModelSettings,
        training: TrainingSettings,
        data: Data,
        strategy: Any,
        frozen: dict[str, Any],
        worker: int = 0,
    ) -> None:
        """`UserError` if there is nothing to train on."""
        started = time.monotonic()
        if data.train_rows < 1:
            raise UserError(
                "training: the snapshot has no train rows; enlarge the corpus or lower tokens.eval_fraction"
            )
        self._model_settings = model
        self.strategy = strategy
        self.crew = Crew(self.strategy, worker, training.workers)
        self.replicas = int(self.strategy.num_replicas_in_sync)
        micro_batch_size, precision = int(frozen["micro_batch_size"]), str(frozen["precision"])
        with self.strategy.scope():
            decoder = Decoder(
                model, data.vocab_size, data.sequence_length, precision=precision, recompute=training.recompute
            )
            self.state = TrainState(decoder, seed=training.seed, dynamic_loss_scale=precision == "float16")
        self.updater = Updater(
            self.state,
            training.optimizer,
            self.strategy,
            rows_per_replica=training.global_batch_size // self.replicas,
            micro_batch_size=micro_batch_size,
            seed=training.seed,
            z_loss=training.z_loss,
            jit_compile=frozen["xla"] == "on",
        )
        self.total_steps = total_steps(
            training.length,
            rows=data.train_rows,
            tokens=data.train_tokens,
            global_batch_size=training.global_batch_size,
        )
        self.counts = counts.count(model, vocab_size=data.vocab_size, sequence_length=data.sequence_length)
        self.evaluator: Evaluator | None = None
        if rows := min(data.eval_rows, training.evaluation.max_rows):
            self.evaluator = Evaluator(
                self.state, data.source, rows=rows, batch_size=micro_batch_size, count_bytes=data.text_bytes
            )
        self.compile_seconds = time.monotonic() - started

    def start_from(self, folder: Path) -> None:
        """Load the weights of an exported model; `UserError` if it is another model or broken."""
        try:
            self.state.load_weights(export.read_model(folder, self._model_settings))
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"training.init_from: the model in {folder} does not fit the pipeline's model and tokenizer ({error})"
            ) from None

    def reset(self, seed: int) -> None:
        """Back to the state of a new run."""
        self.state.reset(seed)

    def compile(self) -> None:
        started = time.monotonic()
        self.updater.compile()
        if self.evaluator is not None:
            self.evaluator.compile()
        self.compile_seconds += time.monotonic() - started
