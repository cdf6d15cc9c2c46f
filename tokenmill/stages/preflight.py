"""What is looked at before a training begins: by the train stage itself, and by `tokenmill doctor` in a child process.

    python -m tokenmill.stages.preflight PIPELINE.json

prints the checks of TensorFlow and the devices as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmill.errors import UserError
from tokenmill.pipelines import Pipeline
from tokenmill.protocol import of_worker
from tokenmill.stages.harness import StageContext
from tokenmill.telemetry.checks import Check, clock_check, disk_check, ring_check, workspace_check
from tokenmill.training.counts import count
from tokenmill.workspace import write_json

if TYPE_CHECKING:
    from tokenmill.training.devices import Devices

BYTES_PER_PARAMETER = 12
"""Of a checkpoint: weights and two moments of AdamW in float32."""
SPARE_CHECKPOINTS = 2
"""One that is being written while the oldest still stands, and the exported model."""


def checkpoint_bytes(pipeline: Pipeline, vocab_size: int) -> int:
    """Room for the checkpoints that are kept, and two more."""
    model = count(pipeline.model, vocab_size=vocab_size, sequence_length=pipeline.tokens.sequence_length)
    kept = pipeline.training.checkpoint.keep_last + SPARE_CHECKPOINTS
    return model.parameters * BYTES_PER_PARAMETER * kept


def place_checks(pipeline: Pipeline, folder: Path, vocab_size: int) -> list[Check]:
    return [workspace_check(folder), disk_check(folder, checkpoint_bytes(pipeline, vocab_size)), clock_check(folder)]


def meet_workers() -> None:
    """Before TensorFlow takes its port. `RuntimeError` names who is not reached: a new start may help."""
    raw = os.environ.get("TF_CONFIG")
    found = ring_check(json.loads(raw) if raw else None)
    if found.status == "failed":
        raise RuntimeError(f"{found.found}; {found.fix}")


def preflight(
    context: StageContext, run_folder: Path, devices: Devices, precision: str, vocab_size: int
) -> float | None:
    """Look at everything, write preflight.json, and return the peak of the devices in FLOP/s.

    Raises `UserError` naming each failure with its fix; a warning is a line of the log.
    """
    from tokenmill.training.device_checks import device_checks, peak_flops_per_second

    found = place_checks(context.pipeline, run_folder, vocab_size)
    # Several workers: TensorFlow wants its collectives set up before any operation runs.
    measured = device_checks(devices, precision) if context.pipeline.training.workers == 1 else []
    found += measured
    write_json(
        run_folder / of_worker("preflight.json", context.worker), [check.model_dump(mode="json") for check in found]
    )
    for check in found:
        if check.status == "warning":
            context.log.warning("preflight, %s: %s; %s", check.name, check.found, check.fix)
    refuse(found)
    return peak_flops_per_second(devices, precision, measured)


def refuse(found: Sequence[Check]) -> None:
    """Raises `UserError` if a check failed."""
    failed = [f"{check.name}: {check.found}; {check.fix}" for check in found if check.status == "failed"]
    if failed:
        raise UserError(f"this machine is not fit for the run: {' | '.join(failed)}")


def main() -> None:
    pipeline = Pipeline.model_validate_json(Path(sys.argv[1]).read_bytes())
    from tokenmill.training import devices
    from tokenmill.training.choices import freeze_choices
    from tokenmill.training.device_checks import device_checks

    try:
        claimed = devices.claim(pipeline.training)
        precision = str(freeze_choices(pipeline.training, claimed)["precision"])
        found = device_checks(claimed, precision)
    except UserError as error:
        fix = "mend the driver or the image, or set training.devices and training.device_kind to what is there"
        found = [Check(name="devices", status="failed", found=str(error), fix=fix)]
    print(json.dumps([check.model_dump(mode="json") for check in found]))


if __name__ == "__main__":
    main()
