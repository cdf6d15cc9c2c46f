"""When and how the state of a run reaches its checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tokenmill.telemetry.phases import PhaseClock
from tokenmill.training import checkpoint, hooks
from tokenmill.training.checkpoint import Checkpoint, CheckpointWriter
from tokenmill.training.progress import Progress
from tokenmill.training.settings import CheckpointSettings
from tokenmill.training.state import TrainState


class Saver:
    """Copies the state between two steps and leaves the writing to a thread."""

    def __init__(
        self,
        root: Path,
        settings: CheckpointSettings,
        state: TrainState,
        *,
        phases: PhaseClock,
        write_ledger: Callable[..., None],
        automatic_interval: Callable[[float], float],
    ) -> None:
        """`automatic_interval` answers where the pipeline says `auto`, from the measured seconds of a save."""
        self._settings, self._state = settings, state
        self._phases, self._write_ledger = phases, write_ledger
        self._automatic_interval = automatic_interval
        self._writer = CheckpointWriter(root, settings, on_commit=self._committed)
        self.stalls: list[float] = []
        """Seconds that training stood still, a save each."""

    @property
    def save_seconds(self) -> float:
        return self._writer.save_seconds

    def interval(self) -> float:
        """Seconds between two checkpoints, from now on."""
        setting = self._settings.every_seconds
        return self._automatic_interval(self._writer.save_seconds) if setting == "auto" else setting

    def restore(self, event: str = "restored") -> Checkpoint | None:
        """Load the newest checkpoint that verifies into the state; none if there is none."""
        found = checkpoint.newest_valid(self._writer.root)
        if found is not None:
            self._state.load_weights(found.weights)
            self._state.load_optimizer(found.optimizer)
            self._write_ledger("event", name=event, step=found.step)
        return found

    def discard_from(self, cursor: int) -> None:
        """Remove the checkpoints that hold an update drawn from `cursor` on, the newest first."""
        self._writer.wait()
        while (found := checkpoint.newest_valid(self._writer.root)) is not None and found.state["cursor"] > cursor:
            checkpoint.remove(self._writer.root, found.step)

    def save(self, progress: Progress) -> None:
        """Copy the state and start writing it; training stands still for the copy (and an earlier write) only."""
        started = time.monotonic()
        with self._phases.phase("checkpoint_save"):
            self._writer.wait()
            if progress.step in checkpoint.steps(self._writer.root)[-1:]:
                return
            hooks.write_counts(self._write_ledger, progress)
            state = self._state
            moment = Checkpoint(progress.step, state.weight_arrays(), state.optimizer_arrays(), progress.state())
            self._writer.save(moment, progress.best_step)
        self.stalls.append(time.monotonic() - started)

    def wait(self) -> None:
        self._writer.wait()

    def _committed(self, step: int, seconds: float) -> None:
        self._write_ledger("checkpoint", sync=True, step=step, seconds=seconds)
