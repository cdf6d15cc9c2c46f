"""Trials: one configuration timed in a process of its own, through the supervisor. Its end is never the night's."""

from __future__ import annotations

import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

from tasks.night import Night
from tasks.supervisor import Ending, Listener
from tokenmill.cost import baseline
from tokenmill.cost.accounting import read_attempt
from tokenmill.cost.baseline import BaselineRow
from tokenmill.cost.tuning import RUNG_STEPS, WARMUP_STEPS, Knobs, Trial, survivors
from tokenmill.protocol import StageName
from tokenmill.stages.configuration import configuration_of
from tokenmill.stages.trial import with_knobs
from tokenmill.workspace import read_json, write_json

ATTEMPTS = 2
"""Of a trial that was killed or crashed; after that it is a failure in the table."""


def measure(night: Night, snapshot: str, knobs: Knobs, rung: int, listener: Listener) -> Trial | None:
    """Time one configuration; None if the night was asked to stop meanwhile."""
    inputs = {
        "snapshot": snapshot,
        "knobs": knobs.model_dump(),
        "steps": RUNG_STEPS[rung],
        "warmup_steps": WARMUP_STEPS,
    }
    trial = None
    for _ in range(ATTEMPTS):
        ending = night.attempt_part(StageName.TRIAL, inputs, listener)
        if night.stop:
            return None
        trial = _trial(night, knobs, rung, ending)
        if trial.status != "failed" or ending.reason == "user_error":
            break
    return trial


def _trial(night: Night, knobs: Knobs, rung: int, ending: Ending) -> Trial:
    account = read_attempt(night.workspace.root / night.invocation.stages[-1].ledger)
    facts: dict[str, Any] = {"knobs": knobs, "rung": rung, "message": ending.message, "finished": time.time()}
    if account is not None:
        facts |= {"billed_seconds": account.billed_us / 1e6, "usd_per_hour": account.usd_per_hour}
    outputs = ending.result.outputs if ending.reason == "completed" and ending.result else {}
    if outputs.get("out_of_memory") or ending.reason == "out_of_memory":
        return Trial(status="out_of_memory", **facts)
    if not outputs:
        return Trial(status="failed", **facts)
    kept = {name: value for name, value in outputs.items() if name not in ("out_of_memory", "choices")}
    return Trial(status="measured", **facts, **kept)


def sweep(
    night: Night,
    folder: Path,
    candidates: list[Knobs],
    take: Callable[[Knobs, int], Trial | None],
    may_begin: Callable[[list[Trial]], bool],
) -> tuple[list[Trial], bool]:
    """Successive halving over `candidates`; what `folder` holds is not taken again. And: is it whole."""
    trials: list[Trial] = []
    for rung in range(len(RUNG_STEPS)):
        here = []
        for knobs in candidates:
            path = folder / "trials" / f"{knobs.key}-{rung}.json"
            if path.is_file():
                trial = Trial.model_validate(read_json(path))
            else:
                taken = take(knobs, rung) if may_begin(trials) else None
                if taken is None:
                    return trials, False
                trial = taken
                write_json(path, trial.model_dump(mode="json"))
            baseline.add(night.workspace.baselines, sweep_row(night, trial, folder.name))
            here.append(trial)
            trials.append(trial)
        candidates = survivors(here)
    return trials, True


def sweep_row(night: Night, trial: Trial, tuning: str) -> BaselineRow:
    """The trial's row of the baseline database."""
    pipeline = with_knobs(night.pipeline, trial.knobs.model_dump())
    machine = None if pipeline.cost == "unpriced" else pipeline.cost.machine_type
    configuration = configuration_of(pipeline, machine_type=machine).model_copy(
        update={"devices": trial.devices, "parameters": trial.parameters}
    )
    return BaselineRow(
        run_id=f"{tuning}-{trial.knobs.key}",
        kind="sweep",
        pipeline=night.name,
        finished=trial.finished,
        configuration=configuration,
        market=None,
        usd_per_hour=trial.usd_per_hour,
        total_usd=trial.usd.quantize(Decimal("0.000001")) if trial.usd_per_hour is not None else None,
        usd_per_million_tokens=None,  # that of stepping alone is not to be compared with a whole run's
        billed_seconds=trial.billed_seconds,
        stepping_seconds=sum(trial.step_seconds),
        steps=len(trial.step_seconds),
        nonpadding_tokens=trial.nonpadding_tokens,
        processed_tokens=trial.processed_tokens,
        phase_pct={},
        lost_pct=0.0,
        peak_memory_bytes=trial.peak_memory_bytes,
        out_of_memory=trial.status == "out_of_memory",
    )
