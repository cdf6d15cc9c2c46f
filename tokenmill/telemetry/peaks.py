"""What devices can do at most, from a table that cites its sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

import yaml


@dataclass(frozen=True)
class Peak:
    flops_per_second: float
    """Dense, of one device."""
    source: str


def documented_peak(device: str, precision: str) -> Peak | None:
    """By the device's name as the driver gives it; None where the table knows nothing.

    >>> documented_peak("NVIDIA A100-SXM4-80GB", "bfloat16").flops_per_second
    312000000000000.0
    """
    for row in _table():
        if str(row["match"]).lower() in device.lower() and precision in row:
            return Peak(float(row[precision]) * 1e12, str(row["source"]))
    return None


@cache
def _table() -> list[dict[str, str | float]]:
    """More special names stand before those that they contain."""
    text = resources.files("tokenmill.telemetry").joinpath("peaks.yaml").read_text(encoding="utf-8")
    return list(yaml.safe_load(text)["devices"])
