"""Learning rates by step: plain arithmetic.

`step` is the number of updates completed before the one that the rate is for, so step 0 is the first update.
"""

from __future__ import annotations

import math

from tokenmill.training.settings import LengthSettings, OptimizerSettings


def learning_rate(settings: OptimizerSettings, step: int, total_steps: int) -> float:
    """Linear warm-up from peak / warmup_steps to the peak, then the schedule down to `final_fraction` of the peak.

    The last update (step = total_steps - 1) gets a rate just above the final one, which step `total_steps` would get.
    """
    peak = settings.learning_rate
    warmup = min(settings.warmup_steps, total_steps)
    if step < warmup:
        return peak * (step + 1) / warmup
    low = settings.final_fraction
    if settings.schedule == "constant":
        return peak
    start = warmup
    if settings.schedule == "wsd":
        start = max(warmup, total_steps - math.ceil(settings.decay_fraction * total_steps))
        if step < start:
            return peak
    progress = min(1.0, (step - start) / max(1, total_steps - start))
    if settings.schedule == "cosine":
        return peak * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * progress)))
    return peak * (low + (1 - low) * (1 - progress))


def total_steps(length: LengthSettings, *, rows: int, tokens: int, global_batch_size: int) -> int:
    """Updates in a run over `rows` packed rows with `tokens` non-padding tokens; at least 1.

    A length in tokens counts non-padding tokens, at their mean number a row.
    """
    if length.steps is not None:
        return length.steps
    if length.epochs is not None:
        return max(1, math.ceil(length.epochs * rows / global_batch_size - 1e-9))
    assert length.tokens is not None
    return max(1, math.ceil(length.tokens * rows / (tokens * global_batch_size)))
