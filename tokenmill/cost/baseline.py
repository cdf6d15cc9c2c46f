"""The baseline database: one immutable Parquet file an ending of a run (or a sweep point), queried in place by DuckDB.

There is no server and no index to corrupt: writers never touch each other's files, and the database is a view over the
folder. DuckDB imports in a tenth of a second and reads the folder in one query.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import duckdb
from pydantic import BaseModel, ConfigDict

from tokenmill.canonical import fingerprint
from tokenmill.workspace import fsync_folder

VERSION = 1


class Configuration(BaseModel):
    """What a cost depends on besides the price."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    """Fingerprint of the model's settings."""
    parameters: int | None = None
    sequence_length: int
    global_batch_size: int
    """In sequences."""
    micro_batch_size: int | None = None
    precision: str | None = None
    xla: str | None = None
    strategy: str | None = None
    devices: int | None = None
    workers: int = 1
    machine_type: str | None = None
    image: str | None = None
    versions: str = ""
    """Of TensorFlow and tokenmill, for people."""

    def like(self, other: Configuration) -> bool:
        """Comparable: the same model and sequence length on the same hardware. Unknown devices may be any."""
        keys = ("model", "sequence_length", "machine_type", "workers")
        same_devices = self.devices == other.devices or None in (self.devices, other.devices)
        return same_devices and all(getattr(self, key) == getattr(other, key) for key in keys)

    def knobs(self) -> dict[str, Any]:
        """What a person can turn without making another model."""
        return {
            "micro batch": self.micro_batch_size,
            "global batch": self.global_batch_size,
            "precision": self.precision,
            "XLA": self.xla,
        }


class BaselineRow(BaseModel):
    """One measured run. Amounts are exact decimals; shares are percent of billed time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    kind: Literal["run", "sweep"]
    pipeline: str
    finished: float
    """Unix seconds."""
    configuration: Configuration
    market: str | None
    usd_per_hour: Decimal | None
    total_usd: Decimal | None
    usd_per_million_tokens: Decimal | None
    billed_seconds: float
    stepping_seconds: float
    """Phases step and input_wait of training."""
    steps: int
    nonpadding_tokens: int
    """That stayed in the model."""
    processed_tokens: int
    """All that were computed, in `stepping_seconds`."""
    phase_pct: dict[str, float]
    lost_pct: float
    eval_loss: float | None = None
    peak_memory_bytes: int | None = None
    out_of_memory: bool = False

    @property
    def tokens_per_second(self) -> float | None:
        """Processed tokens a second while stepping."""
        return self.processed_tokens / self.stepping_seconds if self.stepping_seconds > 0 else None


_COLUMNS = {
    "version": "INTEGER",
    "run_id": "VARCHAR",
    "kind": "VARCHAR",
    "pipeline": "VARCHAR",
    "finished": "DOUBLE",
    "market": "VARCHAR",
    "usd_per_hour": "DECIMAL(18, 9)",
    "total_usd": "DECIMAL(18, 6)",
    "usd_per_million_tokens": "DECIMAL(18, 9)",
    "billed_seconds": "DOUBLE",
    "stepping_seconds": "DOUBLE",
    "steps": "BIGINT",
    "nonpadding_tokens": "BIGINT",
    "processed_tokens": "BIGINT",
    "phase_pct": "MAP(VARCHAR, DOUBLE)",
    "lost_pct": "DOUBLE",
    "eval_loss": "DOUBLE",
    "peak_memory_bytes": "BIGINT",
    "out_of_memory": "BOOLEAN",
    "model": "VARCHAR",
    "parameters": "BIGINT",
    "sequence_length": "BIGINT",
    "global_batch_size": "BIGINT",
    "micro_batch_size": "BIGINT",
    "precision": "VARCHAR",
    "xla": "VARCHAR",
    "strategy": "VARCHAR",
    "devices": "BIGINT",
    "workers": "BIGINT",
    "machine_type": "VARCHAR",
    "image": "VARCHAR",
    "versions": "VARCHAR",
}
"""One Parquet column each; later versions add columns, and never change or drop one."""


def add(folder: Path, row: BaselineRow) -> Path:
    """Write the row's file. One that is there already stays as it is: history is never rewritten.

    A run that went on after its first ending gets another file; `read` gives its last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{row.run_id}-{row.steps:08d}.parquet"
    if path.exists():
        return path
    flat = row.model_dump()
    flat |= flat.pop("configuration") | {"version": VERSION}
    values = ", ".join(f"CAST(? AS {kind}) AS {name}" for name, kind in _COLUMNS.items())
    beside = folder / f".{row.run_id}.{fingerprint(row.model_dump(mode='json'))}"
    with _connect() as database:
        parameters = [_map(flat[name]) if kind.startswith("MAP") else flat[name] for name, kind in _COLUMNS.items()]
        database.execute(f"CREATE TABLE one AS SELECT {values}", parameters)
        database.execute(f"COPY one TO '{_quoted(beside)}' (FORMAT parquet)")
    beside.replace(path)
    fsync_folder(folder)
    return path


def read(folder: Path, *, since: float = 0.0) -> list[BaselineRow]:
    """Every row, oldest first; empty where there is no database yet."""
    if not any(folder.glob("[!.]*.parquet")):
        return []
    names = [name for name in _COLUMNS if name != "version"]
    query = (
        f"SELECT {', '.join(names)} FROM read_parquet('{_quoted(folder)}/[!.]*.parquet', union_by_name = true) "
        "WHERE finished >= ? QUALIFY row_number() OVER (PARTITION BY run_id ORDER BY steps DESC) = 1 "
        "ORDER BY finished, run_id"
    )
    with _connect() as database:
        found = database.execute(query, [since]).fetchall()
    return [_row(dict(zip(names, values, strict=True))) for values in found]


def like(rows: Sequence[BaselineRow], configuration: Configuration) -> list[BaselineRow]:
    """The runs that can be compared with this configuration (out of memory ones have no cost)."""
    return [row for row in rows if row.configuration.like(configuration) and not row.out_of_memory]


class Cheapest(BaseModel):
    """An answer of the database, with what it rests on."""

    model_config = ConfigDict(frozen=True)

    configuration: Configuration
    runs: int
    median_usd_per_million_tokens: Decimal
    low_usd_per_million_tokens: Decimal
    high_usd_per_million_tokens: Decimal


def cheapest(rows: Sequence[BaselineRow], configuration: Configuration, *, least_runs: int = 2) -> Cheapest | None:
    """The cheapest known setting of the knobs for this model and hardware; None without enough runs of any."""
    groups: dict[str, list[BaselineRow]] = {}
    for row in like(rows, configuration):
        if row.usd_per_million_tokens is not None:
            groups.setdefault(repr(row.configuration.knobs()), []).append(row)
    answers = []
    for members in groups.values():
        if len(members) >= least_runs:
            costs = sorted(row.usd_per_million_tokens for row in members if row.usd_per_million_tokens is not None)
            answers.append(
                Cheapest(
                    configuration=members[-1].configuration,
                    runs=len(members),
                    median_usd_per_million_tokens=statistics.median(costs),
                    low_usd_per_million_tokens=costs[0],
                    high_usd_per_million_tokens=costs[-1],
                )
            )
    return min(answers, key=lambda answer: answer.median_usd_per_million_tokens, default=None)


def _connect() -> duckdb.DuckDBPyConnection:
    """In memory, one thread, and without a way to fetch extensions."""
    return duckdb.connect(
        config={"threads": 1, "autoinstall_known_extensions": False, "autoload_known_extensions": False}
    )


def _map(values: dict[str, float]) -> dict[str, list[Any]]:
    return {"key": list(values), "value": list(values.values())}


def _row(flat: dict[str, Any]) -> BaselineRow:
    settings = {name: flat.pop(name) for name in Configuration.model_fields}
    return BaselineRow(configuration=Configuration(**settings), **flat)


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
