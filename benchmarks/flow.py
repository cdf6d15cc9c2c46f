"""What the flow adds to its bare stages, in seconds: `python -m benchmarks.flow > docs/benchmarks/flow.json`.

A night of four trivial stages (each is little more than Python's start) is run from a process's start to its end. Its
overhead is that time less the stages' own, from the ledgers' `spawned` to `reaped`. Medians of several nights.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.mapping import GROUPS
from flows.embedded import CLIENT, embedded_server
from tokenmill.cost.ledger import read_records

ROOT = Path(__file__).parents[1]
NIGHTS = 5
BATCH_GROUPS = 25
"""Shard groups in a mapped task: 2,000 as 80 tasks."""
NIGHT = """
import sys
from pathlib import Path
from flows.local import spend_night
from tests.orchestration.nights import fake_night
with fake_night(Path(sys.argv[1]), seed=int(sys.argv[2])) as night:
    outcome = spend_night(night)
assert outcome == "finished", outcome
"""


def night_overhead(folder: Path, seed: int, environment: dict[str, str]) -> float:
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", NIGHT, str(folder), str(seed)], cwd=ROOT, env=environment, check=True)
    wall = time.monotonic() - begun
    newest = max((folder / "workspace" / "invocations").iterdir())
    ledgers = [*newest.glob("ledger/*.jsonl"), *(folder / "workspace" / "runs").glob("*/ledger/*.jsonl")]
    own = 0.0
    for path in ledgers:
        records = list(read_records(path))
        if records[0]["monotonic"] >= begun:
            own += records[-1]["monotonic"] - records[0]["monotonic"]
    return wall - own


def median(folder: Path, environment: dict[str, str]) -> float:
    night_overhead(folder, 0, environment)  # the first makes the database and the deployment's records
    return round(statistics.median(night_overhead(folder, seed, environment) for seed in range(1, NIGHTS + 1)), 2)


def mapping_overhead(batches: int, environment: dict[str, str]) -> float:
    """Of mapped tasks without work; their flow's process is started apart."""
    command = [sys.executable, "-m", "benchmarks.mapping", str(batches)]
    done = subprocess.run(command, cwd=ROOT, env={**environment, **CLIENT}, check=True, capture_output=True, text=True)
    return round(float(done.stdout), 2)


def figure(measure: str, ours: float, runs: int) -> dict[str, Any]:
    return {"measure": measure, "unit": "seconds", "ours": ours, "peers": {}, "ratio": None, "runs": runs, "spread": []}


def main() -> None:
    plain = {**{k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = round(night_overhead(folder / "first", 0, plain), 2)
        embedded = median(folder / "embedded", plain)
        with embedded_server(folder / "server") as server:
            server.wait_until_healthy()
            there = {**plain, "PREFECT_API_URL": server.api_url}
            served = median(folder / "served", there)
            mapped = {batches: mapping_overhead(batches, there) for batches in (GROUPS // BATCH_GROUPS, GROUPS)}
    figures = [
        figure("overhead_server_seconds", served, NIGHTS),
        figure("overhead_embedded_seconds", embedded, NIGHTS),
        figure("overhead_embedded_first_seconds", first, 1),
        figure("map_2000_seconds", mapped[GROUPS // BATCH_GROUPS], 1),
        figure("map_2000_tasks_seconds", mapped[GROUPS], 1),
    ]
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
