"""What the driver says about the GPUs, once a second, through NVML: the one seam between tokenmill and a GPU's sensors.

`GpuReader` takes anything shaped like the module `pynvml` (package nvidia-ml-py). On a machine with a driver that is
the module itself; tests hand in an emulated one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

HOT = 0x20 | 0x40
"""nvmlClocksEventReasonSwThermalSlowdown | …HwThermalSlowdown (nvml.h)."""
SLOWED = HOT | 0x08 | 0x80
"""Besides, …HwSlowdown and …HwPowerBrakeSlowdown. Power caps and idle clocks are no fault."""


@dataclass(frozen=True)
class Gpu:
    """One GPU in one second. What a GPU does not measure is None."""

    utilisation_pct: float
    memory_used_pct: float
    memory_used_bytes: int
    power_watts: float | None
    temperature_celsius: float | None
    throttled: bool
    """Its clock is held down for heat, or by the hardware."""
    ecc_errors: int | None
    """Uncorrected, since the driver was loaded."""


class GpuReader:
    """The GPUs that this process may use, in the driver's order; `CUDA_VISIBLE_DEVICES` is heeded."""

    def __init__(self, nvml: Any, environment: Mapping[str, str] = os.environ) -> None:
        """`nvml.NVMLError` if there is no driver."""
        self._nvml = nvml
        nvml.nvmlInit()
        self._handles = [self._handle(name) for name in self._visible(environment)]

    def read(self) -> list[Gpu]:
        return [self._read(handle) for handle in self._handles]

    def names(self) -> list[str]:
        return [_text(self._nvml.nvmlDeviceGetName(handle)) for handle in self._handles]

    def _visible(self, environment: Mapping[str, str]) -> list[str]:
        named = environment.get("CUDA_VISIBLE_DEVICES")
        if named is None:
            return [str(index) for index in range(self._nvml.nvmlDeviceGetCount())]
        visible = [name.strip() for name in named.split(",")]
        return visible[: visible.index("-1")] if "-1" in visible else [name for name in visible if name]

    def _handle(self, name: str) -> Any:
        if name.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)

    def _read(self, handle: Any) -> Gpu:
        nvml = self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        power = self._optional(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        reasons = self._optional(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return Gpu(
            utilisation_pct=float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            memory_used_pct=100.0 * memory.used / memory.total,
            memory_used_bytes=int(memory.used),
            power_watts=None if power is None else power / 1000.0,
            temperature_celsius=self._optional(lambda: float(nvml.nvmlDeviceGetTemperature(handle, 0))),
            throttled=bool((reasons or 0) & SLOWED),
            ecc_errors=self._optional(lambda: int(nvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0))),
        )

    def _optional(self, ask: Callable[[], Any]) -> Any:
        """None for what this GPU, or this driver, does not support."""
        with suppress(self._nvml.NVMLError):
            return ask()
        return None


def open_gpus() -> GpuReader | None:
    """None on a machine without a driver, or without a GPU to use."""
    import pynvml

    try:
        reader = GpuReader(pynvml)
    except pynvml.NVMLError:
        return None
    return reader if reader.names() else None


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
