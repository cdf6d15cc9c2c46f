"""Batches of a snapshot as a `tf.data.Dataset` that starts at any cursor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tokenmill.tokens.order import row_numbers
from tokenmill.tokens.snapshot import Snapshot

_BLOCK_ROWS = 1024
"""Rows fetched in one call of Python: crossing into Python once a batch would cost more than the rows themselves."""


def train_batches(snapshot: Snapshot, seed: int, global_batch_size: int, cursor: int) -> tf.data.Dataset:
    """An endless dataset of the batches from `cursor` on, in the order law's order.

    Elements: a dict of tokens, segment_ids, positions (int32[B, S]) and loss_weights (float32[B, S]).
    """
    batches = max(1, _BLOCK_ROWS // global_batch_size)
    sequence_length = snapshot.manifest.sequence_length
    rows = snapshot.manifest.train.rows
    layout = snapshot.layout
    names = ("tokens", "segment_ids", "positions", "loss_weights")

    def blocks() -> Iterator[tuple[Any, ...]]:
        at = cursor
        while True:
            count = batches * global_batch_size
            records = snapshot.records("train", row_numbers(rows, seed, at, count))
            shape = (batches, global_batch_size, sequence_length)
            yield tuple(np.ascontiguousarray(layout.view(records, name)).reshape(shape) for name in names)
            at += count

    def widen(*columns: Any) -> dict[str, Any]:
        kinds = (tf.int32, tf.int32, tf.int32, tf.float32)
        return {name: tf.cast(column, kind) for name, column, kind in zip(names, columns, kinds, strict=True)}

    signature = tuple(
        tf.TensorSpec((batches, global_batch_size, sequence_length), tf.as_dtype(layout.dtypes[name])) for name in names
    )
    dataset = tf.data.Dataset.from_generator(blocks, output_signature=signature).prefetch(1)
    return dataset.unbatch().map(widen, num_parallel_calls=2, deterministic=True).prefetch(2)
