"""A stage on Prefect's timeline: its log lines, a progress artifact that moves, and a state in plain words.

What the server does never holds up a stage or its supervision: progress goes out from a thread of its own, the newest
value only, and a server that is away is told about once.
"""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.schemas import State, StateType
from prefect.logging import get_run_logger
from prefect.states import Completed

from tasks.again import place
from tasks.night import Night
from tasks.notices import emit_stage_event
from tasks.supervisor import Ending
from tokenmill.protocol import LogLine, ProgressLine, StageName

PROGRESS_SECONDS = 2.0

_LEVELS = logging.getLevelNamesMapping()


def on_timeline(night: Night, stage: StageName) -> State:
    """One attempt of `stage`, inside a Prefect task run; the state says how it ended."""
    with _prefect_listener(f"progress-{stage}", night.name) as listener:
        ending = night.attempt(stage, [listener])
    return _state(night, stage, ending)


def part_on_timeline(night: Night, stage: StageName, inputs: dict[str, Any]) -> State:
    """One attempt of a part of `stage`, beside others: its words go to its own task run, and it has no progress bar."""
    ending = night.attempt_part(stage, inputs, PrefectListener("", night.name))
    return _state(night, stage, ending)


def _state(night: Night, stage: StageName, ending: Ending) -> State:
    if ending.reason == "completed":
        return Completed(message=ending.message)
    if ending.reason == "interrupted":
        end = night.stop.reason if night.stop else "resuming"
        return State(type=StateType.CRASHED, name="Interrupted", message=f"interrupted {place(night, stage)}, {end}")
    name = {"user_error": "UserError", "out_of_memory": "OutOfMemory"}.get(ending.reason, "Failed")
    return State(type=StateType.FAILED, name=name, message=ending.message)


class PrefectListener:
    """Log lines to the run's logger, progress to an artifact."""

    def __init__(self, key: str, pipeline: str) -> None:
        self._key, self._pipeline = key, pipeline
        self._logger = get_run_logger()
        self._newest: ProgressLine | None = None
        self._events: queue.SimpleQueue[LogLine] = queue.SimpleQueue()
        self._done = threading.Event()
        self._artifact: UUID | None = None
        self._showing = True

    def log(self, line: LogLine) -> None:
        self._logger.log(_LEVELS.get(line.level, logging.INFO), "%s", line.message)
        if line.event is not None:
            self._events.put(line)

    def progress(self, line: ProgressLine) -> None:
        self._newest = line

    def publish(self) -> None:
        """Until `close`: send events, and the newest progress whenever there is some."""
        ended = False
        while not ended:
            ended = self._done.wait(PROGRESS_SECONDS)
            self._send_events()
            line, self._newest = self._newest, None
            if line is None or not line.total or not self._showing:
                continue
            try:
                self._send(
                    min(100.0, 100.0 * line.done / line.total), f"{line.label} ({line.unit}) {line.detail}".strip()
                )
            except Exception as error:
                self._logger.warning("the progress artifact cannot be updated: %s", error)
                self._showing = False

    def _send_events(self) -> None:
        while not self._events.empty():
            with suppress(Exception):  # the ledger and the log have it
                emit_stage_event(self._pipeline, self._events.get().event or {})

    def _send(self, percent: float, description: str) -> None:
        if self._artifact is None:
            created = create_progress_artifact(percent, key=self._key, description=description)
            assert isinstance(created, UUID)
            self._artifact = created
        else:
            update_progress_artifact(self._artifact, percent, description)

    def close(self) -> None:
        self._done.set()


@contextmanager
def _prefect_listener(what: str, pipeline: str) -> Iterator[PrefectListener]:
    listener = PrefectListener(artifact_key(what, pipeline), pipeline)
    context = contextvars.copy_context()  # the artifact belongs to this task run
    publisher = threading.Thread(target=context.run, args=(listener.publish,), daemon=True)
    publisher.start()
    try:
        yield listener
    finally:
        listener.close()
        publisher.join(5.0)


def artifact_key(what: str, pipeline: str) -> str:
    """The key under which Prefect's UI keeps an artifact's history: lower-case letters, digits and dashes."""
    return f"{what}-{pipeline}".replace("_", "-")
