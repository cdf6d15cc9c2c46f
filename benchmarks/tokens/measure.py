"""Timing whole processes, and the memory of a whole tree of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil

REPOSITORY = Path(__file__).parents[2]


@dataclass
class Measure:
    """One row of tokens.json."""

    measure: str
    unit: str
    ours: float
    peers: dict[str, float] = field(default_factory=dict)
    runs: int = 1
    spread: list[float] = field(default_factory=list)
    """Least and most of our runs."""
    lower_is_better: bool = True

    def plain(self) -> dict[str, Any]:
        best = (min if self.lower_is_better else max)(self.peers.values(), default=None)
        ratio = None
        if best is not None:
            ratio = best / self.ours if self.lower_is_better else self.ours / best
        return {
            "measure": self.measure,
            "unit": self.unit,
            "ours": round(self.ours, 4),
            "peers": {name: round(value, 4) for name, value in self.peers.items()},
            "ratio": None if ratio is None else round(ratio, 2),
            "runs": self.runs,
            "spread": [round(value, 4) for value in self.spread],
        }


def of_runs(measure: str, unit: str, ours: list[float], peers: dict[str, list[float]], **options: Any) -> Measure:
    medians = {name: median(values) for name, values in peers.items()}
    return Measure(measure, unit, median(ours), medians, len(ours), [min(ours), max(ours)], **options)


class Prepare:
    """The stage `prepare` as a supervisor starts it, on a workspace of its own."""

    def __init__(self, folder: Path, corpus: Path, tokenizer: Path, **tokens: Any) -> None:
        self.folder, self.corpus = folder, corpus
        self._starts = 0
        self._pipeline = {
            "corpus": {"sources": [{"name": "bench", "root": str(corpus), "include": ["*.jsonl.gz"]}]},
            "tokenizer": {"source": str(tokenizer)},
            "tokens": tokens,
            "training": {"length": {"steps": 1}, "global_batch_size": 1},
            "cost": "unpriced",
        }

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def command(self) -> list[str]:
        self._starts += 1
        folder = self.folder / "invocations" / str(self._starts)
        folder.mkdir(parents=True)
        spec = {
            "stage": "prepare",
            "pipeline_name": "bench",
            "pipeline": self._pipeline,
            "invocation_id": str(self._starts),
            "ledger": f"invocations/{self._starts}/ledger.jsonl",
        }
        (folder / "SPEC.json").write_text(json.dumps(spec))
        roots = [f"workspace={self.folder}", f"corpus.bench={self.corpus}"]
        return [
            *(sys.executable, "-m", "tokenmill.stages.prepare", str(folder / "SPEC.json")),
            *(argument for root in roots for argument in ("--root", root)),
        ]

    def outputs(self) -> dict[str, Any]:
        path = self.folder / "invocations" / str(self._starts) / "RESULT.json"
        outputs: dict[str, Any] = json.loads(path.read_bytes())["outputs"]
        return outputs


def seconds(command: list[str]) -> float:
    """Wall-clock seconds of the process, from its start to its end."""
    start = time.perf_counter()
    _run(command)
    return time.perf_counter() - start


def peak_pss_mib(command: list[str]) -> float:
    """Largest sum of the proportional set sizes of the process and its descendants, looked at every 20 ms, in MiB."""
    peak = 0
    over = threading.Event()
    with _start(command) as process:

        def watch() -> None:
            nonlocal peak
            while not over.is_set():
                peak = max(peak, _tree_pss(process.pid))
                over.wait(0.02)

        watcher = threading.Thread(target=watch)
        watcher.start()
        code = process.wait()
        over.set()
        watcher.join()
    if code:
        sys.exit(f"{' '.join(command[:4])} failed with exit code {code}")
    return peak / 2**20


def _tree_pss(root: int) -> int:
    total = 0
    try:
        tree = [root, *(child.pid for child in psutil.Process(root).children(recursive=True))]
    except psutil.Error:
        return 0
    for pid in tree:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    return total


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _run(command: list[str]) -> None:
    with _start(command) as process:
        code = process.wait()
    if code:
        sys.exit(f"{' '.join(command[:4])} failed with exit code {code}")
