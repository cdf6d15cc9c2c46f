"""Trainers as processes that take turns (see `turns`), and the environments that peers live in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.tokens.measure import REPOSITORY

HERE = Path(__file__).parent


@dataclass
class Trainer:
    """One process. `tokens_per_update` are those that count: non-padding ones."""

    name: str
    command: Sequence[str]
    tokens_per_update: float
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    updates: int = 0
    peak_bytes: int = 0

    def start(self) -> None:
        """Start, and come back once it has warmed up."""
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            cwd=REPOSITORY,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(REPOSITORY)} | self.environment,
            text=True,
        )
        self._answer()

    def turn(self, updates: int) -> None:
        started = time.perf_counter()
        self._say(updates)
        self._answer()
        self.seconds += time.perf_counter() - started
        self.updates += updates

    def finish(self) -> None:
        self._say(0)
        self.peak_bytes = self._answer()["peak_bytes"]
        self._process.wait()

    @property
    def tokens_per_second(self) -> float:
        return self.tokens_per_update * self.updates / self.seconds

    def _say(self, updates: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{updates}\n")
        self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@@"):
                return dict(json.loads(line[2:]))
        sys.exit(f"{self.name} ended before its time; see {self.log}")


def take_turns(trainers: Sequence[Trainer], rounds: int, updates: int) -> None:
    """All start one after the other; then `rounds` turns each, whoever was last going first in the next round."""
    for trainer in trainers:
        trainer.start()
    for number in range(rounds):
        for trainer in trainers if number % 2 else trainers[::-1]:
            trainer.turn(updates)
    for trainer in trainers:
        trainer.finish()


def torch_python(folder: Path) -> str:
    """The peers' Python, with PyTorch and transformers, installed at first need."""
    python = folder / "peers-torch" / "bin" / "python"
    done = folder / "peers-torch" / "complete"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
        requirements = str(HERE / "requirements-torch.txt")
        subprocess.run([str(python), "-m", "pip", "install", "-q", "-r", requirements], check=True)
        done.touch()
    return str(python)
