"""Several processes as one stage: the workers of a distributed training.

Each worker is told of the others by TF_CONFIG, the variable that TensorFlow's distribution reads. Whoever starts the
processes (here on loopback; a container runtime in its own network) hands them to a `WorkerGroup`, which behaves as one
process: one output, one exit code. Workers that wait for a dead peer may wait for ever and do not hear SIGTERM, so the
group ends them itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import IO, Protocol

from tokenmill.protocol import LogLine

PEER_GRACE_SECONDS = 10.0
"""For the others to end by themselves, once a worker has failed."""
STACK_SECONDS = 2.0
"""For a worker to write the stacks of its threads, before it is killed."""
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Cause:
    """Why a stage ended badly, where its runtime knows more than the exit code says."""

    reason: str
    """For the ledger: out_of_memory, engine_gone, ..."""
    message: str
    """One sentence for people."""


class WorkerProcess(Protocol):
    """What a group needs of each process; see `tasks.runtime.StageProcess`."""

    pid: int
    output: IO[bytes]
    errors: IO[bytes]

    @property
    def cause(self) -> Cause | None: ...

    def send(self, number: signal.Signals) -> None: ...

    def kill(self) -> None: ...

    def wait(self, seconds: float) -> int | None: ...

    def close(self) -> None: ...


def cluster_environments(addresses: Sequence[str]) -> list[dict[str, str]]:
    """TF_CONFIG of each worker, from all their addresses (host:port); worker 0 is the chief."""
    cluster = {"worker": list(addresses)}
    return [
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})}
        for index in range(len(addresses))
    ]


def loopback_addresses(count: int) -> list[str]:
    """Free ports of this machine."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


def shared_cores(environment: dict[str, str], workers: int) -> dict[str, str]:
    """Thread counts of `environment`, divided among workers on one machine."""
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    return {name: str(max(1, int(environment[name]) // workers)) for name in names if name in environment}


class WorkerGroup:
    """Worker processes, the chief first, as one stage process.

    The exit code is the first that was not 0: what ended a worker is the cause, and what that did to the others is not.
    """

    def __init__(self, workers: Sequence[WorkerProcess], grace_seconds: float = PEER_GRACE_SECONDS) -> None:
        self._workers = list(workers)
        self._grace = grace_seconds
        self._codes: dict[int, int] = {}
        """By worker, in the order of their ends."""
        self._changed = threading.Condition()
        self._failed: float | None = None
        self._stages = 0
        self.pid = self._workers[0].pid
        self.output, self._say = _merged([worker.output for worker in self._workers])
        self.errors, _ = _merged([worker.errors for worker in self._workers])
        for index in range(len(self._workers)):
            threading.Thread(target=self._watch, args=(index,), name=f"worker-{index}", daemon=True).start()

    @property
    def cause(self) -> Cause | None:
        """Of the worker that failed first, if its runtime knows more than the exit code."""
        causes = [self._workers[index].cause for index, code in self._codes.items() if code]
        return causes[0] if causes else None

    def send(self, number: signal.Signals) -> None:
        for worker in self._alive():
            worker.send(number)

    def kill(self) -> None:
        for worker in self._workers:
            worker.kill()

    def wait(self, seconds: float) -> int | None:
        deadline = time.monotonic() + seconds
        with self._changed:
            while len(self._codes) < len(self._workers):
                self._end_the_rest()
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(min(left, POLL_SECONDS))
            return next((code for code in self._codes.values() if code), 0)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        for pipe in (self.output, self.errors):
            pipe.close()

    def _watch(self, index: int) -> None:
        while (code := self._workers[index].wait(3600.0)) is None:
            pass
        with self._changed:
            self._codes[index] = code
            self._changed.notify_all()

    def _alive(self) -> list[WorkerProcess]:
        return [worker for index, worker in enumerate(self._workers) if index not in self._codes]

    def _end_the_rest(self) -> None:
        """SIGTERM, after the grace a call for stacks, then SIGKILL: once a worker has failed, or the chief is gone."""
        failed = next(((index, code) for index, code in self._codes.items() if code or index == 0), None)
        if failed is None:
            return
        now = time.monotonic()
        if self._failed is None:
            self._failed = now
        after = now - self._failed
        for stage, (due, number) in enumerate(
            [(0.0, signal.SIGTERM), (self._grace, signal.SIGUSR2), (self._grace + STACK_SECONDS, signal.SIGKILL)]
        ):
            if self._stages > stage or after < due:
                continue
            self._stages = stage + 1
            if number is signal.SIGTERM:
                self._announce(*failed)
            for worker in self._alive():
                worker.kill() if number is signal.SIGKILL else worker.send(number)

    def _announce(self, index: int, code: int) -> None:
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        message = f"worker {index} has ended ({how}); the others follow within {self._grace + STACK_SECONDS:g} s"
        line = LogLine(level="WARNING" if code else "INFO", message=message, time=time.time())
        with suppress(OSError):
            os.write(self._say, line.model_dump_json().encode() + b"\n")


def _merged(pipes: Sequence[IO[bytes]]) -> tuple[IO[bytes], int]:
    """One pipe with the lines of all, which ends when all have ended; and its end for writing."""
    reader, writer = os.pipe()
    left = [len(pipes)]
    lock = threading.Lock()

    def pump(pipe: IO[bytes]) -> None:
        # Whole lines only: lines of two workers must not mix.
        with suppress(ValueError, OSError):
            for line in pipe:
                with lock:
                    written = 0
                    while written < len(line):
                        written += os.write(writer, line[written:])
        with lock:
            left[0] -= 1
            if not left[0]:
                os.close(writer)

    for pipe in pipes:
        threading.Thread(target=pump, args=(pipe,), daemon=True).start()
    return os.fdopen(reader, "rb"), writer
