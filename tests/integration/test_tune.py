"""`tokenmill tune` through the command line: trials in processes, a table at the end, nothing taken twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.commands import tokenmill, write_pipelines

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

GRID = ("--sequence-lengths", "32", "--batch-sizes", "4,8", "--accumulations", "1", "--precisions", "float32")


def test_a_tuning_ends_with_a_table_and_is_not_done_again(tmp_path: Path) -> None:
    for number in range(60):
        path = tmp_path / "notes" / f"{number:02}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"story {number}: " + "the cat sees the dog. " * (3 + number % 5))
    write_pipelines(tmp_path)
    done = tokenmill(tmp_path, "tune", "small", *GRID, "--xla", "off")
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (tmp_path / "workspace" / "tunes").iterdir()
    trials = [json.loads(path.read_text()) for path in sorted((folder / "trials").glob("*.json"))]
    # Two candidates, the better one twice more, each time longer.
    assert sorted(trial["rung"] for trial in trials) == [0, 0, 1, 2]
    assert {trial["status"] for trial in trials} == {"measured"}
    assert all(trial["nonpadding_tokens"] > 0 and min(trial["step_seconds"]) > 0 for trial in trials)
    assert (folder / "tune.html").is_file()
    assert "All 2 configurations were looked at." in done.stdout
    assert "global_batch_size:" in done.stdout
    before = {path: path.stat().st_mtime_ns for path in (folder / "trials").iterdir()}
    again = tokenmill(tmp_path, "tune", "small", *GRID, "--xla", "off")
    assert again.returncode == 0, again.stdout + again.stderr
    assert {path: path.stat().st_mtime_ns for path in (folder / "trials").iterdir()} == before

    # A cap that is used up at once: nothing is begun, and it says how to go on.
    capped = tokenmill(tmp_path, "tune", "small", *GRID, "--xla", "on", "--max-minutes", "0.01")
    assert "the same command goes on where it was" in capped.stdout
