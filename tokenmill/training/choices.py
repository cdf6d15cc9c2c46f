"""Every `auto` of the training section, resolved once at a run's first attempt."""

from __future__ import annotations

from typing import Any

from tokenmill.errors import UserError
from tokenmill.training import hardware
from tokenmill.training.devices import Devices
from tokenmill.training.settings import TrainingSettings


def freeze_choices(training: TrainingSettings, devices: Devices) -> dict[str, Any]:
    """Every `auto` of the training section, resolved for these devices, with reasons. `UserError` if the global batch
    cannot be split so."""
    precision, precision_reason = hardware.choose_precision(
        training, hardware.cpu_flags(), devices.compute_capabilities
    )
    xla, xla_reason = hardware.choose_xla(training)
    if training.workers > 1 and devices.kind == "cpu" and len(devices.names) > 1:
        raise UserError(
            f"training.devices: {len(devices.names)} parts of a CPU cannot be used by one of several workers; "
            "set it to 1, or training.workers to 1"
        )
    replicas = len(devices.names) * training.workers
    if training.global_batch_size % replicas:
        raise UserError(
            f"training.global_batch_size: {training.global_batch_size} cannot be split evenly over {replicas} devices; "
            f"choose a multiple of {replicas}"
        )
    rows = training.global_batch_size // replicas
    micro = rows if training.micro_batch_size == "auto" else int(training.micro_batch_size)
    if rows % micro:
        raise UserError(
            f"training.micro_batch_size: {micro} does not divide the {rows} sequences of a device; choose a divisor"
        )
    return {
        "precision": precision,
        "precision_reason": precision_reason,
        "xla": xla,
        "xla_reason": xla_reason,
        "micro_batch_size": micro,
    }
