"""Successive halving over the knobs of training: all are timed shortly, the better half longer, and so on.

Configurations are compared between like sequence lengths alone. A trial is a file that never changes, so that a tuning
that is interrupted goes on where it was. Source of the method: Jamieson and Talwalkar, "Non-stochastic best arm
identification and hyperparameter optimization", AISTATS 2016.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Literal

from pydantic import BaseModel, ConfigDict

from tokenmill.cost.estimate import usd_per_million_at
from tokenmill.cost.figures import payback_steps
from tokenmill.cost.words import plural

RUNG_STEPS = (6, 12, 24)
"""Timed updates of each rung; each keeps the better half of the one before."""
WARMUP_STEPS = 2
"""Untimed; XLA compiles in the first."""


class Knobs(BaseModel):
    """One configuration. Batches are in sequences."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sequence_length: int
    global_batch_size: int
    micro_batch_size: int
    """In one device's pass: the global batch is accumulated from passes of this size."""
    precision: str
    xla: str

    @property
    def key(self) -> str:
        batch = f"b{self.global_batch_size}-m{self.micro_batch_size}"
        return f"s{self.sequence_length}-{batch}-{self.precision}-xla_{self.xla}"


class Trial(BaseModel):
    """One measurement."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    knobs: Knobs
    rung: int
    status: Literal["measured", "out_of_memory", "failed"]
    message: str = ""
    step_seconds: tuple[float, ...] = ()
    start_seconds: float = 0.0
    """Until the first timed update: start, compile, warm-up."""
    nonpadding_tokens: int = 0
    """Of the timed updates, as `processed_tokens`."""
    processed_tokens: int = 0
    peak_memory_bytes: int | None = None
    parameters: int | None = None
    devices: int | None = None
    billed_seconds: float = 0.0
    usd_per_hour: Decimal | None = None
    finished: float = 0.0
    """Unix seconds."""

    @property
    def tokens_per_second(self) -> float:
        """Non-padding tokens a second while stepping; 0 where nothing was measured."""
        seconds = sum(self.step_seconds)
        return self.nonpadding_tokens / seconds if seconds > 0 else 0.0

    @property
    def mean_step_seconds(self) -> float:
        return sum(self.step_seconds) / len(self.step_seconds)

    @property
    def usd_per_million_tokens(self) -> Decimal | None:
        """Of stepping alone: start, saves and evaluations come on top."""
        if self.usd_per_hour is None or not self.tokens_per_second:
            return None
        return usd_per_million_at(self.tokens_per_second, self.usd_per_hour)

    @property
    def usd(self) -> Decimal:
        """What the trial itself cost, start included."""
        return (self.usd_per_hour or Decimal(0)) * Decimal(repr(self.billed_seconds)) / 3600


def grid(
    now: Knobs,
    *,
    sequence_lengths: Sequence[int],
    batch_sizes: Sequence[int],
    accumulations: Sequence[int],
    precisions: Sequence[str],
    xla: Sequence[str],
) -> list[Knobs]:
    """Every combination that divides, those nearest to `now` first: a budget that ends early has looked there."""
    found = {
        Knobs(
            sequence_length=length,
            global_batch_size=batch,
            micro_batch_size=batch // passes,
            precision=precision,
            xla=setting,
        )
        for length, batch, passes, precision, setting in itertools.product(
            sequence_lengths, batch_sizes, accumulations, precisions, xla
        )
        if batch % passes == 0
    }
    here = now.model_dump()

    def distance(knobs: Knobs) -> tuple[int, str]:
        return sum(value != here[name] for name, value in knobs.model_dump().items()), knobs.key

    return sorted(found, key=distance)


def survivors(trials: Iterable[Trial]) -> list[Knobs]:
    """The faster half of each sequence length, rounded up; at one price it is the cheaper half too."""
    kept = []
    for group in _by_length(trials):
        best = sorted(group, key=lambda trial: -trial.tokens_per_second)
        kept += [trial.knobs for trial in best[: (len(best) + 1) // 2]]
    return kept


def last_of_each(trials: Iterable[Trial]) -> list[Trial]:
    """The longest measurement of every configuration."""
    found: dict[str, Trial] = {}
    for trial in sorted(trials, key=lambda trial: trial.rung):
        found[trial.knobs.key] = trial
    return list(found.values())


def pareto(trials: Iterable[Trial]) -> list[Trial]:
    """Those that no other of the same sequence length beats in both speed and memory, fastest first."""
    chosen = []
    for group in _by_length(trials):
        least: float | None = None
        for trial in sorted(group, key=lambda t: (-t.tokens_per_second, t.peak_memory_bytes or 0)):
            memory = trial.peak_memory_bytes or 0
            if least is None or memory < least:
                chosen.append(trial)
                least = memory
    return chosen


def best_at(trials: Iterable[Trial], sequence_length: int) -> Trial | None:
    """Of the highest rung that this length reached."""
    own = [t for t in trials if t.status == "measured" and t.knobs.sequence_length == sequence_length]
    top = max((trial.rung for trial in own), default=0)
    return max((t for t in own if t.rung == top), key=lambda t: t.tokens_per_second, default=None)


def paste_lines(best: Knobs, now: Knobs) -> list[str]:
    """For pipelines.yaml. A changed global batch trains another model, and says so."""
    batch = f"  global_batch_size: {best.global_batch_size}"
    if best.global_batch_size != now.global_batch_size:
        batch += f"  # was {now.global_batch_size}: another run, whose loss must be looked at"
    return [
        "training:",
        batch,
        f"  micro_batch_size: {best.micro_batch_size}",
        f"  precision: {best.precision}",
        f'  xla: "{best.xla}"',
    ]


def xla_sentence(trials: Sequence[Trial], best: Trial) -> str | None:
    """After how many steps XLA pays its compile back, from the best configuration measured both ways; else None."""
    twins = {t.knobs.xla: t for t in trials if t.status == "measured" and _but_xla(t.knobs) == _but_xla(best.knobs)}
    if "on" not in twins or "off" not in twins:
        return None
    on, off = twins["on"], twins["off"]
    steps = payback_steps(max(0.0, on.start_seconds - off.start_seconds), off.mean_step_seconds, on.mean_step_seconds)
    said = f"{off.mean_step_seconds:.3f} s a step without XLA, {on.mean_step_seconds:.3f} s with it"
    if steps is None:
        return f"XLA never pays back here: {said}"
    return f"XLA pays its {on.start_seconds - off.start_seconds:.1f} s back after {plural(steps, 'step')}: {said}"


def _but_xla(knobs: Knobs) -> Knobs:
    return knobs.model_copy(update={"xla": ""})


def _by_length(trials: Iterable[Trial]) -> Iterator[list[Trial]]:
    measured = [trial for trial in trials if trial.status == "measured"]
    for length in sorted({trial.knobs.sequence_length for trial in measured}):
        yield [trial for trial in measured if trial.knobs.sequence_length == length]
