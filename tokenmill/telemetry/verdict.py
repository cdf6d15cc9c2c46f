"""What holds the steps up, in words and numbers, from a window's step timing and, where there is one, its trace.

Shares are of the window's time in steps and waits for input; they sum to 100 %:

| share | is |
|---|---|
| input | the trainer waits for a batch (phase clock) |
| compute | a device runs kernels; on a processor, the share of its cores that compute while operations run |
| communication | a device exchanges with others and computes nothing |
| host | no kernel runs, and the host prepares the next ones |
| idle | the rest |
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from tokenmill.telemetry.trace import Operation, Trace, read_trace
from tokenmill.workspace import read_json

Share = Literal["compute", "input", "communication", "host", "idle"]
SMALL_SECONDS = {"gpu": 10e-6, "cpu": 30e-6}
"""A mean kernel or operation shorter than that is not worth its launch."""
WORTH_PCT: dict[Share, float] = {"input": 10.0, "communication": 15.0, "host": 20.0, "idle": 25.0}
"""From which share on something other than compute is called the bottleneck; the largest of those that pass."""

CROWDED_PCT = 15.0
"""Of the processor in other hands: worth a sentence."""

REMEDIES: dict[Share, str] = {
    "compute": "use a faster device, lower precision, or a smaller model",
    "input": "keep the snapshot on a local disk, or give the machine more cores for reading",
    "communication": "raise global_batch_size, use fewer workers, or a faster network between them",
    "host": "give each step more work: raise micro_batch_size, or try xla: on",
    "idle": "give each step more work: raise micro_batch_size or global_batch_size, or use a smaller machine",
}


class Window(BaseModel):
    """A few steps, timed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    first_step: int
    """Steps completed before it."""
    steps: int
    step_seconds: float
    input_seconds: float
    own_cpu_seconds: float
    other_cpu_seconds: float
    """Of the machine's other processes."""
    processed_tokens: int
    trace: str | None
    """Relative to the profile folder; None where profiling was refused."""
    refused: str = ""
    """By what."""
    time: float
    device: Literal["cpu", "gpu"]
    cores: float
    flops_per_token: int
    precision: str
    precision_reason: str


class Verdict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    first_step: int
    steps: int
    seconds_per_step: float
    shares_pct: dict[Share, float]
    bottleneck: Share
    small_kernels: bool
    model_flops_per_second: float
    operations: list[Operation]
    low_precision_pct: float | None
    traced: bool
    sentences: list[str]
    """The first says what holds the steps up and what to change."""


def read_verdicts(folder: Path) -> list[Verdict]:
    """Of all windows in a run's profile folder, oldest first."""
    windows = [Window.model_validate(read_json(path)) for path in sorted(folder.glob("window-*.json"))]
    return [judge(window, None if window.trace is None else read_trace(folder / window.trace)) for window in windows]


def judge(window: Window, trace: Trace | str | None) -> Verdict:
    """`trace` is a sentence where it could not be read."""
    missing = _missing(window, trace)
    usable = None if missing else trace
    assert not isinstance(usable, str)
    shares = _shares(window, usable)
    passing = [share for share, least in WORTH_PCT.items() if shares.get(share, 0.0) >= least]
    bottleneck: Share = max(passing, key=lambda share: shares[share], default="compute")
    small = _small_kernels(window, usable)
    seconds = window.step_seconds + window.input_seconds
    verdict = Verdict(
        first_step=window.first_step,
        steps=window.steps,
        seconds_per_step=seconds / window.steps,
        shares_pct=shares,
        bottleneck=bottleneck,
        small_kernels=small,
        model_flops_per_second=window.flops_per_token * window.processed_tokens / seconds,
        operations=usable.operations if usable else [],
        low_precision_pct=usable.low_precision_pct if usable else None,
        traced=usable is not None,
        sentences=[],
    )
    sentences = [_headline(window, verdict), _numbers(verdict), _products(window, usable), _precision(window, verdict)]
    sentences += [_neighbours(window), missing]
    return verdict.model_copy(update={"sentences": [sentence for sentence in sentences if sentence]})


def _shares(window: Window, trace: Trace | None) -> dict[Share, float]:
    """In percent, rounded to tenths so that they sum to 100."""
    whole = window.step_seconds + window.input_seconds
    waits = window.input_seconds / whole
    left = 1.0 - waits
    if trace is None:
        parts: dict[Share, float] = {"compute": left}
    elif trace.devices:
        compute = min(left, trace.compute_seconds / whole)
        communication = min(left - compute, trace.communication_seconds / whole)
        host = min(left - compute - communication, trace.host_seconds / whole)
        parts = {"compute": compute, "communication": communication, "host": host}
        parts["idle"] = left - sum(parts.values())
    else:
        running = min(left, trace.compute_seconds / whole)
        communication = min(left - running, trace.communication_seconds / whole)
        # Cores that other processes take are not this run's to use.
        lent_seconds = (window.cores * whole - window.other_cpu_seconds) * running
        used = min(1.0, window.own_cpu_seconds / lent_seconds) if lent_seconds > 0 else 1.0
        parts = {"compute": running * used, "communication": communication}
        parts["host"] = left - running - communication
        parts["idle"] = running * (1 - used)
    parts["input"] = waits
    tenths: dict[Share, float] = {share: round(100 * part, 1) for share, part in parts.items()}
    tenths["compute"] = round(100 - sum(value for share, value in tenths.items() if share != "compute"), 1)
    return tenths


def _small_kernels(window: Window, trace: Trace | None) -> bool:
    if trace is None or not trace.kernels:
        return False
    devices = max(1, trace.devices)
    return trace.compute_seconds * devices / trace.kernels < SMALL_SECONDS[window.device]


def _headline(window: Window, verdict: Verdict) -> str:
    share, pct = verdict.bottleneck, verdict.shares_pct
    device = "device" if window.device == "gpu" else "processor"
    what = {
        "compute": f"the {device} computes {pct['compute']:.0f} % of the time, and so holds the steps up",
        "input": f"the {device} waits {pct['input']:.0f} % of the time for input",
        "communication": f"the {device} waits {pct.get('communication', 0):.0f} % of the time for other devices",
        "host": f"the {device} waits {pct.get('host', 0):.0f} % of the time for the host to launch work",
        "idle": f"{pct.get('idle', 0):.0f} % of the {device} does nothing while steps run",
    }[share]
    if verdict.small_kernels and share in ("compute", "host", "idle"):
        return f"{what[0].upper()}{what[1:]}, in pieces too small for it: {REMEDIES['idle']}."
    return f"{what[0].upper()}{what[1:]}: {REMEDIES[share]}."


def _numbers(verdict: Verdict) -> str:
    shares = ", ".join(f"{share} {pct:g} %" for share, pct in sorted(verdict.shares_pct.items(), key=lambda i: -i[1]))
    rate = verdict.model_flops_per_second
    top = ", ".join(
        f"{op.name} {op.share_pct:.0f} %" + (f" at {si(op.flops_per_second)}FLOP/s" if op.flops_per_second else "")
        for op in verdict.operations[:4]
    )
    tops = f" Operations by time: {top}." if top else ""
    return (
        f"Steps {verdict.first_step + 1:,} to {verdict.first_step + verdict.steps:,} took "
        f"{verdict.seconds_per_step:.3g} s each ({si(rate)}FLOP/s of the model's): {shares}.{tops}"
    )


def _products(window: Window, trace: Trace | None) -> str:
    """A processor's trace has no FLOP rates: all products together do, by the model's formula."""
    products = [op for op in trace.operations if "MatMul" in op.name] if trace and not trace.devices else []
    seconds = sum(op.seconds for op in products)
    if not seconds:
        return ""
    rate = window.flops_per_token * window.processed_tokens / seconds
    share = sum(op.share_pct for op in products)
    return f"Matrix products take {share:.0f} % of the time of operations, at {si(rate)}FLOP/s while one runs."


def _precision(window: Window, verdict: Verdict) -> str:
    if verdict.low_precision_pct is not None:
        low = f"{verdict.low_precision_pct:.0f} % of kernel time is in low precision"
        return f"{low} (the run asks for {window.precision})."
    if window.device == "cpu":
        return (
            f"Matrix products run in {window.precision} ({window.precision_reason}); the trace of a processor does not "
            "name the types of its kernels."
        )
    return ""


def _neighbours(window: Window) -> str:
    taken = 100 * window.other_cpu_seconds / (window.cores * (window.step_seconds + window.input_seconds))
    if taken < CROWDED_PCT:
        return ""
    return f"Other processes took {min(taken, 100):.0f} % of the processor meanwhile, and slowed these steps down."


def _missing(window: Window, trace: Trace | str | None) -> str:
    """Why there is step timing only; empty if there is more."""
    if window.refused:
        why = f"profiling is not permitted here ({window.refused})"
    elif trace is None:
        why = "the profiler left no trace"
    elif isinstance(trace, str):
        why = trace
    elif window.device == "gpu" and not trace.devices:
        why = (
            "the trace has no GPU kernels, so GPU profiling is not permitted here (run the container with "
            "--cap-add=SYS_ADMIN, or load the driver with NVreg_RestrictProfilingToAdminUsers=0)"
        )
    else:
        return ""
    return f"Step timing only: {why}."


def si(value: float) -> str:
    """With a prefix: 1.2 G.

    >>> si(1.234e9)
    '1.23 G'
    """
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "
