"""`tokenmill tune` from the command line: the flow `tune` on the server that there is, or on an embedded one."""

from __future__ import annotations

import os
from typing import Any

from flows.embedded import CLIENT, embedded_server
from tokenmill.errors import UserError
from tokenmill.pipelines import Pipeline, PipelineFile


def tune_pipeline(file: PipelineFile, name: str, overrides: list[str], options: dict[str, Any]) -> None:
    """Raises `UserError` for what the user must mend."""
    pipeline: Pipeline = file.load(name, overrides)
    parameters = {"pipeline": name, "overrides": overrides, "file": str(file.path), **options}
    if os.environ.get("PREFECT_API_URL"):
        os.environ.update(CLIENT)
        _run(parameters)
        return
    with embedded_server(pipeline.local_workspace / "prefect") as server:
        os.environ.update(server.client_environment())
        server.wait_until_healthy()
        _run(parameters)


def numbers(option: str, text: str | None) -> list[int] | None:
    """`8,16` → [8, 16]."""
    if text is None:
        return None
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise UserError(f"{option}: '{text}' is not a list of whole numbers such as 8,16")
    return found


def words(option: str, text: str | None, known: tuple[str, ...]) -> list[str] | None:
    """`off,on` → ["off", "on"]."""
    if text is None:
        return None
    found = text.split(",")
    for word in found:
        if word not in known:
            raise UserError(f"{option}: '{word}' is not known; choose from {', '.join(known)}")
    return found


def _run(parameters: dict[str, Any]) -> None:
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    from flows.tune import tune

    state = tune(**parameters, return_state=True)
    APILogWorker.drain_all(timeout=5.0)
    EventsWorker.drain_all(timeout=5.0)
    if not state.is_completed():
        raise UserError(state.message or "the tuning failed")
