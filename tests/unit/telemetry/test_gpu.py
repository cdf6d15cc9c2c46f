"""The NVML seam over emulated GPUs; and that the emulation has the shape of the real module."""

from __future__ import annotations

import os

import psutil
import pynvml
import pytest

from tests.unit.telemetry.emulated_nvml import EmulatedGpu, EmulatedNvml
from tokenmill.telemetry.gpu import GpuReader
from tokenmill.telemetry.samples import SampleSource


def test_a_gpu_by_hand() -> None:
    (gpu,) = GpuReader(EmulatedNvml([EmulatedGpu(97, 60 << 30, 80 << 30, 651_500, 61)]), {}).read()
    assert (gpu.utilisation_pct, gpu.memory_used_pct, gpu.memory_used_bytes) == (97.0, 75.0, 60 << 30)
    assert (gpu.power_watts, gpu.temperature_celsius, gpu.throttled, gpu.ecc_errors) == (651.5, 61.0, False, 0)


@pytest.mark.parametrize(
    ("reasons", "throttled"), [(0x01, False), (0x04, False), (0x20, True), (0x40, True), (0x48, True)]
)
def test_heat_throttles_and_a_power_cap_or_idleness_does_not(reasons: int, throttled: bool) -> None:
    (gpu,) = GpuReader(EmulatedNvml([EmulatedGpu(reasons=reasons)]), {}).read()
    assert gpu.throttled is throttled


def test_the_bits_are_those_of_the_driver() -> None:
    from tokenmill.telemetry.gpu import HOT, SLOWED

    assert pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown == HOT
    slowed = pynvml.nvmlClocksEventReasonHwSlowdown | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
    assert slowed | HOT == SLOWED
    assert pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED == 1
    assert (pynvml.NVML_VOLATILE_ECC, pynvml.NVML_TEMPERATURE_GPU) == (0, 0)


def test_what_a_gpu_does_not_measure_is_unknown_and_not_zero() -> None:
    (gpu,) = GpuReader(EmulatedNvml([EmulatedGpu(milliwatts=None, ecc=None)]), {}).read()
    assert (gpu.power_watts, gpu.ecc_errors) == (None, None)


@pytest.mark.parametrize(
    ("visible", "seen"), [(None, [1, 2, 3]), ("2,0", [3, 1]), ("", []), ("1,-1,0", [2]), ("GPU-2", [3])]
)
def test_only_the_visible_gpus_count(visible: str | None, seen: list[int]) -> None:
    nvml = EmulatedNvml([EmulatedGpu(utilisation=n) for n in (1, 2, 3)])
    reader = GpuReader(nvml, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert [gpu.utilisation_pct for gpu in reader.read()] == seen


def test_a_sample_sums_the_gpus_up() -> None:
    gpus = [
        EmulatedGpu(90, 40 << 30, milliwatts=500_000, celsius=50),
        EmulatedGpu(30, 60 << 30, celsius=88, reasons=0x40),
    ]
    sample = SampleSource(os.getpid(), GpuReader(EmulatedNvml(gpus), {})).sample()
    assert (sample.device_pct, sample.device_lowest_pct, sample.busy_pct) == (60.0, 30.0, 60.0)
    assert (sample.device_memory_pct, sample.device_memory_bytes) == (75.0, 100 << 30)
    assert (sample.device_power_watts, sample.device_temperature_celsius) == (1150.0, 88.0)
    assert (sample.device_throttled, sample.device_ecc_errors) == (1, 0)


def test_the_emulation_has_the_real_modules_names() -> None:
    for name in vars(EmulatedNvml):
        if name.startswith("nvml"):
            assert callable(getattr(pynvml, name)), name


def test_a_machine_without_gpus_has_a_sample_without_them() -> None:
    sample = SampleSource(psutil.Process().pid).sample()
    assert sample.device_pct is None
    assert sample.busy_pct == sample.process_share_pct
