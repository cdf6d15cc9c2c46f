"""A serious server: PostgreSQL, basic authentication, loopback, no telemetry; a worker of a work pool runs its nights.

`make test-postgres` brings the database (scripts/with-postgres) and names it in TOKENMILL_TEST_POSTGRES.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import urllib.error
from pathlib import Path

import pytest

from flows.embedded import EmbeddedServer
from tests.integration.commands import environment, start, write_pipelines
from tests.integration.serving import Server, eventually, free_port, run_file
from tests.integration.test_whole_flow import TRAINING, write_corpus

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]

AUTH = "admin:a secret of sixteen"


def test_nights_of_a_work_pool_on_a_serious_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = os.environ["TOKENMILL_TEST_POSTGRES"]
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", database)
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", AUTH)
    write_corpus(tmp_path)
    write_pipelines(tmp_path, training={**TRAINING, "length": {"steps": 200}}, checks={"max_refused_pct": 50})
    port = free_port()
    prefect = EmbeddedServer(tmp_path / "prefect", ui_port=port)
    client = {"PREFECT_API_URL": prefect.api_url, "PREFECT_API_AUTH_STRING": AUTH, "PREFECT_HOME": str(tmp_path / "p")}
    try:
        prefect.wait_until_healthy()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            Server(port).call("/flow_runs/filter", {})
        server = Server(port, AUTH)
        assert server.call("/admin/settings")["server"]["analytics_enabled"] is False
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((own_address(), port), timeout=5)
        refused = start(tmp_path, "deploy", "--pool", "cluster", "--pool-kind", "docker", **client)
        assert "needs --image" in refused.communicate(timeout=120)[1]
        for pool, kind, image in (
            ("cluster", "kubernetes", ["--image", "house/tokenmill:1"]),
            ("machines", "process", []),
            ("machines", "process", []),  # again: nothing is doubled
        ):
            deployed = start(tmp_path, "deploy", "--pool", pool, "--pool-kind", kind, *image, **client)
            assert deployed.communicate(timeout=120)[1] == ""
            assert deployed.returncode == 0
            found = server.call("/deployments/name/retrain/on-demand")
            assert found["work_pool_name"] == pool
            assert found["job_variables"].get("image") == (image[1] if image else None)
        assert len(server.call("/deployments/filter", {})) == 1
        with (tmp_path / "worker.log").open("w") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "prefect", "worker", "start", "--pool", "machines", "--type", "process"],
                env={**environment(), **client},
                cwd=tmp_path,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            night = server.start_night()
            eventually(lambda: server.state(night) == "Completed", seconds=400)
        finally:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        assert run_file(tmp_path)["status"] == "completed"
        assert asyncio.run(states_in(database)) == ["Completed"]
    finally:
        prefect.close()


def own_address() -> str:
    """This machine's address on its network, which a server on loopback does not listen on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


async def states_in(database: str) -> list[str]:
    import asyncpg

    connection = await asyncpg.connect(database.replace("+asyncpg", ""))
    try:
        return [row["state_name"] for row in await connection.fetch("select state_name from flow_run")]
    finally:
        await connection.close()
