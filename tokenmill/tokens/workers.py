"""Where work runs: in this process, or in this and worker processes of this machine.

A worker is ``python -m tokenmill.tokens.workers``: a fresh interpreter that imports no more than its work needs, reads
pickled calls from standard input and writes pickled results. It ends at the end of its input, so none outlives its
owner; it ignores SIGTERM and SIGINT, since its owner decides when to stop.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
_HEADER = struct.Struct("<Q")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of malloc.h."""


class Workers(Protocol):
    count: int

    def submit(self, work: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> Future[R]: ...
    def close(self) -> None: ...


class InProcess:
    """Does the work at once, in the caller's thread: for corpora too small to pay for a process's start."""

    count = 1

    def submit(self, work: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> Future[R]:
        future: Future[R] = Future()
        try:
            future.set_result(work(*arguments, **named))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        pass


class Processes:
    """A thread of this process and `count` - 1 worker processes; work starts in the order of `submit`.

    This process works too, since it is there already: on two cores that spares half of the starts.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._started = [_start_worker() for _ in range(count - 1)]
        self._idle: list[subprocess.Popen[bytes] | None] = [*self._started, None]
        keep_freed_memory()
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="worker")

    def submit(self, work: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> Future[R]:
        return self._threads.submit(self._call, work, arguments, named)

    def _call(self, work: Callable[..., R], arguments: Any, named: Any) -> R:
        with self._lock:
            worker = self._idle.pop()
        try:
            result: R = work(*arguments, **named) if worker is None else _ask(worker, (work, arguments, named))
            return result
        finally:
            with self._lock:
                self._idle.append(worker)

    def close(self) -> None:
        """Drop what has not begun, wait for what has, end the processes."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in self._started:
            assert worker.stdin
            assert worker.stdout
            worker.stdin.close()
        for worker in self._started:
            worker.wait()
            assert worker.stdout
            worker.stdout.close()


def _start_worker() -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "RAYON_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tokenmill.tokens.workers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )


def _ask(worker: subprocess.Popen[bytes], call: Any) -> Any:
    assert worker.stdin
    assert worker.stdout
    try:
        _write(worker.stdin, call)
        failed, value = _read(worker.stdout)
    except (EOFError, BrokenPipeError):
        raise RuntimeError(f"a worker process died (exit code {worker.wait()})") from None
    if failed:
        raise value
    return value


def _write(pipe: IO[bytes], value: Any) -> None:
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    pipe.write(_HEADER.pack(len(data)) + data)
    pipe.flush()


def _read(pipe: IO[bytes]) -> Any:
    header = pipe.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise EOFError
    (size,) = _HEADER.unpack(header)
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)


def keep_freed_memory() -> None:
    """Let the C allocator keep what is freed, up to 256 MiB.

    Every shard takes and frees arrays of megabytes; given back to the kernel each time, a quarter of the time would go
    into clearing their pages anew. Only glibc has this switch.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 28)
        mallopt(_M_TRIM_THRESHOLD, 1 << 28)


def serve() -> None:
    """A worker's whole life."""
    keep_freed_memory()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    source = os.fdopen(os.dup(0), "rb")
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not mix with the answers
    while True:
        try:
            work, arguments, named = _read(source)
        except EOFError:
            os._exit(0)
        try:
            answer = (False, work(*arguments, **named))
        except Exception as error:
            answer = (True, error)
        try:
            _write(sink, answer)
        except BrokenPipeError:
            os._exit(0)


if __name__ == "__main__":
    serve()
