"""A pipeline and what its run resolved → the configuration by which costs are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenmill.canonical import fingerprint
from tokenmill.cost.baseline import Configuration
from tokenmill.pipelines import Pipeline


def configuration_of(
    pipeline: Pipeline,
    *,
    machine_type: str | None,
    run: Mapping[str, Any] | None = None,
    summary: Mapping[str, Any] | None = None,
    image: str | None = None,
) -> Configuration:
    """`run` is run.json, `summary` the trainer's summary.json; without them, before a run, an `auto` is unknown."""
    run, summary = run or {}, summary or {}
    frozen: Mapping[str, Any] = run.get("frozen") or {}
    versions: Mapping[str, Any] = (run.get("numerics") or {}).get("versions") or {}
    training = pipeline.training

    def chosen(name: str) -> Any:
        value = frozen.get(name, getattr(training, name))
        return None if value == "auto" else value

    devices = summary.get("devices")
    return Configuration(
        model=fingerprint(pipeline.model.model_dump(mode="json")),
        parameters=summary.get("parameters"),
        sequence_length=pipeline.tokens.sequence_length,
        global_batch_size=training.global_batch_size,
        micro_batch_size=chosen("micro_batch_size"),
        precision=chosen("precision"),
        xla=chosen("xla"),
        devices=devices["count"] if isinstance(devices, Mapping) else chosen("devices"),
        workers=training.workers,
        machine_type=machine_type,
        image=image,
        versions=", ".join(f"{name} {version}" for name, version in sorted(versions.items())),
    )
