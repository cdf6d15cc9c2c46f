"""`tokenmill doctor`: is this machine fit for a pipeline? Starts no training, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from tasks.runtime import stage_environment
from tokenmill.cost.money import format_rate
from tokenmill.cost.prices import resolve_price
from tokenmill.pipelines import Pipeline, PipelineFile
from tokenmill.protocol import ExitCode
from tokenmill.stages.preflight import place_checks
from tokenmill.telemetry.checks import Check, checked, clock_check, metadata_check

TIMEOUT_SECONDS = 120.0
IMAGE_LOCK = "image.lock"
MARKS = {"ok": "[green]ok[/green]", "warning": "[yellow]warning[/yellow]", "failed": "[red]failed[/red]"}


def diagnose(console: Console, file: PipelineFile, name: str | None, *, as_json: bool) -> ExitCode:
    """Check this machine for one pipeline, or for the file's first, and say what was found; 2 if a check failed."""
    chosen = name or next(iter(file.pipelines))
    found = examine(file.load(chosen), file.path.parent)
    if as_json:
        print(json.dumps({"pipeline": chosen, "checks": [check.model_dump(mode="json") for check in found]}, indent=2))
    else:
        console.print(_table(chosen, found))
    return ExitCode.USER_ERROR if any(check.status == "failed" for check in found) else ExitCode.DONE


def examine(pipeline: Pipeline, beside: Path) -> list[Check]:
    """All checks; those of the devices run in a child process meanwhile, which imports TensorFlow."""
    devices: list[Check] = []
    child = threading.Thread(target=lambda: devices.extend(_device_checks(pipeline)))
    child.start()
    found = [checked("price", lambda: _price(pipeline)), _image(pipeline, beside), metadata_check()]
    found += _places(pipeline)
    child.join()
    return [*devices, *found]


def _places(pipeline: Pipeline) -> list[Check]:
    if "://" in pipeline.workspace:
        # A stage works in a local folder and publishes from there: that folder's disk is what a run fills.
        folder = Path(tempfile.gettempdir())
    else:
        folder = pipeline.local_workspace
        while not folder.is_dir():
            folder = folder.parent
    found = place_checks(pipeline, folder, pipeline.tokenizer.vocab_size)
    server = os.environ.get("PREFECT_API_URL")
    if server:
        found[-1] = checked("clock", lambda: clock_check(folder, server))
    return found


def _device_checks(pipeline: Pipeline) -> list[Check]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pipeline.json"
        path.write_text(pipeline.model_dump_json(), encoding="utf-8")
        command = [sys.executable, "-m", "tokenmill.stages.preflight", str(path)]
        environment = {**os.environ, **stage_environment(pipeline)}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, env=environment)
        except subprocess.TimeoutExpired:
            fix = "look at the driver (nvidia-smi), or leave GPUs alone with training.device_kind: cpu"
            said = f"TensorFlow did not answer within {TIMEOUT_SECONDS:g} s"
            return [Check(name="devices", status="failed", found=said, fix=fix)]
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return [Check(name="devices", status="failed", found=said, fix="install TensorFlow again: make setup")]
    return TypeAdapter(list[Check]).validate_json(done.stdout.splitlines()[-1])


def _price(pipeline: Pipeline) -> Check:
    price = resolve_price(pipeline.cost)
    if price is None:
        return Check(name="price", status="ok", found="unpriced: reports show seconds and tokens, no dollars")
    found = f"{format_rate(price.usd_per_hour)} an hour for {price.machine_type}, from {price.source}"
    return Check(name="price", status="ok", found=found, value=float(price.usd_per_hour))


def _image(pipeline: Pipeline, beside: Path) -> Check:
    if pipeline.runtime.kind == "process":
        return Check(name="image", status="skipped", found="no image: the runtime is process")
    try:
        locked: dict[str, Any] = json.loads((beside / IMAGE_LOCK).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        fix = "write it with `tokenmill image lock`"
        return Check(name="image", status="failed", found=f"{IMAGE_LOCK} cannot be read: {error}", fix=fix)
    return Check(name="image", status="ok", found=", ".join(f"{key} {value}" for key, value in locked.items()))


def _table(pipeline: str, found: list[Check]) -> Table:
    table = Table("check", "", "found", title=f"this machine, for {pipeline}", title_justify="left", box=None)
    for check in found:
        said = f"{check.found}\n→ {check.fix}" if check.fix and check.status != "ok" else check.found
        table.add_row(check.name, MARKS.get(check.status, check.status), said)
    return table
