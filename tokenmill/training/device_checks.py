"""Whether the devices compute, how fast, and what else of TensorFlow's a training needs. A second or two on a CPU."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import tensorflow as tf

from tokenmill.telemetry.checks import Check, checked
from tokenmill.telemetry.peaks import documented_peak
from tokenmill.training.devices import Devices

MEASURE_SECONDS = 0.25
SIZE = {"cpu": 1024, "gpu": 8192}
"""Of the square matrices that are multiplied."""
LEAST_OF_PEAK = 0.4
"""A large product that reaches less of a documented peak runs on a shared, throttled or misconfigured device."""


def device_checks(devices: Devices, precision: str) -> list[Check]:
    names = ", ".join(sorted(set(devices.models)))
    found = [Check(name="devices", status="ok", found=f"{len(devices.names)} × {names} ({devices.kind})")]
    found += [
        checked(f"compute {name}", lambda name=name, model=model: _compute(devices.kind, name, model, precision))  # type: ignore[misc]
        for name, model in zip(devices.names, devices.models, strict=True)
        if devices.kind == "gpu" or name == devices.names[0]
    ]
    found.append(checked("cudnn", lambda: _cudnn(devices)))
    found.append(checked("profiler", _profiler))
    return found


def _compute(kind: str, name: str, model: str, precision: str) -> Check:
    rate, right = _measure(name, SIZE[kind], precision)
    said = f"{rate / 1e12:.3g} TFLOP/s in a product of {precision}"
    check = f"compute {name}"
    if not right:
        fix = "this device computes wrong numbers: drain the machine"
        return Check(name=check, status="failed", found=f"a product of ones on {name} is wrong", fix=fix)
    peak = documented_peak(model, precision) if kind == "gpu" else None
    if peak is None:
        return Check(name=check, status="ok", found=f"{said} (no documented peak for {model})", value=rate)
    share = rate / peak.flops_per_second
    said += f", {100 * share:.0f} % of the peak ({peak.source})"
    if share >= LEAST_OF_PEAK:
        return Check(name=check, status="ok", found=said, value=rate)
    fix = "see with nvidia-smi whether it is shared (MIG, other processes), throttled, or capped in power"
    return Check(name=check, status="warning", found=said, fix=fix, value=rate)


def _measure(name: str, size: int, precision: str) -> tuple[float, bool]:
    """FLOP/s of the fastest product, and whether the numbers are right (ones × ones = size)."""
    with tf.device(name):
        ones = tf.ones([size, size], tf.as_dtype(precision))

        @tf.function
        def product(matrix: Any) -> Any:
            return tf.matmul(matrix, matrix)

        right = bool(tf.reduce_all(product(ones) == tf.cast(size, ones.dtype)).numpy())
        fastest = float("inf")
        until = time.monotonic() + MEASURE_SECONDS
        while time.monotonic() < until:
            began = time.monotonic()
            product(ones)[0, 0].numpy()
            fastest = min(fastest, time.monotonic() - began)
    return 2.0 * size**3 / fastest, right


def _cudnn(devices: Devices) -> Check:
    if devices.kind != "gpu":
        return Check(name="cudnn", status="skipped", found="no GPU is used")
    with tf.device(devices.names[0]):
        tf.nn.conv2d(tf.ones([1, 8, 8, 4]), tf.ones([3, 3, 4, 4]), 1, "SAME").numpy()
    version = tf.sysconfig.get_build_info().get("cudnn_version", "?")
    return Check(name="cudnn", status="ok", found=f"a convolution ran; TensorFlow is built for cuDNN {version}")


def _profiler() -> Check:
    with tempfile.TemporaryDirectory() as folder:
        try:
            tf.profiler.experimental.start(folder)
            tf.profiler.experimental.stop()
        except Exception as error:
            fix = "run the container with --cap-add=SYS_ADMIN, or do with step timing"
            return Check(name="profiler", status="warning", found=f"profiling is not permitted: {error}", fix=fix)
    return Check(name="profiler", status="ok", found="starts and stops")


def measured_flops_per_second(found: list[Check]) -> float | None:
    """Of all devices together, as far as they were measured."""
    rates = [check.value for check in found if check.name.startswith("compute") and check.value is not None]
    return sum(rates) if rates else None


def peak_flops_per_second(devices: Devices, precision: str, found: list[Check]) -> float | None:
    """Of all devices together: documented where the table knows them, else as measured."""
    peaks = [documented_peak(model, precision) for model in devices.models]
    if devices.kind == "gpu" and all(peaks):
        return sum(peak.flops_per_second for peak in peaks if peak is not None)
    return measured_flops_per_second(found)
