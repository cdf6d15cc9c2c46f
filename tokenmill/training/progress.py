"""How far a run is: the part of its state that is not on the devices. Plain JSON, kept in each checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tokenmill.training.receipt import Receipt


@dataclass
class Progress:
    """`step`: optimizer updates completed. `cursor`: sequences drawn so far. Counts are since the run's start."""

    receipt: Receipt
    step: int = 0
    cursor: int = 0
    nonpadding_tokens: int = 0
    processed_tokens: int = 0
    """Non-padding and padding, of every draw that reached the optimizer."""
    skipped_updates: int = 0
    training_seconds: float = 0.0
    """In steps and waits for input, over all attempts whose work was kept."""
    train_loss: float | None = None
    """Of the last update that was not skipped, nats a token."""
    eval_loss: float | None = None
    """Of the last evaluation, nats a token."""
    eval_loss_first: float | None = None
    """Before the first update."""
    best_eval_loss: float | None = None
    best_step: int | None = None
    evaluated_step: int | None = None
    evaluations_without_improvement: int = 0
    """In a row, up to the last."""
    consecutive_skips: int = 0
    recent_losses: list[float] = field(default_factory=list)
    """Of the newest updates, by which a spike is known."""
    skipped_draws: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of the cursor (from, to) that were rolled back and are not trained on: one a roll-back."""

    def state(self) -> dict[str, Any]:
        fields = asdict(self, dict_factory=lambda items: {k: v for k, v in items if k != "receipt"})
        return fields | {"receipt": self.receipt.state()}

    @classmethod
    def restore(cls, state: Mapping[str, Any], rows: int) -> Progress:
        fields = dict(state)
        return cls(receipt=Receipt(rows, fields.pop("receipt")), **fields)

    def evaluated(self, loss: float) -> None:
        self.eval_loss, self.evaluated_step = loss, self.step
        if self.step == 0:
            self.eval_loss_first = loss
        if self.best_eval_loss is None or loss < self.best_eval_loss:
            self.best_eval_loss, self.best_step = loss, self.step
            self.evaluations_without_improvement = 0
        else:
            self.evaluations_without_improvement += 1

    def is_skipped(self, cursor: int) -> bool:
        """Whether the batch drawn from `cursor` on is one of those that led to a spike."""
        return any(first <= cursor < end for first, end in self.skipped_draws)
