"""A small snapshot in memory, and a session over it: what the trainer's tests train on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.errors import Interrupted
from tokenmill.telemetry.phases import PhaseClock
from tokenmill.training.settings import ModelSettings, TrainingSettings

VOCAB, LENGTH = 96, 16
TINY = ModelSettings(layers=2, d_model=16, heads=2)


@dataclass(frozen=True)
class PackedRows:
    tokens_BS: np.ndarray
    segment_ids_BS: np.ndarray
    positions_BS: np.ndarray
    loss_weights_BS: np.ndarray


def packed(documents: list[list[int]], rows: int, length: int = LENGTH) -> PackedRows:
    """Documents packed first-fit into `rows` rows, each whole in one."""
    shape = rows, length
    tokens, segments, positions = (np.zeros(shape, np.int32) for _ in range(3))
    weights = np.zeros(shape, np.uint8)
    used, count = [0] * rows, [0] * rows
    for document in documents:
        row = next(row for row in range(rows) if used[row] + len(document) <= length)
        at, end = used[row], used[row] + len(document)
        count[row] += 1
        tokens[row, at:end] = document
        segments[row, at:end] = count[row]
        positions[row, at:end] = np.arange(len(document))
        weights[row, at : end - 1] = 1
        used[row] = end
    return PackedRows(tokens, segments, positions, weights)


class FakeSnapshot:
    """Rows of documents in which the next token follows from the last, so that there is something to learn."""

    def __init__(self, train_rows: int = 11, eval_rows: int = 5, seed: int = 7) -> None:
        generator = np.random.default_rng(seed)
        self.splits = {}
        for split, rows in (("train", train_rows), ("eval", eval_rows)):
            documents = []
            for _ in range(rows):
                for size in (int(generator.integers(3, LENGTH - 3)), 3):
                    start = int(generator.integers(1, 30))
                    documents.append([(start + 3 * i) % 90 + 1 for i in range(size - 1)] + [0])
            self.splits[split] = packed(documents, 2 * rows)
        self.train_rows, self.eval_rows = 2 * train_rows, 2 * eval_rows
        self.train_tokens = int(np.count_nonzero(self.splits["train"].segment_ids_BS))

    def rows(self, split: str, numbers: np.ndarray) -> PackedRows:
        whole = self.splits[split]
        names = ("tokens_BS", "segment_ids_BS", "positions_BS", "loss_weights_BS")
        return PackedRows(*(getattr(whole, name)[numbers] for name in names))


def order(rows: int, seed: int, cursor: int, count: int) -> np.ndarray:
    """An endless row of permutations, one an epoch."""
    draws = np.arange(cursor, cursor + count)
    orders = {e: np.random.default_rng([seed, e]).permutation(rows) for e in np.unique(draws // rows).tolist()}
    return np.array([orders[draw // rows][draw % rows] for draw in draws.tolist()], np.int64)


class FakeTokenizer:
    end_of_document = 0

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [[ord(c) % 90 + 1 for c in text] for text in texts]

    def decode(self, ids: Any) -> str:
        return "".join(chr(32 + int(token)) for token in ids)


class FakeStop:
    """Set by `after` looks; the harness's flag without signals."""

    reason = "SIGTERM"

    def __init__(self, after: int | None = None) -> None:
        self.looks, self.limit = 0, after

    def __bool__(self) -> bool:
        self.looks += 1
        return self.limit is not None and self.looks > self.limit

    def listen_again(self) -> None:
        pass

    def check(self) -> None:
        if self.limit is not None and self.looks > self.limit:
            raise Interrupted(self.reason)

    @contextmanager
    def nothing_to_save(self):
        yield


@dataclass
class Ledger:
    records: list[dict[str, Any]] = field(default_factory=list)

    def write(self, kind: str, *, sync: bool = False, **fields: Any) -> None:
        self.records.append({"kind": kind, **fields})


def training(**changes: Any) -> TrainingSettings:
    given: dict[str, Any] = {
        "length": {"steps": 6},
        "global_batch_size": 4,
        "precision": "float32",
        "profile_steps": 0,
        "optimizer": {"learning_rate": 0.01, "warmup_steps": 2},
        "checkpoint": {"every_seconds": 0.001, "keep_last": 100},
        "evaluation": {"max_rows": 5},
        "log_every_seconds": 0.001,
    }
    return TrainingSettings.model_validate(given | changes)


def session(
    folder: Path,
    settings: TrainingSettings | None = None,
    *,
    model: ModelSettings = TINY,
    stop: FakeStop | None = None,
    snapshot: FakeSnapshot | None = None,
    attempt: int = 1,
    ledger: Ledger | None = None,
    devices: int = 1,
    show: Callable[[int, int, str], None] = lambda done, total, detail: None,
) -> Any:
    from tokenmill.training.choices import freeze_choices
    from tokenmill.training.data import Data
    from tokenmill.training.devices import Devices, strategy_for
    from tokenmill.training.session import Session

    settings = settings or training()
    snapshot = snapshot or FakeSnapshot()
    claimed = Devices("cpu", tuple(f"/CPU:{i}" for i in range(devices)), ("CPU",) * devices, ())
    data = Data(
        source=snapshot,
        order=order,
        train_rows=snapshot.train_rows,
        train_tokens=snapshot.train_tokens,
        eval_rows=snapshot.eval_rows,
        vocab_size=VOCAB,
        sequence_length=LENGTH,
        tokenizer=FakeTokenizer(),
    )
    return Session(
        folder=folder,
        attempt=attempt,
        model_settings=model,
        training=settings,
        data=data,
        devices=claimed,
        strategy=strategy_for(claimed, settings.workers),
        frozen=freeze_choices(settings, claimed),
        phases=PhaseClock(),
        stop=FakeStop() if stop is None else stop,
        write_ledger=(ledger or Ledger()).write,
        show=show,
        log=logging.getLogger("test"),
    )
