"""Rows a second by every road, batches of 64: in the order law's order, or by tf.data alone in file order."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tokenmill.tokens.order import row_numbers
from tokenmill.tokens.snapshot import Snapshot, open_snapshot
from tokenmill.workspace import Workspace

BATCH = 64
BATCHES = 1600


def order(snapshot: Snapshot) -> Iterator[Any]:
    """Row numbers of one batch after the other; computed many batches at a time, as any reader would."""
    ahead = 32 * BATCH
    cursor = 0
    while True:
        numbers = row_numbers(snapshot.manifest.train.rows, 1, cursor, ahead)
        for at in range(0, ahead, BATCH):
            yield numbers[at : at + BATCH]
        cursor += ahead


def records(snapshot: Snapshot) -> Iterator[Any]:
    for numbers in order(snapshot):
        batch = snapshot.records("train", numbers)
        yield snapshot.layout.view(batch, "tokens"), snapshot.layout.view(batch, "segment_ids")


def rows(snapshot: Snapshot) -> Iterator[Any]:
    for numbers in order(snapshot):
        yield snapshot.rows("train", numbers)


def parsed(snapshot: Snapshot, *, batch_first: bool) -> Iterator[Any]:
    import tensorflow as tf

    layout = snapshot.layout
    spec = {name: tf.io.FixedLenFeature((), tf.string) for name in layout.dtypes}

    def decode(example: dict[str, Any]) -> dict[str, Any]:
        return {name: tf.io.decode_raw(value, tf.as_dtype(layout.dtypes[name])) for name, value in example.items()}

    data = tf.data.TFRecordDataset([str(path) for path in snapshot.shard_paths()]).repeat()
    if batch_first:
        data = data.batch(BATCH).map(lambda raw: decode(tf.io.parse_example(raw, spec)), num_parallel_calls=2)
    else:
        data = data.map(lambda raw: decode(tf.io.parse_single_example(raw, spec)), num_parallel_calls=2).batch(BATCH)
    return iter(data.prefetch(2))


def train_batches(snapshot: Snapshot) -> Iterator[Any]:
    from tokenmill.tokens.dataset import train_batches

    return iter(train_batches(snapshot, 1, BATCH, 0))


def rate(make: Callable[[], Iterator[Any]], batches: int) -> float:
    batch = make()
    for _ in range(100):
        next(batch)
    start = time.perf_counter()
    for _ in range(batches):
        next(batch)
    return batches * BATCH / (time.perf_counter() - start)


def main() -> None:
    workspace, snapshot_id, runs, out = sys.argv[1:]
    snapshot = open_snapshot(Workspace.open(workspace), snapshot_id)
    roads: dict[str, tuple[Callable[[], Iterator[Any]], int]] = {
        "records": (lambda: records(snapshot), BATCHES),
        "rows": (lambda: rows(snapshot), BATCHES),
        "train_batches": (lambda: train_batches(snapshot), BATCHES),
        "tf.data: parse, batch": (lambda: parsed(snapshot, batch_first=False), BATCHES // 4),
        "tf.data: batch, parse": (lambda: parsed(snapshot, batch_first=True), BATCHES),
    }
    rates: dict[str, list[float]] = {name: [] for name in roads}
    for _ in range(int(runs)):
        for name, (make, batches) in roads.items():
            rates[name].append(rate(make, batches))
    Path(out).write_text(json.dumps(rates))


if __name__ == "__main__":
    main()
