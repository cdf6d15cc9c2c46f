"""What a run shows while it trains: TensorBoard scalars and profiles."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from tokenmill.telemetry.phases import PhaseClock


class Scalars:
    """Values by name, at a step, for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        self._writer = tf.summary.create_file_writer(str(folder))

    def write(self, step: int, values: dict[str, float]) -> None:
        with self._writer.as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(name, value)

    def close(self) -> None:
        self._writer.close()


class Profiler:
    """TensorFlow's profiler over a window of updates."""

    def __init__(self, folder: Path, phases: PhaseClock) -> None:
        self._folder, self._phases = folder, phases

    def start(self) -> None:
        self._phases.switch("profile")
        tf.profiler.experimental.start(str(self._folder))

    def finish(self) -> None:
        with self._phases.phase("profile"):
            tf.profiler.experimental.stop()
