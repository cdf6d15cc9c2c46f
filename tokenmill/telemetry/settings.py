"""The `telemetry` section of pipelines.yaml: what is watched while a stage trains, and when that is worth a word."""

from __future__ import annotations

from tokenmill.config import Section, operational


class TelemetrySettings(Section):
    low_utilisation_pct: float = operational(60.0, ge=0, le=100)
    """Utilisation of the GPUs (of the processor where there are none) under which training is said to waste its
    machine; 0 means never."""
    low_utilisation_seconds: float = operational(60.0, gt=0)
    """Time in training steps, everything else left out, over which utilisation must stay under that."""
    memory_limit_pct: float = operational(95.0, gt=0, le=100)
    """Of the machine's, the control group's or a GPU's memory."""
    step_drift_pct: float = operational(50.0, gt=0)
    """By which a step takes longer than it did at its best before that is said."""
    hang_seconds: float = operational(120.0, gt=0)
    """A training step may always take so long; after that, and after `hang_factor` times the median step, it hangs."""
    hang_factor: float = operational(50.0, gt=1)
    prometheus_port: int | None = operational(None, ge=1, le=65535)
    """Port on loopback where a training stage answers Prometheus; none means that it does not."""
