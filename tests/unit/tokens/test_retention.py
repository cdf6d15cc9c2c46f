from __future__ import annotations

import os
import time

from small_mill import Mill, make_texts

from tokenmill.retention import find_garbage, remove
from tokenmill.runs import Run, RunStatus
from tokenmill.tokens.scratch import open_scratch
from tokenmill.workspace import write_json

DAY = 86400.0


def two_snapshots(mill: Mill) -> tuple[str, str]:
    """The second shares most of its shards with the first."""
    mill.tokens |= {"group_documents": 6}
    mill.write({f"{number:02}.txt": text for number, text in enumerate(make_texts(60))})
    first = mill.prepare().snapshot
    mill.write({"30.txt": "another text"})
    return first, mill.prepare().snapshot


def add_run(mill: Mill, name: str, snapshot: str, status: RunStatus) -> None:
    run = Run(id=name, pipeline="test", status=status, created=time.time(), identity={}, snapshot=snapshot)
    write_json(mill.workspace.run(name) / "run.json", run.model_dump(mode="json"))


def found(mill: Mill, **options: float) -> set[tuple[str, str]]:
    options = {"keep_days": 30, "now": time.time() + 100 * DAY, **options}
    return {(item.kind, item.path.name) for item in find_garbage(mill.workspace, **options)}


def shard_names(mill: Mill, snapshot: str) -> set[str]:
    from tokenmill.tokens.manifest import read_manifest

    return {shard.key for shard in read_manifest(mill.workspace.snapshot(snapshot)).shards}


def test_what_an_open_run_needs_is_kept_and_the_rest_goes(mill: Mill) -> None:
    first, second = two_snapshots(mill)
    add_run(mill, "aaaaaaaaaaaa", first, RunStatus.ABANDONED)
    add_run(mill, "bbbbbbbbbbbb", second, RunStatus.OPEN)
    only_first = shard_names(mill, first) - shard_names(mill, second)
    assert only_first
    garbage = found(mill)
    assert {item for item in garbage if item[0] != "plans"} == {
        ("runs", "aaaaaaaaaaaa"),
        ("snapshots", first),
        *(("shards", key) for key in only_first),
    }
    listed = find_garbage(mill.workspace, keep_days=30, now=time.time() + 100 * DAY)
    assert remove(mill.workspace, listed) == sum(item.bytes for item in listed) > 0
    assert mill.prepare().snapshot == second
    assert found(mill) == set()
    assert {path.name for path in (mill.workspace.root / "shards").iterdir()} == shard_names(mill, second)


def test_young_things_and_recent_nights_are_kept(mill: Mill) -> None:
    first, second = two_snapshots(mill)
    assert found(mill, now=time.time()) == set()
    path = mill.workspace.invocation("night") / "invocation.json"
    write_json(path, {"stages": [{"outputs": {"snapshot": first}}]})
    os.utime(path, (time.time() + 90 * DAY,) * 2)
    assert ("snapshots", first) not in found(mill)
    assert ("snapshots", second) in found(mill)
    assert ("snapshots", first) in found(mill, keep_days=5)


def test_what_a_model_or_a_pipeline_names_is_kept(mill: Mill) -> None:
    first, second = two_snapshots(mill)
    add_run(mill, "cccccccccccc", first, RunStatus.COMPLETED)
    write_json(mill.workspace.model("test", 1) / "model.json", {"run_id": "cccccccccccc"})
    write_json(mill.workspace.pipeline("test") / "last_good.json", {"snapshot": second})
    assert {item for item in found(mill) if item[0] != "plans"} == set()


def test_what_a_running_prepare_has_claimed_stays(mill: Mill) -> None:
    two_snapshots(mill)
    listed = find_garbage(mill.workspace, keep_days=30, now=time.time() + 100 * DAY)
    claimed = next(item.path for item in listed if item.kind == "shards")
    with open_scratch(mill.workspace.scratch) as scratch:
        assert scratch.claim(claimed)
        assert ("shards", claimed.name) not in found(mill)
        remove(mill.workspace, listed)
        assert claimed.is_dir()
    assert [path.name for path in (mill.workspace.root / "shards").iterdir()] == [claimed.name]


def test_leftovers_of_dead_writers_go(mill: Mill) -> None:
    two_snapshots(mill)
    leftover = mill.workspace.root / "shards" / ".abc.123"
    leftover.mkdir()
    assert ("shards", ".abc.123") in found(mill)


def test_of_a_run_that_is_not_open_the_newest_committed_checkpoint_stays(mill: Mill) -> None:
    _, snapshot = two_snapshots(mill)
    for name, status in (("aaaaaaaaaaaa", RunStatus.COMPLETED), ("bbbbbbbbbbbb", RunStatus.OPEN)):
        add_run(mill, name, snapshot, status)
        for step in (10, 20, 30):
            folder = mill.workspace.run(name) / "checkpoints" / f"step-{step:08}"
            folder.mkdir(parents=True)
            (folder / "weights").write_bytes(b"x" * 100)
            if step < 30:
                (folder / "COMMIT").write_text("{}")
    # A promoted model names the run, so the run itself stays.
    write_json(mill.workspace.root / "models" / "test" / "1" / "model.json", {"run": "aaaaaaaaaaaa"})
    gone = find_garbage(mill.workspace, keep_days=30, now=time.time() + 100 * DAY)
    names = {item.name for item in gone if item.kind == "checkpoints"}
    assert names == {"aaaaaaaaaaaa/step-00000010", "aaaaaaaaaaaa/step-00000030"}
    remove(mill.workspace, gone)
    left = sorted(path.name for path in (mill.workspace.run("aaaaaaaaaaaa") / "checkpoints").iterdir())
    assert left == ["step-00000020"]
    assert len(list((mill.workspace.run("bbbbbbbbbbbb") / "checkpoints").iterdir())) == 3
