"""The workspace on an object store, against a real HTTP server with injected faults."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.object_store import FaultyProxy, object_store
from tests.orchestration import nights
from tokenmill.epochs import EpochLease, LeaseLostError
from tokenmill.errors import UserError
from tokenmill.mirror import Mirror
from tokenmill.protocol import StageName
from tokenmill.store import Store, StoreUnreachableError
from tokenmill.training import checkpoint
from tokenmill.training.checkpoint import Checkpoint

pytestmark = pytest.mark.integration

BUCKET = f"workspace-{os.getpid()}"


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultyProxy]:
    with object_store(BUCKET) as found:
        yield found


@pytest.fixture
def url(proxy: FaultyProxy, request: pytest.FixtureRequest) -> Iterator[str]:
    yield f"s3://{BUCKET}/{request.node.name}"
    proxy.down = False
    proxy.faults.clear()


def owner(stage: str) -> dict[str, Any]:
    return {"host": stage, "pid": 1, "stage": stage, "token": stage}


def lease(store: Store, stage: str, seconds: float = 1.0) -> EpochLease:
    return EpochLease(store, "runs/r", owner(stage), lease_seconds=seconds)


@contextmanager
def beating(held: EpochLease) -> Iterator[None]:
    done = threading.Event()

    def beat() -> None:
        while not done.wait(0.02):
            held.beat()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def small_checkpoint(step: int) -> Checkpoint:
    return Checkpoint(step, {"w": np.full(4, step, np.float32)}, {"m": np.zeros(4, np.float32)}, {"cursor": step})


@pytest.mark.parametrize("fault", ["500", "slow", "cut", "lost"])
def test_calls_outlast_faults(proxy: FaultyProxy, url: str, fault: str, tmp_path: Path) -> None:
    store = Store(url)
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    for call in (
        lambda: store.put("k", b"1"),
        lambda: store.get("k"),
        lambda: store.upload(tmp_path / "a", "a"),
        lambda: store.fetch("a", tmp_path / "b"),
        lambda: store.list(""),
        lambda: store.create("once", b"mine"),
        lambda: store.delete(["k"]),
    ):
        proxy.faults.extend([fault, fault])
        call()
    assert (tmp_path / "b").read_bytes() == b"x" * 100_000
    assert store.get("once") == b"mine"
    assert set(store.list("")) == {"a", "once"}
    with pytest.raises(FileNotFoundError):
        store.get("k")


def test_a_store_that_stays_away_is_one_sentence_and_wrong_words_leave_nothing(
    proxy: FaultyProxy, url: str, tmp_path: Path
) -> None:
    store = Store(url, patience_seconds=0.3)
    proxy.down = True
    with pytest.raises(StoreUnreachableError, match="cannot read k in s3://"):
        store.fetch("k", tmp_path / "k")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="cannot be used"):
        Store("nonsense://bucket")


def test_of_many_creators_one_wins(url: str) -> None:
    stores = [Store(url) for _ in range(6)]
    won: list[bool] = []

    def create(number: int) -> None:
        won.append(stores[number].create("x", b"%d" % number))

    threads = [threading.Thread(target=create, args=(number,)) for number in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 5 + [True]


def test_a_living_owner_keeps_the_lease_and_a_silent_one_loses_it(url: str) -> None:
    first, second = lease(Store(url), "a"), lease(Store(url), "b")
    first.acquire()
    with beating(first), pytest.raises(UserError, match="runs/r is worked on by process 1 on a; wait for it"):
        second.acquire()
    started = time.monotonic()
    second.acquire()
    assert time.monotonic() - started >= 1.0
    assert second.number == 2
    with pytest.raises(LeaseLostError, match="held by process 1 on b"):
        first.beat()


def test_a_released_lease_and_one_of_the_same_stage_folder_are_free_at_once(url: str) -> None:
    store = Store(url)
    for stage, release in (("a", True), ("b", False), ("b", False)):
        held = lease(store, stage, seconds=600)
        held.acquire()
        if release:
            held.release()
    assert held.number == 3


def test_clocks_an_hour_apart_do_no_harm(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = lease(Store(url), "a"), lease(Store(url), "b")
    first.acquire()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    with beating(first), pytest.raises(UserError, match="worked on by"):
        second.acquire()


def test_what_a_thawed_owner_puts_down_does_not_count(url: str, tmp_path: Path) -> None:
    store = Store(url)
    old, new = Mirror(tmp_path / "old", store), Mirror(tmp_path / "new", Store(url))
    frozen = lease(store, "a")
    frozen.acquire()
    frozen.declare(0)
    root = tmp_path / "old" / "runs" / "r" / "checkpoints"
    checkpoint.write(root, small_checkpoint(10))
    assert old.push_checkpoints("r", frozen) == [10]
    taken = lease(Store(url), "b")
    taken.acquire()
    assert new.pull_checkpoint("r") == 10
    taken.declare(10)

    checkpoint.write(root, small_checkpoint(20))
    with pytest.raises(LeaseLostError):
        old.push_checkpoints("r", frozen)
    # Frozen between its last look at the lease and its COMMIT:
    store.put("runs/r/checkpoints/step-00000020.00000001/COMMIT", json.dumps({"step": 20, "epoch": 1}).encode())
    assert new.committed("r") == {(10, 1)}
    assert Mirror(tmp_path / "third", store).pull_checkpoint("r") == 10
    old.drop_uncommitted("r")
    assert checkpoint.steps(root) == [10]


def test_a_broken_checkpoint_here_is_replaced_by_the_stores_good_copy(url: str, tmp_path: Path) -> None:
    mirror = Mirror(tmp_path / "a", Store(url))
    held = lease(mirror.store, "a")
    held.acquire()
    root = tmp_path / "a" / "runs" / "r" / "checkpoints"
    for step in (10, 20):
        checkpoint.write(root, small_checkpoint(step))
    mirror.push_checkpoints("r", held)
    newest = checkpoint.folder_of(root, 20)
    (newest / "weights.safetensors").write_bytes(b"flipped")
    assert mirror.pull_checkpoint("r") == 20
    found = checkpoint.newest_valid(root)
    assert found is not None
    assert found.weights["w"].tolist() == [20] * 4
    assert [path.name for path in root.glob("broken-*")]
    mirror.push_checkpoints("r", held)
    assert mirror.committed("r") == {(10, 1), (20, 1)}


def test_an_empty_disk_gets_the_newest_checkpoint_that_is_whole(url: str, tmp_path: Path) -> None:
    store = Store(url)
    mirror = Mirror(tmp_path / "a", store)
    held = lease(store, "a")
    held.acquire()
    root = tmp_path / "a" / "runs" / "r" / "checkpoints"
    for step in (10, 20, 30):
        checkpoint.write(root, small_checkpoint(step))
    assert mirror.push_checkpoints("r", held) == [30, 20, 10]
    store.put("runs/r/checkpoints/step-00000030.00000001/weights.safetensors", b"flipped")
    store.put("runs/r/checkpoints/step-00000040.00000001/weights.safetensors", b"no COMMIT")
    empty = Mirror(tmp_path / "b", store)
    assert empty.pull_checkpoint("r") == 20
    found = checkpoint.newest_valid(tmp_path / "b" / "runs" / "r" / "checkpoints")
    assert found is not None
    assert found.weights["w"].tolist() == [20] * 4
    assert empty.committed("r") == {(10, 1), (20, 1)}  # the broken one is set aside for all

    checkpoint.remove(root, 10)
    mirror.push_checkpoints("r", held)
    assert mirror.committed("r") == {(20, 1), (30, 1)}  # retention here is retention there; 30 is whole again


def test_publishing_and_bringing_agree(url: str, tmp_path: Path) -> None:
    store = Store(url)
    here, there = Mirror(tmp_path / "a", store), Mirror(tmp_path / "b", Store(url))
    ledger = tmp_path / "a" / "invocations" / "i" / "ledger" / "01.jsonl"
    ledger.parent.mkdir(parents=True)
    ledger.write_text("one\n")
    (tmp_path / "a" / "runs" / "r").mkdir(parents=True)
    (tmp_path / "a" / "runs" / "r" / "run.json").write_text("1")
    (tmp_path / "a" / "runs" / "r" / ".hidden").write_text("no")
    here.push()
    there.pull_small()
    copy = tmp_path / "b" / "invocations" / "i" / "ledger" / "01.jsonl"
    assert copy.read_text() == "one\n"
    assert not (tmp_path / "b" / "runs" / "r" / ".hidden").exists()

    (tmp_path / "b" / "runs" / "r" / "run.json").write_text("2")
    there.push()
    (tmp_path / "a" / "runs" / "r" / "run.json").write_text("changed here too")
    ledger.write_text("one\ntwo\n")  # the night was killed before these lines were published
    here.pull_small()
    assert (tmp_path / "a" / "runs" / "r" / "run.json").read_text() == "2"
    assert ledger.read_text() == "one\ntwo\n"
    here.push()
    there.pull_small()
    assert copy.read_text() == "one\ntwo\n"


def test_a_night_goes_on_from_an_empty_disk(proxy: FaultyProxy, url: str, tmp_path: Path) -> None:
    first = {"workspace": url, "stage_folder": str(tmp_path / "first")}
    nights.order(tmp_path / "first", "train", "preempt", workspace=tmp_path / "first")
    with nights.fake_night(tmp_path, changes=first) as night:
        proxy.faults.extend(["500", "cut", "slow"] * 3)
        snapshot = prepare(night)
        night.open_run(snapshot, "validations/v")
        assert night.attempt(StageName.TRAIN).reason == "interrupted"
        run = night.run
    assert run is not None
    second = {"workspace": url, "stage_folder": str(tmp_path / "second")}
    with nights.fake_night(tmp_path, changes=second) as night:
        assert night.run is not None
        assert (night.run.id, night.run.attempts, night.invocation.step) == (run.id, 1, 10)
        assert night.attempt(StageName.TRAIN).reason == "completed"
        assert night.run.committed_step == 20
    ledgers = sorted(path.name for path in (tmp_path / "second" / "runs" / run.id / "ledger").iterdir())
    assert ledgers == ["0001.jsonl", "0002.jsonl"]
    commits = [key for key in Store(url).list(f"runs/{run.id}/checkpoints") if key.endswith("/COMMIT")]
    assert [key.split("/")[3] for key in commits] == ["step-00000010.00000001", "step-00000020.00000002"]


def prepare(night: Any) -> str:
    night.attempt(StageName.PREPARE)
    return str(night.outputs[StageName.PREPARE]["snapshot"])
