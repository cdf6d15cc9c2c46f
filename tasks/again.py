"""When a stage is started again: the table of exit codes, applied (DESIGN: how a stage runs).

| the stage | then |
|---|---|
| completed | the next stage |
| user error | the night is over: a person must mend something |
| interrupted, and this night was asked to stop | the night is over; a new start goes on where it was |
| interrupted otherwise (its machine went away) | started again, not counted as a crash |
| crashed | started again; too many in a row without a newly committed step fail the run |
"""

from __future__ import annotations

from collections.abc import Callable

from tasks.night import Night, NightOver
from tokenmill.invocations import Outcome
from tokenmill.protocol import StageName, StageResult

LONGEST_DELAY_SECONDS = 60.0


def until_done(night: Night, stage: StageName, attempt: Callable[[], object]) -> StageResult:
    """Call `attempt`, which makes one attempt of the night's, until the stage is done.

    Raises `NightOver` where starting the stage again would not help.
    """
    crashes = fruitless = 0
    while True:
        night.last_ending = None
        outcome = attempt()
        ending = night.last_ending
        if ending is None:
            raise RuntimeError(f"{stage} was not attempted: {outcome}")
        if ending.reason == "completed":
            assert ending.result is not None
            return ending.result
        if night.stop:
            raise NightOver(*_stopped(night, stage))
        if ending.reason == "user_error":
            refused = ending.result is not None and ending.result.outputs.get("verdict") == "fail"
            raise NightOver("refused_by_validation" if refused else "user_error", ending.message)
        fruitless = 1 if night.progressed else fruitless + 1
        if ending.reason != "interrupted":
            crashes = _count_crash(night, stage, crashes)
            if crashes >= night.pipeline.runtime.max_attempts_without_progress:
                raise NightOver(
                    "crashed", f"{stage} crashed {crashes} times without progress; at last: {ending.message}"
                )
        if night.stop.wait(min(LONGEST_DELAY_SECONDS, 2.0 ** (fruitless - 1) - 1)):
            raise NightOver(*_stopped(night, stage))


def place(night: Night, stage: StageName) -> str:
    """Where the night is, in words: `at step 1,240`, or `in prepare`."""
    if stage is StageName.TRAIN and night.run is not None and night.run.committed_step:
        return f"at step {night.run.committed_step:,}"
    return f"in {stage}"


def _stopped(night: Night, stage: StageName) -> tuple[Outcome, str]:
    if night.stop.cancelled:
        return "cancelled", f"stopped by hand {place(night, stage)}; it does not go on by itself"
    return "interrupted", f"interrupted {place(night, stage)} ({night.stop.reason}); start again to go on"


def _count_crash(night: Night, stage: StageName, crashes: int) -> int:
    """Crashes in a row without progress; those of training are counted over nights, in run.json."""
    if stage is not StageName.TRAIN or night.run is None:
        return crashes + 1
    if not night.progressed:
        night.update_run(crashes_without_progress=night.run.crashes_without_progress + 1)
    return night.run.crashes_without_progress
