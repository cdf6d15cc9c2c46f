"""The trainer's stop before the budget is passed, as a hook of its loop. Imports TensorFlow through the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenmill.stages.forecast import BudgetWatch
from tokenmill.training.loop import Ending, Hook, StepInfo


class BudgetHook(Hook):
    """Ends the run as stopped by its budget; says once, in the log and the ledger, when it comes near."""

    def __init__(
        self, watch: BudgetWatch, tokens_in_all: int, warn: Callable[[str], None], write_ledger: Callable[..., Any]
    ) -> None:
        """`tokens_in_all`: processed tokens of the whole run."""
        self._watch = watch
        self._tokens_in_all = tokens_in_all
        self._warn = warn
        self._write_ledger = write_ledger
        self._warned = False

    def after(self, info: StepInfo) -> Ending | None:
        look = self._watch.look(info.progress.processed_tokens, self._tokens_in_all)
        if look.state == "stop":
            return Ending("stopped_by_budget", f"{look.sentence}; stopped at step {info.step:,}")
        if look.state == "warn" and not self._warned:
            self._warned = True
            self._warn(look.sentence)
            self._write_ledger("event", sync=True, name="budget_warning", sentence=look.sentence)
        return None
