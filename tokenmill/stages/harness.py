"""What every stage has around it: roots, signals, lifeline, ledger, JSON lines on standard output, exit code.

A stage module is a function of a `StageContext` and two lines:

    if __name__ == "__main__":
        main(StageName.PREPARE, prepare)
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tokenmill.cost.ledger import LedgerWriter
from tokenmill.errors import Interrupted, UserError
from tokenmill.pipelines import Pipeline
from tokenmill.protocol import (
    RESULT_NAME,
    STACKS_NAME,
    WORKSPACE_ROOT,
    ExitCode,
    LogLine,
    ProgressLine,
    StageName,
    StageResult,
    StageSpec,
    of_worker,
    worker_index,
)
from tokenmill.telemetry.phases import Phase, PhaseClock
from tokenmill.workspace import Workspace, write_json

LEDGER_INTERVAL_SECONDS = 1.0
PROGRESS_INTERVAL_SECONDS = 0.5


@dataclass
class StageContext:
    """What a stage gets besides its spec."""

    spec: StageSpec
    pipeline: Pipeline
    workspace: Workspace
    roots: dict[str, Path]
    """Folders by name; a source's is `corpus.<source name>`."""
    ledger: LedgerWriter
    phases: PhaseClock
    stop: StopFlag
    log: logging.Logger
    ledger_path: Path
    """Of `ledger`."""
    worker: int = 0
    """This process among those that train together; 0 is the chief, or the only one."""
    profile_asked: threading.Event = field(default_factory=threading.Event)
    """Set by SIGUSR1."""
    _last_progress: float = field(default=0.0)

    def progress(self, label: str, done: int, total: int | None, unit: str, detail: str = "") -> None:
        """Tell people how far the work is; lines come at most twice a second, the last one always."""
        if self.worker:
            return
        now = time.monotonic()
        if done != total and now - self._last_progress < PROGRESS_INTERVAL_SECONDS:
            return
        self._last_progress = now
        _print_line(ProgressLine(label=label, done=done, total=total, unit=unit, detail=detail).model_dump_json())


class StopFlag:
    """Set once by SIGTERM, SIGINT or a closed lifeline; looked at by the work between two pieces of it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._nothing_to_save = 0
        self._lock = threading.Lock()
        self._exit: Callable[[str], None] = lambda reason: None
        self.reason = ""

    def __bool__(self) -> bool:
        return self._event.is_set()

    def set(self, reason: str) -> None:
        with self._lock:
            self.reason = self.reason or reason
            self._event.set()
            exit_now = self._nothing_to_save > 0
        if exit_now:
            self._exit(self.reason)

    def listen_again(self) -> None:
        """Take the signals back: TensorFlow's coordination of workers puts its own handler of SIGTERM over ours."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)

    def wait(self, timeout: float) -> bool:
        return self._event.wait(timeout)

    def check(self) -> None:
        """Raise `Interrupted` if the flag is set: for places where everything is committed."""
        if self:
            raise Interrupted(self.reason)

    @contextmanager
    def nothing_to_save(self) -> Iterator[None]:
        """In this block a stop ends the process at once with exit code 75, from the signal thread.

        Python's own handlers do not run while TensorFlow compiles or restores.
        """
        with self._lock:
            self._nothing_to_save += 1
        try:
            self.check()
            yield
        finally:
            with self._lock:
                self._nothing_to_save -= 1


def main(stage: StageName, work: Callable[[StageContext], StageResult]) -> None:
    """Run `work` as the process's main job and exit by the protocol. Never returns."""
    arguments = _parse_arguments(stage)
    spec_path: Path = arguments.spec
    spec = StageSpec.model_validate_json(spec_path.read_bytes())
    roots = {name: Path(path) for name, path in (item.split("=", 1) for item in arguments.root)}
    worker = worker_index(os.environ)
    log = _json_logging(stage, worker)
    stop = StopFlag()
    workspace = Workspace(roots[WORKSPACE_ROOT])
    # A bill knows one file an attempt, the chief's; what the others write is for those who watch them.
    ledger_path = spec_path.with_name(of_worker("ledger.jsonl", worker)) if worker else workspace.root / spec.ledger
    ledger = LedgerWriter(ledger_path)
    phases = PhaseClock("start")
    context = StageContext(
        spec, Pipeline.model_validate(spec.pipeline), workspace, roots, ledger, phases, stop, log, ledger_path, worker
    )

    def leave(reason: str) -> None:
        _write_phases(context)
        with suppress(OSError):
            ledger.write("event", sync=True, name="interrupted", reason=reason, during=phases.current)
        os._exit(ExitCode.INTERRUPTED)

    stop._exit = leave
    _listen(stop, context.profile_asked)
    stacks = spec_path.with_name(of_worker(STACKS_NAME, worker)).open("wb")
    faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True)
    done = threading.Event()
    beat = threading.Thread(target=_beat, args=(context, done), name="ledger", daemon=True)
    beat.start()
    result = _run(context, work)
    code = _EXIT_CODES.get(result.status, ExitCode.DONE)
    if result.outputs.get("user_error"):
        code = ExitCode.USER_ERROR
    try:
        write_json(spec_path.with_name(of_worker(RESULT_NAME, worker)), result.model_dump(mode="json"))
    except OSError as error:
        log.error("the result of %s cannot be written: %s; what is committed stays", stage, error)
        code = code or ExitCode.CRASHED  # without its result a stage is not done
    phases.switch("idle")
    done.set()
    beat.join()
    _write_phases(context)
    with suppress(OSError):
        ledger.close()
    # The interpreter's own shutdown joins TensorFlow's threads, which takes up to seconds; all is written by now.
    sys.stdout.flush()
    os._exit(code)


_EXIT_CODES = {"interrupted": ExitCode.INTERRUPTED, "failed": ExitCode.CRASHED}


def _run(context: StageContext, work: Callable[[StageContext], StageResult]) -> StageResult:
    try:
        return work(context)
    except Interrupted as interrupted:
        context.log.warning("interrupted: %s", interrupted)
        return StageResult(status="interrupted", message=str(interrupted))
    except UserError as error:
        context.log.error("%s", error)
        return StageResult(status="failed", message=str(error), outputs={"user_error": True})
    except Exception as error:
        context.log.error("%s", traceback.format_exc())
        return StageResult(status="failed", message=f"{type(error).__name__}: {error}")


def _parse_arguments(stage: StageName) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m tokenmill.stages.{stage}")
    parser.add_argument("spec", type=Path, help="SPEC.json")
    parser.add_argument("--root", action="append", default=[], metavar="NAME=PATH")
    return parser.parse_args()


def _listen(stop: StopFlag, profile_asked: threading.Event) -> None:
    """Turn SIGTERM, SIGINT and the end of standard input into the stop flag, from threads of their own;
    SIGUSR1 asks for a profile.

    Python runs signal handlers between two bytecodes of the main thread only; the wake-up descriptor is written by the
    C handler at once, so the thread that reads it answers even while the main thread is inside a long C call.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    stop.listen_again()

    def watch_signals() -> None:
        while number := os.read(reader, 1):
            if number[0] == signal.SIGUSR1:
                profile_asked.set()
            else:
                stop.set(signal.Signals(number[0]).name)

    def watch_lifeline() -> None:
        while os.read(0, 4096):
            pass
        stop.set("the supervisor is gone")

    threading.Thread(target=watch_signals, name="signals", daemon=True).start()
    threading.Thread(target=watch_lifeline, name="lifeline", daemon=True).start()


def _beat(context: StageContext, done: threading.Event) -> None:
    while not done.wait(LEDGER_INTERVAL_SECONDS):
        _write_phases(context)


def _write_phases(context: StageContext) -> None:
    """A full disk costs the record, not the stage: the bill goes by the supervisor's own times."""
    current: Phase = context.phases.current
    with suppress(OSError):
        context.ledger.write("phases", seconds=context.phases.drain(), current=current)


class _JsonLines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _print_line(LogLine(level=record.levelname, message=self.format(record), time=record.created).model_dump_json())


def _json_logging(stage: StageName, worker: int) -> logging.Logger:
    # Libraries (Great Expectations above all, which sets the level of a logger itself) tell their inner life at INFO;
    # people want ours.
    lines = _JsonLines()
    lines.addFilter(lambda record: record.levelno >= logging.WARNING or record.name.startswith("tokenmill."))
    form = f"worker {worker}: %(message)s" if worker else "%(message)s"
    logging.basicConfig(level=logging.WARNING, format=form, handlers=[lines], force=True)
    logging.getLogger("tokenmill").setLevel(logging.WARNING if worker else logging.INFO)
    return logging.getLogger(f"tokenmill.{stage}")


_print_lock = threading.Lock()


def _print_line(line: str) -> None:
    with _print_lock:
        try:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        except (BrokenPipeError, ValueError):
            pass  # the supervisor is gone; the lifeline ends the stage, and the ledger still has everything
