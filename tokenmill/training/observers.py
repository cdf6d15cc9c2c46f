"""What a run shows while it trains: TensorBoard scalars."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf


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
