"""The profiler's windows: one after warm-up, more on demand, each with the step timing that a verdict needs.

A window leaves ``profile/window-00000008.json`` (`tokenmill.telemetry.verdict.Window`) and, where profiling is
permitted, a trace beside it under ``profile/plugins/profile/``, where TensorBoard looks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil
import tensorflow as tf

from tokenmill.telemetry.phases import PhaseClock
from tokenmill.telemetry.verdict import Window
from tokenmill.training.loop import Hook, StepInfo
from tokenmill.workspace import write_json

AFTER_STEPS = 5
ON_DEMAND_STEPS = 3
REQUEST = "profile.request"
"""A file of this name in the run's folder asks for a window, and is taken away when it is heeded."""


class Profiler(Protocol):
    """`tf.profiler.experimental`, as far as it is used here."""

    def start(self, logdir: str) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True)
class _Moment:
    step: int
    phases: dict[str, float]
    own_cpu_seconds: float
    all_cpu_seconds: float


class ProfileHook(Hook):
    """Windows of a few updates. Their cost, start and end of the profiler, is the phase `profile`."""

    def __init__(
        self,
        run_folder: Path,
        phases: PhaseClock,
        *,
        steps: int,
        asked: Callable[[], bool],
        facts: dict[str, Any],
        log: logging.Logger,
        profiler: Profiler = tf.profiler.experimental,
    ) -> None:
        """`steps`: of the window after warm-up; 0 means none, and none is taken if the run has one. `asked` tells once
        that a window is wanted. `facts`: the fields of `Window` that are known beforehand."""
        self._folder, self._request = run_folder / "profile", run_folder / REQUEST
        self._phases = phases
        self._automatic = steps > 0 and not self._folder.exists()
        self._steps = steps or ON_DEMAND_STEPS
        self._asked = asked
        self._facts = facts
        self._log = log
        self._profiler = profiler
        self._first: int | None = None
        self._began: _Moment | None = None
        self._refused = ""
        self._processed = 0

    def steps_until_due(self, step: int) -> int | None:
        if self._began is not None:
            return max(1, self._began.step + self._steps - step)
        if not self._automatic:
            return None
        return AFTER_STEPS if self._first is None else max(1, self._first - step)

    def after(self, info: StepInfo) -> None:
        if self._began is not None:
            self._processed += info.processed_tokens
            if info.step >= self._began.step + self._steps:
                self._finish(self._began, info)
            return
        if self._first is None:
            self._first = info.step + AFTER_STEPS
        due = self._automatic and info.step >= self._first
        if due or self._wanted():
            self._automatic = False
            self._begin(info.step)

    def _wanted(self) -> bool:
        if self._request.is_file():
            self._request.unlink(missing_ok=True)
            return True
        return self._asked()

    def _begin(self, step: int) -> None:
        with self._phases.phase("profile"):
            self._refused = ""
            self._folder.mkdir(exist_ok=True)
            try:
                self._profiler.start(str(self._folder))
            except Exception as error:  # whatever it is, it must not cost the training
                self._refused = f"{type(error).__name__}: {error}"
                self._log.warning("the profiler does not start (%s); a profile is made from step timing", error)
            self._processed = 0
            self._began = self._moment(step)

    def _finish(self, began: _Moment, info: StepInfo) -> None:
        ended = self._moment(info.step)
        with self._phases.phase("profile"):
            if not self._refused:
                try:
                    self._profiler.stop()
                except Exception as error:
                    self._refused = f"{type(error).__name__}: {error}"
            spent = {name: ended.phases.get(name, 0.0) - began.phases.get(name, 0.0) for name in ("step", "input_wait")}
            window = Window(
                first_step=began.step,
                steps=info.step - began.step,
                step_seconds=spent["step"],
                input_seconds=spent["input_wait"],
                own_cpu_seconds=ended.own_cpu_seconds - began.own_cpu_seconds,
                other_cpu_seconds=max(
                    0.0,
                    ended.all_cpu_seconds - began.all_cpu_seconds - (ended.own_cpu_seconds - began.own_cpu_seconds),
                ),
                processed_tokens=self._processed,
                trace=None if self._refused else _newest_trace(self._folder),
                refused=self._refused,
                time=time.time(),
                **self._facts,
            )
            write_json(self._folder / f"window-{began.step:08d}.json", window.model_dump(mode="json"))
        self._log.info("profiled steps %s to %s", began.step + 1, info.step)
        self._began = None

    def _moment(self, step: int) -> _Moment:
        cpu = psutil.Process().cpu_times()
        machine = psutil.cpu_times()
        busy = sum(machine) - machine.idle - getattr(machine, "iowait", 0.0) - getattr(machine, "guest", 0.0)
        return _Moment(step, self._phases.totals(), cpu.user + cpu.system, busy)


def _newest_trace(folder: Path) -> str | None:
    """Relative to the profile folder; None if the profiler left nothing."""
    traces = sorted(folder.glob("plugins/profile/*/*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    return traces[-1].relative_to(folder).as_posix() if traces else None
