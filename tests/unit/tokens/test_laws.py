"""The laws of the workspace: nothing half there, same inputs same bytes, change pays for what changed."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_mill import Mill, make_texts

from tokenmill.tokens.index_cache import IndexCache
from tokenmill.tokens.scratch import open_scratch, shards_in_use
from tokenmill.tokens.snapshot import open_snapshot
from tokenmill.workspace import Workspace


def tree(root: Path, *names: str) -> dict[str, str]:
    """Hash of every file of the shards, snapshots and tokenizers; provenance is the one file that may differ."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for name in (names or ("shards", "snapshots", "tokenizers"))
        for path in sorted((root / name).rglob("*"))
        if path.is_file() and path.name != "provenance.json"
    }


def json_lines(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"text": text, "id": text[:9]}).encode() + b"\n" for text in texts)


def test_same_inputs_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes, another place, another order of creation, another time: the same bytes."""
    texts = make_texts(400)
    files = {f"part-{part}.jsonl": json_lines(texts[part::4]) for part in range(4)}
    trees = []
    for number, processes in enumerate([1, 2, 3]):
        root = tmp_path / f"elsewhere-{number}"
        (root / "corpus").mkdir(parents=True)
        mill = Mill(root / "corpus", Workspace.open(str(root / "workspace")))
        mill.write(dict(sorted(files.items(), reverse=number % 2 == 1)))
        mill.tokens |= {"group_documents": 20, "processes": processes}
        mill.prepare()
        trees.append(tree(mill.workspace.root))
    assert trees[0] == trees[1] == trees[2]
    assert len(trees[0]) > 40


CHANGES = st.lists(
    st.tuples(st.sampled_from(["edit", "append", "remove", "insert", "rename"]), st.integers(0, 10**6)),
    min_size=1,
    max_size=3,
)


@given(CHANGES)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_history_ends_as_a_clean_build(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, int]]
) -> None:
    """Night after night of changes gives the shards and the snapshot that a first build of the last corpus gives."""
    folder = tmp_path_factory.mktemp("history")
    texts = make_texts(120)
    files = {f"f{number:02}": texts[number::6] for number in range(6)}
    mill = Mill(folder / "corpus", Workspace.open(str(folder / "workspace")))
    mill.tokens |= {"group_documents": 8}
    mill.write({f"{name}.jsonl": json_lines(part) for name, part in files.items()})
    mill.prepare()
    for number, (change, value) in enumerate(changes):
        name = sorted(files)[value % len(files)]
        new = make_texts(2, seed=1000 + number)
        if change == "edit":
            files[name] = [*files[name][:3], new[0], *files[name][4:]]
        elif change == "append":
            files[name] = files[name] + new
        elif change == "insert":
            files[f"f{value % 50:02}b"] = new
        elif len(files) > 1:
            moved = files.pop(name)
            if change == "rename":
                files[f"{name}x"] = moved
        for path in mill.corpus_root.iterdir():
            path.unlink()
        mill.write({f"{name}.jsonl": json_lines(part) for name, part in files.items()})
        last = mill.prepare()
    clean = Mill(mill.corpus_root, Workspace.open(str(folder / "clean")), tokens=mill.tokens)
    shutil.copytree(mill.workspace.root / "tokenizers", clean.workspace.root / "tokenizers")
    shutil.copytree(mill.workspace.root / "pipelines", clean.workspace.root / "pipelines")
    built = clean.prepare()
    assert built.snapshot == last.snapshot
    everything = tree(mill.workspace.root)
    assert tree(clean.workspace.root).items() <= everything.items()


def test_change_pays_for_what_changed(mill: Mill) -> None:
    texts = make_texts(3000, longest=12)
    parts = {f"part-{number}.jsonl": texts[number * 300 : (number + 1) * 300] for number in range(10)}
    mill.tokens |= {"group_documents": 50, "processes": 1}
    mill.write({name: json_lines(part) for name, part in parts.items()})
    first = mill.prepare()
    total = first.built_shards
    assert total > 30

    (mill.corpus_root / "part-3.jsonl").rename(mill.corpus_root / "part-3b.jsonl")
    renamed = mill.prepare()
    assert renamed.built_shards == 0  # the order is kept: nothing is tokenised again
    assert renamed.snapshot != first.snapshot  # but sources.parquet names another file

    mill.write({"part-5.jsonl": json_lines([*parts["part-5.jsonl"][:150], "quite new", *parts["part-5.jsonl"][151:]])})
    assert 1 <= mill.prepare().built_shards <= 3
    mill.write({"part-9.jsonl": json_lines([*parts["part-9.jsonl"], "appended 1", "appended 2"])})
    assert 1 <= mill.prepare().built_shards <= 2
    (mill.corpus_root / "part-7.jsonl").unlink()
    assert 1 <= mill.prepare().built_shards <= 3
    mill.write({name: json_lines(part) for name, part in parts.items()})
    (mill.corpus_root / "part-3b.jsonl").unlink()
    back = mill.prepare()
    assert (back.snapshot, back.built_shards, back.reused_shards) == (first.snapshot, 0, total)


def test_an_unchanged_file_is_not_read_again(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenmill.tokens import units

    mill.write({f"{number}.jsonl": json_lines(make_texts(5, seed=number)) for number in range(4)})
    mill.prepare()
    read: list[str] = []
    original = units.read_files

    def spy(files: Any, *rest: Any) -> Any:
        read.extend(file.path for file in files)
        return original(files, *rest)

    monkeypatch.setattr(units, "read_files", spy)
    mill.tokens |= {"sequence_length": 64}  # every shard is another one, no file is
    mill.prepare()
    assert sorted(set(read)) == [f"{number}.jsonl" for number in range(4)]
    read.clear()
    mill.write({"9.jsonl": json_lines(["only this"])})
    mill.tokens |= {"group_documents": 10**6}
    cache = IndexCache(mill.workspace.root / "indexes")
    assert len(cache._places) == 4


def test_index_segments_are_merged(mill: Mill) -> None:
    for number in range(16):
        mill.write({f"{number}.txt": f"document {number}"})
        mill.prepare()
    assert len(list((mill.workspace.root / "indexes").iterdir())) <= 13
    assert len(IndexCache(mill.workspace.root / "indexes")._places) == 16


class Stage:
    """`python -m tokenmill.stages.prepare` in a process of its own."""

    def __init__(self, mill: Mill, number: int) -> None:
        folder = mill.workspace.root / "invocations" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        request = mill.request()
        pipeline = {
            "corpus": request.corpus.model_dump(mode="json"),
            "tokenizer": request.tokenizer.model_dump(mode="json"),
            "tokens": request.tokens.model_dump(mode="json"),
            "training": {"length": {"steps": 1}, "global_batch_size": 1},
            "cost": "unpriced",
        }
        spec = {
            "stage": "prepare",
            "pipeline_name": "test",
            "pipeline": pipeline,
            "invocation_id": str(number),
            "ledger": f"invocations/{number}/ledger/01-prepare.jsonl",
        }
        (folder / "SPEC.json").write_text(json.dumps(spec))
        self.folder = folder
        roots = [f"workspace={mill.workspace.root}", f"corpus.all={mill.corpus_root}"]
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tokenmill.stages.prepare",
                str(folder / "SPEC.json"),
                *(argument for root in roots for argument in ("--root", root)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )

    def end(self) -> int:
        assert self.process.stdin
        code = self.process.wait(60)
        self.process.stdin.close()
        return code

    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.folder / "RESULT.json").read_bytes())
        return result


def many_groups(mill: Mill) -> None:
    texts = make_texts(2500, longest=12)
    mill.tokens |= {"group_documents": 12, "processes": 2}
    mill.write({f"part-{part}.jsonl": json_lines(texts[part::5]) for part in range(5)})


@pytest.mark.integration
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM])
def test_killed_at_any_moment_the_next_start_completes_it(mill: Mill, tmp_path: Path, kill: signal.Signals) -> None:
    many_groups(mill)
    shards = mill.workspace.root / "shards"
    done: set[str] = set()
    for number in range(6):
        stage = Stage(mill, number)
        deadline = time.monotonic() + 30
        while stage.process.poll() is None and time.monotonic() < deadline:
            if shards.is_dir() and len([*shards.glob("[0-9a-f]*")]) >= len(done) + 1 + 7 * number:
                break
            time.sleep(0.005)
        stage.process.send_signal(kill)
        code = stage.end()
        assert code in ({-signal.SIGKILL} if kill == signal.SIGKILL else {75, 0}), number
        found = {path.name for path in shards.glob("[0-9a-f]*")}
        assert done <= found
        done = found
    stage = Stage(mill, 99)
    assert stage.end() == 0
    outputs = stage.result()["outputs"]
    assert outputs["reused_shards"] >= len(done)
    clean = Mill(mill.corpus_root, Workspace.open(str(tmp_path / "clean")), tokens=mill.tokens)
    assert clean.prepare().snapshot == outputs["snapshot"]
    assert tree(clean.workspace.root) == {
        name: digest for name, digest in tree(mill.workspace.root).items() if "/." not in name
    }
    open_snapshot(mill.workspace, outputs["snapshot"], deep=True)


@pytest.mark.integration
def test_two_builds_at_once_end_with_one_valid_cache(mill: Mill, tmp_path: Path) -> None:
    many_groups(mill)
    stages = [Stage(mill, number) for number in range(2)]
    assert [stage.end() for stage in stages] == [0, 0]
    snapshots = {stage.result()["outputs"]["snapshot"] for stage in stages}
    clean = Mill(mill.corpus_root, Workspace.open(str(tmp_path / "clean")), tokens=mill.tokens)
    assert snapshots == {clean.prepare().snapshot}
    assert tree(clean.workspace.root) == tree(mill.workspace.root)


def test_a_living_scratch_folder_is_left_alone_and_a_dead_one_swept(tmp_path: Path) -> None:
    with open_scratch(tmp_path) as first:
        assert not first.claim(tmp_path / "abc")
        with open_scratch(tmp_path) as second:
            assert first.folder.is_dir()
            assert not second.claim(tmp_path / "def")
            assert shards_in_use(tmp_path) == {"abc", "def"}
        assert shards_in_use(tmp_path) == {"abc"}
    dead = tmp_path / "prepare-dead"
    dead.mkdir()
    (dead / "lock").touch()
    (dead / "in_use").write_text("abc\n")
    assert shards_in_use(tmp_path) == set()
    with open_scratch(tmp_path):
        assert not dead.exists()
