"""What a run shows while it trains: TensorBoard scalars and texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import tensorflow as tf


class Scalars:
    """Values by name, at a step, for TensorBoard. `more` gives what is read at each writing; texts come at the end."""

    def __init__(self, folder: Path, more: Callable[[], dict[str, float]] = dict) -> None:
        self._writer = tf.summary.create_file_writer(str(folder))
        self._more = more

    def write(self, step: int, values: dict[str, float]) -> None:
        with self._writer.as_default(step=step):
            for name, value in (values | self._more()).items():
                tf.summary.scalar(name, value)
        self._writer.flush()


def write_texts(folder: Path, step: int, samples: Sequence[dict[str, str]]) -> None:
    """What the model writes, as TensorBoard's texts: prompt and continuation in a block that neither can end."""
    with tf.summary.create_file_writer(str(folder)).as_default(step=step):
        for number, sample in enumerate(samples, 1):
            tf.summary.text(f"samples/{number}", f"**{sample['prompt']}**\n\n````text\n{sample['text']}\n````")
