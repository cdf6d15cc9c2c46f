"""An NVML in software: shaped like the module `pynvml`, with the numbers in a test's hands."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


@dataclass
class EmulatedGpu:
    utilisation: int = 97
    used: int = 70 << 30
    total: int = 80 << 30
    milliwatts: int | None = 650_000
    celsius: int = 61
    reasons: int = 0
    ecc: int | None = 0


@dataclass
class EmulatedNvml:
    gpus: list[EmulatedGpu] = field(default_factory=lambda: [EmulatedGpu()])
    driver: bool = True

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None:
        if not self.driver:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> EmulatedGpu:
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> EmulatedGpu:
        return self.gpus[int(uuid.removeprefix("GPU-"))]

    def nvmlDeviceGetName(self, gpu: EmulatedGpu) -> bytes:
        return b"Emulated 80GB"

    def nvmlDeviceGetUtilizationRates(self, gpu: EmulatedGpu) -> Any:
        return SimpleNamespace(gpu=gpu.utilisation, memory=10)

    def nvmlDeviceGetMemoryInfo(self, gpu: EmulatedGpu) -> Any:
        return SimpleNamespace(used=gpu.used, total=gpu.total, free=gpu.total - gpu.used)

    def nvmlDeviceGetPowerUsage(self, gpu: EmulatedGpu) -> int:
        return self._supported(gpu.milliwatts)

    def nvmlDeviceGetTemperature(self, gpu: EmulatedGpu, sensor: int) -> int:
        return gpu.celsius

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: EmulatedGpu) -> int:
        return gpu.reasons

    def nvmlDeviceGetTotalEccErrors(self, gpu: EmulatedGpu, kind: int, counter: int) -> int:
        return self._supported(gpu.ecc)

    def _supported(self, value: int | None) -> int:
        if value is None:
            raise self.NVMLError("Not Supported")
        return value
