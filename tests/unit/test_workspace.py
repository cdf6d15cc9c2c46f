"""Law 1: nothing is half there."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest

from tokenmill.errors import UserError
from tokenmill.workspace import Workspace, publish_folder, read_json, write_atomic, write_json


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_write_atomic_replaces_whole_files_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert names(path.parent) == ["file"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_json_round_trip_keeps_unicode(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"ü": [1, None]})
    assert read_json(tmp_path / "a.json") == {"ü": [1, None]}


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    final = tmp_path / "shards" / "abc"
    with pytest.raises(RuntimeError), publish_folder(final) as folder:
        (folder / "part").write_bytes(b"x")
        raise RuntimeError
    assert names(final.parent) == []
    with publish_folder(final) as folder:
        (folder / "part").write_bytes(b"x")
        assert not final.exists()
    assert names(final) == ["part"]


def test_the_first_of_two_writers_of_a_folder_stays(tmp_path: Path) -> None:
    final = tmp_path / "abc"
    with publish_folder(final) as late:
        (late / "who").write_text("late")
        with publish_folder(final) as early:
            (early / "who").write_text("early")
    assert (final / "who").read_text() == "early"
    assert names(tmp_path) == ["abc"]


def _publish_forever(root: Path) -> None:
    for number in range(1_000_000):
        with publish_folder(root / f"{number:06d}") as folder:
            for part in range(4):
                (folder / f"part-{part}").write_bytes(b"x" * 1000)
            (folder / "MARKER").write_bytes(b"done")


def test_a_killed_writer_leaves_only_whole_folders(tmp_path: Path) -> None:
    for round_number in range(3):
        root = tmp_path / str(round_number)
        root.mkdir()
        writer = multiprocessing.get_context("spawn").Process(target=_publish_forever, args=(root,))
        writer.start()
        deadline = time.monotonic() + 60
        while not any(root.glob("0*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.02 * round_number)
        assert writer.pid
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        whole = [path for path in root.iterdir() if not path.name.startswith(".")]
        assert whole
        for folder in whole:
            assert len(names(folder)) == 5


def test_open_makes_the_folder_and_leaves_no_probe(tmp_path: Path) -> None:
    workspace = Workspace.open(str(tmp_path / "new" / "workspace"))
    assert names(workspace.root) == []
    assert workspace.relative(workspace.run("r1") / "run.json") == "runs/r1/run.json"


def test_a_workspace_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match=r"workspace: '.*taken' cannot be written \(.*\); choose another folder"):
        Workspace.open(str(tmp_path / "taken"))


def test_a_workspace_without_write_permission_is_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        was = os.geteuid()
        if was == 0:  # root may write anywhere
            os.seteuid(65534)
        try:
            with pytest.raises(UserError, match=r"cannot be written \(Permission denied\)"):
                Workspace.open(folder)
        finally:
            os.seteuid(was)


def test_too_little_room_is_refused_with_the_figures(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(UserError, match=r"MiB free, [\d,]+ MiB are needed; free some space"):
        Workspace.open(str(tmp_path), need_bytes=free * 2)
