"""Batches of a snapshot as a `tf.data.Dataset` that starts at any cursor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tokenmill.tokens.order import row_numbers
from tokenmill.tokens.snapshot import Snapshot

_KINDS = {"tokens": tf.int32, "segment_ids": tf.int32, "positions": tf.int32, "loss_weights": tf.float32}
_BLOCK_ROWS = 1024
"""Rows fetched in one call of Python: crossing into Python once a batch would cost more than the rows themselves."""


def train_batches(snapshot: Snapshot, seed: int, global_batch_size: int, cursor: int) -> tf.data.Dataset:
    """An endless dataset of the batches from `cursor` on, in the order law's order.

    Elements: a dict of tokens, segment_ids, positions (int32[B, S]) and loss_weights (float32[B, S]).
    """
    batches = max(1, _BLOCK_ROWS // global_batch_size)
    rows = snapshot.manifest.train.rows
    layout = snapshot.layout
    shape = (batches, global_batch_size, layout.record_bytes)
    shape_BS = (global_batch_size, layout.sequence_length)

    def blocks() -> Iterator[Any]:
        at = cursor
        while True:
            count = batches * global_batch_size
            yield snapshot.records("train", row_numbers(rows, seed, at, count)).reshape(shape)
            at += count

    def decode(block: Any, number: Any) -> dict[str, Any]:
        features = {}
        for name, kind in _KINDS.items():
            stored = layout.dtypes[name]
            bytes_of_value = (stored.itemsize,) if stored.itemsize > 1 else ()
            raw = tf.reshape(block[number, :, layout.feature_slice(name)], shape_BS + bytes_of_value)
            features[name] = tf.cast(tf.bitcast(raw, tf.as_dtype(stored)), kind)
        return features

    def cut(block: Any) -> tf.data.Dataset:
        numbers = tf.data.Dataset.range(batches)
        return numbers.map(lambda number: decode(block, number), num_parallel_calls=2, deterministic=True)

    # One array of bytes crosses from Python to TensorFlow; threads of tf.data cut each feature straight out of it
    # (unbatch() would copy every batch once more).
    dataset = tf.data.Dataset.from_generator(blocks, output_signature=tf.TensorSpec(shape, tf.uint8)).prefetch(1)
    return dataset.flat_map(cut).prefetch(2)
