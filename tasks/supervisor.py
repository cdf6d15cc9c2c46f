"""The supervisor: starts a stage, listens to it, keeps its time in the ledger, and ends it when asked.

It writes `spawned`, a `heartbeat` at least once a second, and `reaped`, from its own clock, so that the time of a stage
that is killed is known as well (law 6). A request to stop is passed on once, as SIGTERM; a stage that has not ended
after the grace is killed.
"""

from __future__ import annotations

import json
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from pydantic import ValidationError

from tasks.noise import is_noise
from tasks.runtime import Runtime, StageCommand
from tasks.stopping import StopRequest
from tasks.watchdog import Watchdog
from tokenmill.cost.ledger import LedgerWriter
from tokenmill.protocol import RESULT_NAME, ExitCode, LogLine, ProgressLine, StageResult
from tokenmill.workspace import read_json

HEARTBEAT_SECONDS = 0.5
POLL_SECONDS = 0.2
DRAIN_SECONDS = 2.0
"""For pipes that a stage's orphaned grandchild holds open after its end."""


_REASONS: dict[int, str] = {
    ExitCode.DONE: "completed",
    ExitCode.USER_ERROR: "user_error",
    ExitCode.INTERRUPTED: "interrupted",
    # Before a stage listens to signals it has nothing to save.
    -signal.SIGTERM: "interrupted",
    -signal.SIGINT: "interrupted",
}


class Listener(Protocol):
    """Whoever shows a stage's words to people; called in the thread that waits for the stage."""

    def log(self, line: LogLine) -> None: ...

    def progress(self, line: ProgressLine) -> None: ...


@dataclass(frozen=True)
class Ending:
    """How a stage process ended."""

    exit_code: int
    """Negative: ended by that signal."""
    reason: str
    """For the ledger: completed, interrupted, user_error, out_of_memory, killed, hung, crashed."""
    result: StageResult | None
    """None if the stage wrote none."""
    stop_asked: bool
    """Whether this supervisor asked for the end."""
    cause: str = ""
    """What the watchdog saw, if it ended the stage, or what the runtime knows of its end."""

    @property
    def message(self) -> str:
        """One sentence for people."""
        if self.cause:
            return self.cause
        if self.result is not None and self.result.message:
            return self.result.message
        if self.exit_code < 0:
            return f"{self.reason.replace('_', ' ')} ({signal.Signals(-self.exit_code).name})"
        return f"{self.reason.replace('_', ' ')} (exit code {self.exit_code})"


@dataclass
class Attempt:
    """A stage to be supervised: what to start, and what the ledger says about it beforehand."""

    command: StageCommand
    ledger: Path
    spawned: Mapping[str, Any]
    """Fields of the `spawned` record: attempt_id, invocation_id, run_id, price, ..."""
    grace_seconds: float
    asked: Callable[[], bool] = field(default=lambda: False)
    """Looked at once a second: whether a person asked to stop (`tokenmill stop`)."""
    watchdog: Watchdog | None = None


class Supervised:
    """A stage that runs. Its pipes are read and its heart beats in threads, from construction on; `wait` does the rest.

    So a stage may start while its supervisor is busy elsewhere (importing Prefect, waiting for a server).
    """

    def __init__(self, runtime: Runtime, attempt: Attempt) -> None:
        self._attempt = attempt
        self._ledger = LedgerWriter(attempt.ledger)
        self._lines: queue.SimpleQueue[LogLine | ProgressLine] = queue.SimpleQueue()
        self._stop_asked = False
        self._ending: Ending | None = None
        self._killed_for_memory = _OomCounter()
        started = time.time()
        self._process = runtime.start(attempt.command)
        self._ledger.write(
            "spawned",
            sync=True,
            stage=attempt.command.stage,
            host=socket.gethostname(),
            pid=self._process.pid,
            image=runtime.image,
            started=started,
            **attempt.spawned,
        )
        self._readers = [
            threading.Thread(target=self._read, args=(self._process.output, "INFO"), daemon=True),
            threading.Thread(target=self._read, args=(self._process.errors, "WARNING"), daemon=True),
        ]
        self._keeper = threading.Thread(target=self._keep_time, daemon=True)
        for thread in (*self._readers, self._keeper):
            thread.start()

    @property
    def ending(self) -> Ending | None:
        """How the stage ended, once it has; None before."""
        return self._ending

    def wait(self, stop: StopRequest, listener: Listener) -> Ending:
        """Until the stage has ended. Never raises for what the stage does."""
        asked_at: float | None = None
        killed = False
        looked_at = 0.0
        while self._keeper.is_alive():
            self._deliver(listener)
            now = time.monotonic()
            if not stop and now - looked_at >= 1.0:
                looked_at = now
                if self._attempt.asked():
                    stop.cancel("stopped by hand")
            if stop and asked_at is None:
                asked_at = now
                self._stop_asked = True
                self._ledger.write("event", sync=True, name="stop_asked", reason=stop.reason)
                self._process.send(signal.SIGTERM)
            elif asked_at is not None and not killed and (stop.urgent or now - asked_at > self._grace(stop)):
                killed = True
                self._ledger.write(
                    "event", sync=True, name="killed", reason="haste" if stop.urgent else "grace is over"
                )
                self._process.kill()
        self._drain(listener)
        self._ledger.close()
        self._process.close()
        assert self._ending is not None
        return self._ending

    def _grace(self, stop: StopRequest) -> float:
        """The pipeline's, or less where the machine goes away sooner."""
        grace = self._attempt.grace_seconds
        return grace if stop.within_seconds is None else min(grace, stop.within_seconds)

    def _keep_time(self) -> None:
        """Heartbeats, and at the end `reaped`: at once, even if nobody waits yet, for what follows is not the stage's.

        A full disk costs the record, not the stage: without `reaped` the bill ends at the last heartbeat, as estimated.
        """
        while (code := self._process.wait(HEARTBEAT_SECONDS)) is None:
            with suppress(OSError):
                self._ledger.write("heartbeat")
            if self._attempt.watchdog is not None:
                self._attempt.watchdog.tick(self._process, self._ledger.write, self._warn)
        self._ending = self._judge(code)
        with suppress(OSError):
            self._ledger.write("reaped", sync=True, exit_code=code, reason=self._ending.reason)

    def _judge(self, code: int) -> Ending:
        result = None
        with suppress(FileNotFoundError, ValueError):  # killed before it could write: the exit code says so
            result = StageResult.model_validate(read_json(self._attempt.command.spec.with_name(RESULT_NAME)))
        hang = self._attempt.watchdog.hang if self._attempt.watchdog is not None else ""
        cause = self._process.cause
        if hang:
            reason = "hung"
        elif cause is not None:
            reason = cause.reason
        elif code == -signal.SIGKILL:
            reason = "out_of_memory" if self._killed_for_memory() else "killed"
        elif code == ExitCode.DONE and result is None:
            reason = "crashed"
        else:
            reason = _REASONS.get(code, "crashed")
        return Ending(code, reason, result, self._stop_asked, hang or (cause.message if cause else ""))

    def _warn(self, message: str, event: dict[str, Any] | None = None) -> None:
        self._lines.put(LogLine(level="ERROR", message=message, time=time.time(), event=event))

    def _deliver(self, listener: Listener, wait_seconds: float = POLL_SECONDS) -> None:
        """Hand over what has been said so far; if that is nothing, wait for it a little."""
        while True:
            try:
                line = self._lines.get(block=wait_seconds > 0, timeout=wait_seconds)
            except queue.Empty:
                return
            wait_seconds = 0
            listener.log(line) if isinstance(line, LogLine) else listener.progress(line)

    def _drain(self, listener: Listener) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS
        for thread in self._readers:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._deliver(listener, wait_seconds=0)

    def _read(self, pipe: IO[bytes], level: str) -> None:
        try:
            for raw in pipe:
                line = parse_line(raw, level)
                if line is not None:
                    self._lines.put(line)
        except ValueError:
            pass  # closed under us, since a grandchild held it open


def parse_line(raw: bytes, level: str) -> LogLine | ProgressLine | None:
    """A line of the stage's output: a JSON object of the protocol, or the word of a library at `level`.

    None for an empty line and for the start-up noise of libraries.
    """
    text = raw.decode("utf-8", errors="replace").rstrip()
    if text.startswith("{"):
        try:
            value = json.loads(text)
            return (
                ProgressLine.model_validate(value) if value.get("type") == "progress" else LogLine.model_validate(value)
            )
        except (ValueError, ValidationError):
            pass
    if not text.strip() or is_noise(text):
        return None
    return LogLine(level=level, message=text, time=time.time())


class _OomCounter:
    """Tells whether the kernel killed a process of this control group for memory since this object was made."""

    def __init__(self) -> None:
        self._before = self._read()

    def __call__(self) -> bool:
        return self._read() > self._before

    @staticmethod
    def _read() -> int:
        try:
            group = Path("/proc/self/cgroup").read_text(encoding="utf-8").strip().rpartition("::")[2]
            events = Path(f"/sys/fs/cgroup{group}/memory.events").read_text(encoding="utf-8")
        except OSError:
            return 0  # no control groups v2 here
        counts = dict(line.split() for line in events.splitlines())
        return int(counts.get("oom_kill", 0))
