"""The devices of a worker, as the pipeline promised them, and the strategy that uses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tokenmill.errors import UserError
from tokenmill.training.settings import TrainingSettings


@dataclass(frozen=True)
class Devices:
    """`names` are TensorFlow's, such as /GPU:0. `compute_capabilities` are those of the GPUs."""

    kind: str
    names: tuple[str, ...]
    models: tuple[str, ...]
    compute_capabilities: tuple[tuple[int, int], ...]


def claim(training: TrainingSettings) -> Devices:
    """Configure and return the devices. To be called before TensorFlow is used; `UserError` if one is missing."""
    promised = None if training.devices == "auto" else int(training.devices)
    gpus = [] if training.device_kind == "cpu" else tf.config.list_physical_devices("GPU")
    if gpus:
        if promised is not None and promised > len(gpus):
            raise UserError(f"training.devices: {promised} GPUs are promised, TensorFlow sees {len(gpus)}")
        gpus = gpus[:promised]
        tf.config.set_visible_devices(gpus, "GPU")
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
        details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
        return Devices(
            "gpu",
            tuple(f"/GPU:{i}" for i in range(len(gpus))),
            tuple(str(detail.get("device_name", "GPU")) for detail in details),
            tuple(detail["compute_capability"] for detail in details if "compute_capability" in detail),
        )
    if training.device_kind == "gpu" or (promised is not None and promised > 1 and training.device_kind == "auto"):
        raise UserError(
            f"training.devices: {promised or 'a GPU'} promised, and TensorFlow sees no GPU; "
            "mend the driver or the image, or set training.device_kind to cpu"
        )
    tf.config.set_visible_devices([], "GPU")
    count = promised or 1
    if count > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    return Devices("cpu", tuple(f"/CPU:{i}" for i in range(count)), ("CPU",) * count, ())


def strategy_for(devices: Devices, workers: int = 1) -> Any:
    """One device needs no strategy; several get mirrored variables. Several workers find each other by TF_CONFIG."""
    if workers > 1:
        return _strategy_of_workers(devices, workers)
    if len(devices.names) == 1:
        return tf.distribute.get_strategy()
    cross = None if devices.kind == "gpu" else tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(list(devices.names), cross_device_ops=cross)


def _strategy_of_workers(devices: Devices, workers: int) -> Any:
    experimental = tf.distribute.experimental
    way = (
        experimental.CommunicationImplementation.NCCL
        if devices.kind == "gpu"
        else (experimental.CommunicationImplementation.RING)
    )
    options = experimental.CommunicationOptions(implementation=way)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    promised = workers * len(devices.names)
    if strategy.num_replicas_in_sync != promised:
        raise UserError(
            f"training.workers: {workers} with {len(devices.names)} devices each are promised, and TensorFlow trains "
            f"on {strategy.num_replicas_in_sync}; TF_CONFIG must name {workers} workers"
        )
    return strategy
