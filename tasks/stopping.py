"""A request to end the invocation: from a signal, from `tokenmill stop`, or from a cancellation at the Prefect server.

Python would raise `KeyboardInterrupt` somewhere; here a signal only sets this flag, and the supervisor passes it on to
the stage, which saves and ends. A second signal asks for haste: the stage is killed at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Set once; thread-safe. `cancelled` tells a person's decision not to go on from an interruption."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason = ""
        self.cancelled = False
        self.urgent = False
        self.within_seconds: float | None = None
        """How long the machine will still be there for the stage; None: as long as its grace."""

    def __bool__(self) -> bool:
        return self._event.is_set()

    def interrupt(self, reason: str, *, within_seconds: float | None = None) -> None:
        """End, to be gone on with. A second call asks for haste."""
        if self:
            self.urgent = True
        else:
            self.reason = reason
            self.within_seconds = within_seconds
            self._event.set()

    def cancel(self, reason: str) -> None:
        """End, not to be gone on with by itself."""
        self.cancelled = True
        if not self:
            self.reason = reason
            self._event.set()

    def wait(self, seconds: float) -> bool:
        """Sleep until asked to stop, at most so long; true if asked."""
        return self._event.wait(seconds)

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """In this block SIGINT and SIGTERM set the flag. Outside the main thread it changes nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[signal.Signals, Any] = {}
        try:
            for number in SIGNALS:
                before[number] = signal.signal(number, self._handle)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.interrupt("Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name)
