"""Profiles of real sessions: after warm-up, on demand, refused; and faults of the input and of the batch, named."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.training.training_helpers import FakeSnapshot, PackedRows, session, training
from tokenmill.telemetry.phases import PhaseClock
from tokenmill.telemetry.verdict import Verdict, read_verdicts
from tokenmill.training import loop
from tokenmill.training.loop import Hook, StepInfo
from tokenmill.training.profiling import REQUEST, ProfileHook

pytestmark = pytest.mark.tensorflow
FACTS = {"device": "cpu", "cores": 2, "flops_per_token": 1000, "precision": "float32", "precision_reason": "set"}


class SlowSnapshot(FakeSnapshot):
    """A source whose rows come late."""

    def rows(self, split: str, numbers: np.ndarray) -> PackedRows:
        time.sleep(0.2 if split == "train" else 0.0)
        return super().rows(split, numbers)


class Touch(Hook):
    """Does something at a step."""

    def __init__(self, step: int, what: Callable[[], object]) -> None:
        self._step, self._what = step, what

    def after(self, info: StepInfo) -> None:
        if info.step >= self._step:
            self._step = 10**9
            self._what()


class Refusing:
    def start(self, logdir: str) -> None:
        raise PermissionError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")

    def stop(self) -> None:
        raise AssertionError


def profiled(
    folder: Path,
    *,
    steps: int = 2,
    asked: Callable[[], bool] = lambda: False,
    more: tuple[Hook, ...] = (),
    **changes: Any,
) -> tuple[list[Verdict], PhaseClock]:
    made = session(folder, training(length={"steps": 24}), **{k: v for k, v in changes.items() if k != "profiler"})
    phases = made.phases
    given = {"profiler": changes["profiler"]} if "profiler" in changes else {}
    hook = ProfileHook(folder, phases, steps=steps, asked=asked, facts=FACTS, log=logging.getLogger("test"), **given)
    made.more_hooks = [hook, *more]
    made.run()
    return read_verdicts(folder / "profile"), phases


def test_a_window_after_warm_up_has_a_trace_and_a_verdict(tmp_path: Path) -> None:
    (verdict,), phases = profiled(tmp_path)
    assert verdict.traced
    assert verdict.first_step >= 5
    assert sum(verdict.shares_pct.values()) == pytest.approx(100)
    assert any("MatMul" in operation.name for operation in verdict.operations)
    assert "Matrix products take" in " ".join(verdict.sentences)
    assert "Matrix products run in float32 (set)" in " ".join(verdict.sentences)
    assert phases.totals()["profile"] > 0


def test_a_slow_input_is_the_bottleneck(tmp_path: Path) -> None:
    (verdict,), _ = profiled(tmp_path, snapshot=SlowSnapshot())
    assert verdict.bottleneck == "input"
    assert "for input: keep the snapshot on a local disk" in verdict.sentences[0]


def test_a_tiny_batch_is_small_kernels(tmp_path: Path) -> None:
    (verdict,), _ = profiled(tmp_path)
    assert verdict.small_kernels
    assert "in pieces too small for it" in verdict.sentences[0]


def test_a_file_in_the_runs_folder_and_a_signal_ask_for_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CALL_SECONDS", 0.0)
    signals = iter([False] * 12 + [True])
    touch = Touch(2, (tmp_path / REQUEST).touch)
    verdicts, _ = profiled(tmp_path, steps=0, asked=lambda: next(signals, False), more=(touch,))
    assert len(verdicts) == 2
    assert not (tmp_path / REQUEST).exists()


def test_where_profiling_is_refused_there_is_step_timing(tmp_path: Path) -> None:
    (verdict,), _ = profiled(tmp_path, profiler=Refusing())
    assert not verdict.traced
    assert set(verdict.shares_pct) == {"compute", "input"}
    assert "Step timing only: profiling is not permitted here (PermissionError: CUPTI_ERROR" in verdict.sentences[-1]
