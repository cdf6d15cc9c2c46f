"""prepare in parts gives what prepare in one gives, whatever happens to the parts."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from small_mill import Hooks, Mill, make_texts

from tokenmill.errors import Interrupted
from tokenmill.tokens.parts import build, plan
from tokenmill.workspace import Workspace


def mill_at(folder: Path, seed: int = 0) -> Mill:
    mill = Mill(folder / "corpus", Workspace.open(str(folder / "workspace")))
    mill.tokens |= {"group_documents": 8, "processes": 1}
    mill.write({f"{number:02}.txt": text for number, text in enumerate(make_texts(90, seed=seed, longest=20))})
    return mill


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    return mill_at(tmp_path_factory.mktemp("whole")).prepare().snapshot


@settings(max_examples=6, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(4)), lost=st.sets(st.integers(0, 3)), twice=st.sets(st.integers(0, 3)))
def test_any_order_with_batches_lost_or_built_twice_ends_in_the_same_snapshot(
    tmp_path_factory: pytest.TempPathFactory, whole: str, order: list[int], lost: set[int], twice: set[int]
) -> None:
    mill = mill_at(tmp_path_factory.mktemp("parts"))
    planned = plan(mill.request(), Hooks(), batch_bytes=800)
    assert len(planned) >= 4
    assert not list((mill.workspace.root / "shards").glob("*"))
    built = 0
    for number in [*order, *range(4, len(planned))]:
        if number in lost:
            continue
        keys, _ = planned.batches[number]
        assert build(mill.request(), Hooks(), planned.name, number) == len(keys)
        built += len(keys)
        if number in twice:
            assert build(mill.request(), Hooks(), planned.name, number) == 0
    committed = mill.prepare()
    assert committed.snapshot == whole
    assert committed.reused_shards == built
    assert committed.built_shards == sum(len(planned.batches[number][0]) for number in lost)
    assert len(plan(mill.request(), Hooks(), batch_bytes=800)) == 0


def test_two_batches_at_once(tmp_path: Path, whole: str) -> None:
    mill = mill_at(tmp_path)
    planned = plan(mill.request(), Hooks(), batch_bytes=2_000)
    threads = [
        threading.Thread(target=build, args=(mill.request(), Hooks(), planned.name, number))
        for number in range(len(planned))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    committed = mill.prepare()
    assert (committed.snapshot, committed.built_shards) == (whole, 0)


def test_only_what_changed_is_planned(tmp_path: Path) -> None:
    mill = mill_at(tmp_path)
    mill.prepare()
    mill.write({"99.txt": "one more document about grain"})
    planned = plan(mill.request(), Hooks(), batch_bytes=1)
    assert 1 <= len(planned) <= 2


def test_a_corpus_that_changed_after_the_plan_is_planned_again(tmp_path: Path) -> None:
    mill = mill_at(tmp_path)
    planned = plan(mill.request(), Hooks(), batch_bytes=800)
    mill.write({"00.txt": "another beginning"})
    with pytest.raises(Interrupted, match="changed after it was planned"):
        build(mill.request(), Hooks(), planned.name, 0)


def test_a_part_that_is_asked_to_stop_leaves_what_it_finished(tmp_path: Path, whole: str) -> None:
    mill = mill_at(tmp_path)
    planned = plan(mill.request(), Hooks(), batch_bytes=10**9)
    assert len(planned) == 1
    with pytest.raises(Interrupted):
        build(mill.request(), Hooks(stop_after=5), planned.name, 0)
    committed = mill.prepare()
    assert committed.snapshot == whole
    assert committed.reused_shards > 0
