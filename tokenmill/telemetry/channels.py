"""Where samples go besides Parquet: TensorBoard's event files and a Prometheus endpoint. No TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path

from tokenmill.telemetry.samples import Sample

LOOPBACK = "127.0.0.1"
PLOTTED = (
    "cpu_pct",
    "process_share_pct",
    "memory_used_pct",
    "device_pct",
    "device_memory_pct",
    "device_power_watts",
    "device_temperature_celsius",
)


class EventFile:
    """Scalars over seconds since the attempt began, for TensorBoard, in the format of TensorFlow's event files."""

    def __init__(self, folder: Path, attempt: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder = folder / f"utilisation-{attempt:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        self._began = time.time()
        self._writer = RecordWriter((folder / f"events.out.tfevents.{int(self._began)}.observer").open("ab"))
        self._event = Event
        self._writer.write(Event(wall_time=self._began, file_version="brain.Event:2").SerializeToString())

    def add(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            values = {name: getattr(sample, name) for name in PLOTTED}
            self.scalars(
                {f"utilisation/{name}": value for name, value in values.items() if value is not None}, sample.time
            )
        self._writer.flush()

    def scalars(self, values: Mapping[str, float], unix: float) -> None:
        event = self._event(wall_time=unix, step=max(0, round(unix - self._began)))
        for tag, value in values.items():
            event.summary.value.add(tag=tag, simple_value=value)
        self._writer.write(event.SerializeToString())


class PrometheusEndpoint:
    """The newest sample as gauges `tokenmill_<field>`, and alarms so far, on loopback; `OSError` on a taken port."""

    def __init__(self, port: int, labels: Mapping[str, str]) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

        registry = CollectorRegistry()
        names = list(labels)
        self._gauges = {
            field.name: Gauge(
                f"tokenmill_{field.name}", f"{field.name} of the training machine", names, registry=registry
            )
            for field in fields(Sample)
            if field.name != "time"
        }
        self._step = Gauge("tokenmill_step", "optimizer updates completed", names, registry=registry)
        self._alarms = Counter("tokenmill_alarms", "alarms of this attempt", [*names, "kind"], registry=registry)
        self._labels = labels
        self._server, self._thread = start_http_server(port, addr=LOOPBACK, registry=registry)

    def show(self, sample: Sample, step: int | None) -> None:
        for name, gauge in self._gauges.items():
            value = getattr(sample, name)
            if value is not None:
                gauge.labels(**self._labels).set(value)
        if step is not None:
            self._step.labels(**self._labels).set(step)

    def count(self, kind: str) -> None:
        self._alarms.labels(**self._labels, kind=kind).inc()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
