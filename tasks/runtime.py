"""Where a stage's process runs. A runtime starts `python -m tokenmill.stages.<stage>` somewhere and hands back a grip
on it; the supervisor does the rest. All runtimes behave alike: the stage's standard input is its lifeline, its standard
output and error come back as pipes, and a signal reaches the stage's own process first.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from tasks.workers import Cause, WorkerGroup, cluster_environments, loopback_addresses, shared_cores
from tokenmill.pipelines import Pipeline
from tokenmill.protocol import StageName


@dataclass(frozen=True)
class StageCommand:
    """What to start: paths are this machine's; a container runtime maps them to its own."""

    stage: StageName
    spec: Path
    roots: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    workers: int = 1
    """Processes that train together, for `train`; the others are one process."""


class StageProcess(Protocol):
    """A started stage."""

    pid: int
    output: IO[bytes]
    errors: IO[bytes]

    @property
    def cause(self) -> Cause | None:
        """Known once `wait` has given the exit code."""

    def send(self, number: signal.Signals) -> None:
        """Signal the stage's own process; nothing happens if it is gone."""

    def kill(self) -> None:
        """SIGKILL the stage and everything that it started."""

    def wait(self, seconds: float) -> int | None:
        """The exit code (negative: ended by that signal) if the stage ends within `seconds`, else None."""

    def close(self) -> None:
        """Let go of pipes and leftovers after the end."""


class Runtime(Protocol):
    image: str | None
    """What the stages run in, for the ledger; none outside containers."""

    def start(self, command: StageCommand) -> StageProcess: ...

    def end_orphans(self) -> Sequence[str]:
        """End what a dead supervisor of this pipeline left running; called while holding the pipeline's lock."""


class ProcessRuntime:
    """Stages as child processes on this machine, each in its own session, with this Python and its packages."""

    image: str | None = None

    def __init__(self, package: str = "tokenmill.stages") -> None:
        self._package = package

    def start(self, command: StageCommand) -> StageProcess:
        arguments = [sys.executable, "-m", f"{self._package}.{command.stage}", str(command.spec)]
        for name, path in sorted(command.roots.items()):
            arguments += ["--root", f"{name}={path}"]
        environment = {**os.environ, **command.environment}
        if command.workers == 1:
            return _LocalProcess(arguments, environment)
        environment |= shared_cores(environment, command.workers)
        told = cluster_environments(loopback_addresses(command.workers))
        return WorkerGroup([_LocalProcess(arguments, environment | each) for each in told])

    def end_orphans(self) -> Sequence[str]:
        """None: a stage whose supervisor is gone saves and ends by itself."""
        return ()


class _LocalProcess:
    cause: Cause | None = None

    def __init__(self, arguments: list[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.pid = self._process.pid
        self.output: IO[bytes] = self._process.stdout
        self.errors: IO[bytes] = self._process.stderr

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        # The stage leads its own session and group, so its worker processes go with it.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def wait(self, seconds: float) -> int | None:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def stage_environment(pipeline: Pipeline) -> dict[str, str]:
    """Variables for every stage: thread counts, no usage telemetry, quiet libraries."""
    threads = pipeline.training.threads
    count = str(threads if isinstance(threads, int) else len(os.sched_getaffinity(0)))
    return {
        "OMP_NUM_THREADS": count,
        "TF_NUM_INTRAOP_THREADS": count,
        "TF_NUM_INTEROP_THREADS": count,
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "KERAS_BACKEND": "tensorflow",
        "GX_ANALYTICS_ENABLED": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
    }
