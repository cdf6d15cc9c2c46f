"""What `auto` means on this machine. Plain look-ups: no TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tokenmill.training.settings import TrainingSettings

Choice = tuple[str, str]
"""The value and, in a few words, the reason."""


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Instruction sets of the first CPU, in Linux's names; empty elsewhere."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())


def choose_precision(
    training: TrainingSettings, flags: frozenset[str], compute_capabilities: Sequence[tuple[int, int]]
) -> Choice:
    """bfloat16 where the hardware multiplies it, float16 (with a loss scale) on older GPUs, else float32."""
    if training.precision != "auto":
        return training.precision, "set in the pipeline"
    if compute_capabilities:
        lowest = min(compute_capabilities)
        name = f"compute capability {lowest[0]}.{lowest[1]}"
        return ("bfloat16" if lowest >= (8, 0) else "float16" if lowest >= (7, 0) else "float32"), name
    for flag in ("amx_bf16", "avx512_bf16"):
        if flag in flags:
            return "bfloat16", f"this CPU has {flag}"
    return "float32", "this CPU multiplies no bfloat16"


def choose_xla(training: TrainingSettings) -> Choice:
    if training.xla != "auto":
        return training.xla, "set in the pipeline"
    return "off", "not measured for this configuration"


def usable_cores() -> int:
    return len(os.sched_getaffinity(0))


def tensorflow_environment(xla: str) -> dict[str, str]:
    """Variables that must be set before TensorFlow is imported. `fuse` lets XLA join element-wise operations and
    leaves the products to oneDNN."""
    variables = {"TF_CPP_MIN_LOG_LEVEL": "2"}
    if xla == "fuse":
        variables["TF_XLA_FLAGS"] = "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit=true --tf_xla_ops_to_cluster=FUSIBLE"
    return variables
