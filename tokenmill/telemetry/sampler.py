"""Samples as Parquet: ``utilisation/0003-000.parquet`` is attempt 3's, a new file each hour.

The newest file is rewritten whole twice a minute, so a machine that is taken away costs at most the last half minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.telemetry.samples import Sample

FILE_SECONDS = 3600.0


class SampleFiles:
    """The Parquet files of one attempt."""

    def __init__(self, folder: Path, attempt: int) -> None:
        self._folder, self._attempt, self._number = folder, attempt, 0
        self._samples: list[Sample] = []
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, sample: Sample) -> None:
        if self._samples and sample.time - self._samples[0].time >= FILE_SECONDS:
            self.write()
            self._samples, self._number = [], self._number + 1
        self._samples.append(sample)

    def write(self) -> None:
        """Put all samples of the current file on disk, whole or not at all. What was never measured has no column."""
        if not self._samples:
            return
        final = self._folder / f"{self._attempt:04d}-{self._number:03d}.parquet"
        beside = final.with_name(f".{final.name}")
        columns = {field.name: [getattr(sample, field.name) for sample in self._samples] for field in fields(Sample)}
        measured = {name: column for name, column in columns.items() if any(value is not None for value in column)}
        pq.write_table(pa.table(measured), beside)
        beside.replace(final)


def read_utilisation(folder: Path) -> Iterator[dict[str, float]]:
    """All attempts' samples by attempt and time: `Sample`'s fields and `attempt`. None if there is no folder."""
    for path in sorted(folder.glob("[0-9]*.parquet")):
        attempt = int(path.name.split("-")[0])
        for row in pq.ParquetFile(path).read().to_pylist():
            yield {**row, "attempt": attempt}
