"""A started container as a `tasks.runtime.StageProcess`: pipes, signals, exit code, and why it ended badly."""

from __future__ import annotations

import os
import signal
import struct
import threading
from contextlib import suppress
from typing import IO, Any

from tasks.workers import Cause

SIGNALLED = 128
"""A process that a signal ended has 128 + its number as the exit code of its container."""
STDERR_STREAM = 2


class StageContainer:
    """Starts the container with its standard streams attached to this process."""

    def __init__(self, client: Any, container: Any) -> None:
        self._client = client
        self._container = container
        self._code: int | None = None
        self._ended = threading.Event()
        self.cause: Cause | None = None
        self._socket = container.attach_socket(params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
        self.output, say = _pipe()
        self.errors, complain = _pipe()
        threading.Thread(target=self._demultiplex, args=(say, complain), daemon=True).start()
        container.start()
        self.pid = int(client.api.inspect_container(container.id)["State"]["Pid"])
        threading.Thread(target=self._watch, daemon=True).start()

    def send(self, number: signal.Signals) -> None:
        with suppress(*_engine_faults()):  # it is gone, or the engine is: `wait` tells
            self._container.kill(signal=number.name)

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def wait(self, seconds: float) -> int | None:
        return self._code if self._ended.wait(seconds) else None

    def close(self) -> None:
        # The SDK hands out a file over the socket of a response that it keeps: all three hold it open.
        for held in (getattr(self._socket, "_response", None), self._socket, getattr(self._socket, "_sock", None)):
            if held is not None:
                with suppress(OSError, ValueError):
                    held.close()
        with suppress(*_engine_faults()):
            self._container.remove(force=True)
        for pipe in (self.output, self.errors):
            pipe.close()

    def _watch(self) -> None:
        try:
            code = int(self._container.wait(timeout=None)["StatusCode"])
            state = self._client.api.inspect_container(self._container.id)["State"]
        except _engine_faults() as error:
            self.cause = Cause("engine_gone", f"the container engine went away while the stage ran: {error}")
            self._code = 1
        else:
            self._code = SIGNALLED - code if SIGNALLED < code < SIGNALLED + signal.NSIG else code
            # A killed child sets the flag as well, and its parent may live on and end well.
            if state["OOMKilled"] and code:
                self.cause = Cause(
                    "out_of_memory", "out of memory: raise runtime.docker.memory or lower micro_batch_size"
                )
        self._ended.set()

    def _demultiplex(self, say: int, complain: int) -> None:
        """The engine sends frames: stream (1 output, 2 errors), three zeros, length, bytes."""
        raw = getattr(self._socket, "_sock", self._socket)
        try:
            while header := _exactly(raw, 8):
                stream, length = struct.unpack(">BxxxL", header)
                data = _exactly(raw, length)
                _write(complain if stream == STDERR_STREAM else say, data)
        except (OSError, ValueError):
            pass  # closed under us
        finally:
            os.close(say)
            os.close(complain)


def _pipe() -> tuple[IO[bytes], int]:
    reader, writer = os.pipe()
    return os.fdopen(reader, "rb"), writer


def _write(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]


def _exactly(source: Any, length: int) -> bytes:
    """Empty at the end of the stream."""
    parts = b""
    while len(parts) < length:
        part = source.recv(length - len(parts))
        if not part:
            return b""
        parts += part
    return parts


def _engine_faults() -> tuple[type[Exception], ...]:
    import docker.errors
    import requests

    return docker.errors.DockerException, requests.exceptions.RequestException, ConnectionError
