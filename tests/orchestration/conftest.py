"""One Prefect server for all tests of this folder, with a database of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from flows.embedded import embedded_server


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API's URL. Prefect must not be imported before: it reads its settings once."""
    # Imported already, it would quietly start a temporary server of its own, and complain about it at exit.
    assert "prefect" not in sys.modules, "a test module imports Prefect at its top: do that in the tests"
    with embedded_server(tmp_path_factory.mktemp("prefect")) as server:
        os.environ.update(server.client_environment())
        import flows.retrain  # noqa: F401

        server.wait_until_healthy()
        yield server.api_url
        from prefect.events.worker import EventsWorker
        from prefect.logging.handlers import APILogWorker

        APILogWorker.drain_all(timeout=10)
        EventsWorker.drain_all(timeout=10)
