"""The command line as a person uses it: a folder with a pipelines.yaml, and processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]


def write_pipelines(folder: Path, **changes: Any) -> Path:
    """A pipeline `small` over the text files in `notes`; `changes` replace its sections (None removes one)."""
    small: dict[str, Any] = {
        "workspace": "./workspace",
        "corpus": {"sources": [{"name": "notes", "root": str(folder / "notes"), "include": ["**/*.txt"]}]},
        "tokenizer": {"vocab_size": 300},
        "tokens": {"sequence_length": 32, "eval_fraction": 0.2},
        "model": {"layers": 1, "d_model": 16, "heads": 2},
        "training": {"length": {"steps": 20}, "global_batch_size": 4, "profile_steps": 0},
        "cost": {"usd_per_hour": 0.1, "price_note": "example, edit me"},
    }
    small = {key: value for key, value in {**small, **changes}.items() if value is not None}
    path = folder / "pipelines.yaml"
    path.write_text(yaml.safe_dump({"pipelines": {"small": small}}))
    return path


def environment() -> dict[str, str]:
    own = {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default", "CUDA_VISIBLE_DEVICES": ""}
    return {**{k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}, **own}


def start(folder: Path, *arguments: str, output: Any = subprocess.PIPE, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "flows.cli", *arguments],
        cwd=folder,
        env={**environment(), **variables},
        stdout=output,
        stderr=output,
        text=True,
        start_new_session=True,
    )


def tokenmill(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    process = start(folder, *arguments)
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)
