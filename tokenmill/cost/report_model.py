"""report.json, version 1. Amounts are decimal strings in US dollars; amounts of a list sum to its total exactly."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Figure(_Part):
    """A number, and how it came about."""

    key: str
    label: str
    value: Decimal | float | None
    unit: str
    how: str
    """The formula with its numbers; for a missing value, why it is missing."""


class PhaseCost(_Part):
    phase: str
    """A phase of the ledger; `lost work` for what was reclassified."""
    seconds: float
    usd: Decimal | None
    share_pct: float
    """Of the billed time."""
    kind: Literal["goodput", "overhead", "lost"]


class StageCost(_Part):
    stage: str
    attempts: int
    seconds: float
    usd: Decimal | None


class LostWork(_Part):
    cause: str
    attempts: int
    steps: int
    nonpadding_tokens: int
    seconds: float
    usd: Decimal | None


class AttemptRow(_Part):
    attempt_id: str
    stage: str
    invocation_id: str | None
    started: float
    """Unix seconds."""
    ended: float
    estimated: bool
    billed_seconds: float
    reason: str
    exit_code: int | None
    host: str | None
    machine_type: str | None
    market: str | None
    usd_per_hour: Decimal | None
    price_source: str | None
    price_as_of: str | None
    price_note: str | None
    usd: Decimal | None
    from_step: int | None
    to_step: int | None
    """The last step that stayed in the model."""
    lost_steps: int


class BillLine(_Part):
    """The finest part of the bill: a phase of an attempt. The lines sum to the total."""

    attempt_id: str
    stage: str
    invocation_id: str | None
    phase: str
    lost: bool
    seconds: float
    usd: Decimal
    usd_per_hour: Decimal
    on_demand_usd_per_hour: Decimal | None
    started: float
    ended: float
    host: str | None
    machine_type: str | None
    market: str | None
    region: str | None
    price_source: str | None


class Cost(_Part):
    currency: str = "USD"
    total_usd: Decimal | None
    """None for an unpriced pipeline."""
    billed_seconds: float
    waiting_seconds: float
    """Between attempts, with no machine; not billed."""
    waiting: list[tuple[float, float]]
    """The same as stretches of Unix time."""
    goodput_pct: float
    """Share of the billed time that moved the model forward: phase `step`, lost work excluded."""
    train_goodput_pct: float | None
    """The same, of the train stage's billed time."""
    phases: list[PhaseCost]
    stages: list[StageCost]
    lost_work: list[LostWork]


class Tokens(_Part):
    retained_nonpadding: int
    retained_processed: int
    lost_nonpadding: int
    lost_processed: int
    padding_pct: float | None
    steps: int
    replayed_steps: int


class Evaluation(_Part):
    step: int
    loss: float
    bits_per_byte: float | None = None
    perplexity: float | None = None


class Point(_Part):
    step: int
    time: float
    attempt: int
    loss: float | None
    tokens_per_second: float | None


class Utilisation(_Part):
    """Means over a stretch of one attempt."""

    attempt: int
    time: float
    """Unix seconds."""
    cpu_pct: float | None = None
    """Of all cores together."""
    process_cpu_pct: float | None = None
    """Of one core."""
    process_memory_bytes: float | None = None
    memory_used_pct: float | None = None
    device_pct: float | None = None
    device_memory_pct: float | None = None


class Alarm(_Part):
    """Something that the watchers of a training said while it ran."""

    time: float
    """Unix seconds."""
    attempt: int
    kind: str
    """hang, or one of tokenmill.telemetry.alarm's."""
    cause: str | None
    sentence: str
    usd_per_hour_wasted: float | None


class Night(_Part):
    """One run of the baseline database, for the plot over nights."""

    run_id: str
    finished: float
    usd_per_million_tokens: Decimal | None
    tokens_per_second: float | None
    eval_loss: float | None


class BaselineVerdict(_Part):
    """This night against those like it."""

    status: Literal["no_data", "ok", "dearer", "cheaper", "unpriced"]
    runs: int
    median_usd_per_million_tokens: Decimal | None = None
    change_pct: float | None = None
    noise_pct: float | None = None
    """What the baseline's own spread explains."""
    moved_phase: str | None = None
    moved_points: float | None = None
    """Change of the phase's share of billed time, in percentage points."""
    cause: str | None = None
    """In words: the phase that moved, the price of an hour, or the pace of the steps."""
    suggestion: str | None = None
    sentence: str


class Report(_Part):
    schema_name: Literal["tokenmill.report/1"] = Field("tokenmill.report/1", alias="schema")
    generated: float
    """Unix seconds."""
    first_line: str
    outcome: str
    message: str
    pipeline: str
    invocation_id: str
    run_id: str | None
    snapshot: str | None
    notices: list[str]
    """What a reader must know before trusting a number."""
    figures: list[Figure]
    cost: Cost
    tokens: Tokens | None
    attempts: list[AttemptRow]
    bill: list[BillLine]
    """Empty for an unpriced pipeline."""
    evaluations: list[Evaluation]
    unigram_entropy_nats: float | None
    samples: list[dict[str, str]]
    validation: dict[str, Any] | None
    receipt: dict[str, Any] | None
    summary: dict[str, Any]
    packing: dict[str, Any] | None
    environment: dict[str, Any]
    config: dict[str, Any]
    config_changes: list[str] | None
    """Against the pipeline's last report; None where there is none."""
    baseline: BaselineVerdict
    nights: list[Night]
    curve: list[Point]
    """The run's log, thinned for plots."""
    utilisation: list[Utilisation]
    alarms: list[Alarm] = []
    """In the order of time."""
    profile: list[dict[str, Any]] = []
    """Verdicts on the profiler's windows (tokenmill.telemetry.verdict), oldest first."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    def figure(self, key: str) -> Figure:
        return next(figure for figure in self.figures if figure.key == key)
