"""Checkpoints: whole or not there, verified byte by byte, the newest valid one wins."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tokenmill.errors import UserError
from tokenmill.training import checkpoint
from tokenmill.training.checkpoint import BrokenCheckpointError, Checkpoint, CheckpointWriter
from tokenmill.training.settings import CheckpointSettings


def moment(step: int) -> Checkpoint:
    array = np.full((3, 4), step, np.float32)
    return Checkpoint(step, {"w": array}, {"m.w": array * 2, "step": np.array(step)}, {"cursor": 8 * step})


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    folder = checkpoint.write(tmp_path, moment(12))
    assert folder.name == "step-00000012"
    found = checkpoint.read(folder)
    assert (found.step, found.state) == (12, {"cursor": 96})
    np.testing.assert_array_equal(found.optimizer["m.w"], moment(12).optimizer["m.w"])
    assert json.loads((folder / "COMMIT").read_text())["files"].keys() == {
        "weights.safetensors", "optimizer.safetensors", "state.json",
    }  # fmt: skip


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json", "COMMIT"])
@pytest.mark.parametrize("harm", [flip, truncate, Path.unlink])
def test_a_broken_one_is_set_aside_and_the_one_before_it_wins(
    tmp_path: Path, name: str, harm: object, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint.write(tmp_path, moment(1))
    newest = checkpoint.write(tmp_path, moment(2))
    harm(newest / name)
    with caplog.at_level(logging.WARNING):
        found = checkpoint.newest_valid(tmp_path)
    assert found is not None
    assert found.step == 1
    assert "step-00000002 is broken" in caplog.text
    assert (tmp_path / "broken-step-00000002-1").is_dir()
    assert checkpoint.steps(tmp_path) == [1]


def test_a_folder_under_a_wrong_name_is_refused(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, moment(2)).rename(tmp_path / "step-00000009")
    with pytest.raises(BrokenCheckpointError, match="holds step 2"):
        checkpoint.read(tmp_path / "step-00000009")


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    assert checkpoint.newest_valid(tmp_path / "missing") is None
    assert checkpoint.steps(tmp_path / "missing") == []


def test_retention_keeps_the_last_the_best_and_every_nth(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, CheckpointSettings(keep_last=2, keep_every_steps=10))
    for step in range(1, 15):
        writer.save(moment(step), best_step=4 if step >= 4 else None)
        writer.wait()
    assert checkpoint.steps(tmp_path) == [4, 10, 13, 14]


def test_commits_are_reported_once_they_are_there(tmp_path: Path) -> None:
    seen = []
    writer = CheckpointWriter(
        tmp_path,
        CheckpointSettings(),
        on_commit=lambda step, seconds: seen.append(checkpoint.steps(tmp_path)[-1] == step),
    )
    writer.save(moment(1))
    writer.save(moment(2))
    writer.wait()
    assert seen == [True, True]


def test_a_small_disk_first_costs_old_checkpoints_then_stops_with_the_newest_intact(tmp_path: Path) -> None:
    def free_bytes(path: Path) -> int:
        return 40 * 2**20 if len(checkpoint.steps(tmp_path)) < room else 0

    room = 3
    writer = CheckpointWriter(tmp_path, CheckpointSettings(keep_last=5), free_bytes=free_bytes)
    for step in range(1, 6):
        writer.save(moment(step))
        writer.wait()
    assert checkpoint.steps(tmp_path) == [3, 4, 5]
    room = 0
    writer.save(moment(6))
    with pytest.raises(UserError, match=r"free some space, then start again"):
        writer.wait()
    found = checkpoint.newest_valid(tmp_path)
    assert found is not None
    assert found.step == 5


def test_a_disk_that_fails_is_a_sentence(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path / "checkpoints", CheckpointSettings())
    (tmp_path / "checkpoints").rmdir()
    (tmp_path / "checkpoints").write_text("a file where the folder was")
    writer.save(moment(1))
    with pytest.raises((UserError, NotADirectoryError, FileExistsError)):
        writer.wait()


KILLED = """
import sys, numpy as np
from pathlib import Path
from tokenmill.training import checkpoint
weights = {f"w{i}": np.ones((256, 1024), np.float32) for i in range(32)}
step = 1
while True:
    checkpoint.write(Path(sys.argv[1]), checkpoint.Checkpoint(step, weights, {"step": np.array(step)}, {}))
    print(step, flush=True)
    step += 1
"""


def test_a_kill_in_the_middle_of_a_save_leaves_whole_checkpoints_only(tmp_path: Path) -> None:
    for number, delay in enumerate((0.0, 0.01, 0.02, 0.035, 0.05)):
        root = tmp_path / str(number)
        child = subprocess.Popen([sys.executable, "-c", KILLED, str(root)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        with child.stdout as lines:
            lines.readline()
            time.sleep(delay)
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
            said = [1, *(int(line) for line in lines if line.endswith("\n"))]
        CheckpointWriter(root, CheckpointSettings())
        found = checkpoint.newest_valid(root)
        assert found is not None
        assert found.step in (said[-1], said[-1] + 1)
        assert not list(root.glob(".step-*"))
        assert not list(root.glob("broken-*"))
