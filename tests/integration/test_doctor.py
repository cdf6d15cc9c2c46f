"""`tokenmill doctor` on this machine, and what it says of one that does not fit; the board on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.board import board_command
from tests.unit.telemetry.test_checks import free_ports

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.integration, pytest.mark.tensorflow]


def doctor(folder: Path, *arguments: str, **training: Any) -> tuple[int, str]:
    (folder / "notes").mkdir(exist_ok=True)
    pipeline = {
        "workspace": "./workspace",
        "corpus": {"sources": [{"name": "notes", "root": "./notes"}]},
        "training": {"length": {"steps": 1}, "precision": "float32", **training},
        "cost": {"usd_per_hour": "1.25"},
    }
    (folder / "pipelines.yaml").write_text(yaml.safe_dump({"pipelines": {"small": pipeline}}))
    command = [sys.executable, "-m", "flows.cli", "doctor", "--file", str(folder / "pipelines.yaml"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    return done.returncode, done.stdout + done.stderr


def test_this_machine_is_fit(tmp_path: Path) -> None:
    code, said = doctor(tmp_path, "small", "--json", device_kind="cpu")
    assert code == 0, said
    checks = {check["name"]: check for check in json.loads(said)["checks"]}
    assert checks["devices"]["found"] == "1 × CPU (cpu)"
    assert "TFLOP/s in a product of float32" in checks["compute /CPU:0"]["found"]
    assert checks["compute /CPU:0"]["value"] > 1e8
    assert "$1.25 an hour" in checks["price"]["found"]
    assert {name: check["status"] for name, check in checks.items() if check["status"] == "skipped"} == {
        name: "skipped" for name in ("cudnn", "image", "metadata") if checks[name]["status"] == "skipped"
    }
    assert {checks[name]["status"] for name in ("profiler", "workspace", "disk", "clock")} == {"ok"}
    assert not (tmp_path / "workspace").exists()


def test_devices_that_are_not_there_are_named_with_the_fix(tmp_path: Path) -> None:
    code, said = doctor(tmp_path, devices=8)
    assert code == 2
    assert "failed" in said
    assert "training.devices: 8 promised, and TensorFlow sees no GPU" in " ".join(said.split())
    assert "→" in said


def test_a_board_shows_a_folder_on_loopback(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    board = subprocess.Popen(board_command(tmp_path, port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        plugins: dict[str, Any] = {}
        deadline = time.monotonic() + 90
        while not plugins and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/data/plugins_listing", timeout=5) as answer:
                    plugins = json.load(answer)
            except OSError:
                time.sleep(0.2)
        assert {"scalars", "text", "profile"} <= plugins.keys()
    finally:
        board.terminate()
        board.wait(30)
