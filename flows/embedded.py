"""The embedded Prefect server: one of our own for the time of a command, when PREFECT_API_URL names no other.

It is started first of all and comes up while the command does other work (docs/design/). Its
database lies in `<workspace>/prefect`, apart from the user's own, and keeps the flow runs of earlier nights.
Importing this module does not import Prefect; `python -m flows.embedded` is the server.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenmill.errors import UserError

START_SECONDS = 120.0
RESTARTS = 2
"""Of a server that died by itself, in the time of one command."""
POLL_SECONDS = 0.1
QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
}
"""Telemetry off, for client and server: the settings are separate."""
HEARTBEATS = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}
"""Seconds; what flows.deployments counts on."""
CLIENT = {
    **QUIET,
    **HEARTBEATS,  # a night of the command line on a server with our automations must not look silent
    # Log lines go to the server; on the terminal the command says them itself.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": "false",
}
_UNNEEDED_SERVICES = (
    "CANCELLATION_CLEANUP",
    "DB_VACUUM",
    "FOREMAN",
    "LATE_RUNS",
    "PAUSE_EXPIRATIONS",
    "REPOSSESSOR",
    "SCHEDULER",
    "TRIGGERS",
)
"""Nothing is scheduled and nobody waits on an embedded server."""


class EmbeddedServer:
    """A server that is coming up, or is up. It ends with this object, or with this process, however that ends."""

    def __init__(self, home: Path, ui_port: int | None = None) -> None:
        """With `ui_port` it is a whole server on that port, with schedules, automations and the UI."""
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        # Bound here and handed down, so that no other process can take the port in between.
        try:
            listener = socket.create_server(("127.0.0.1", ui_port or 0))
        except OSError as error:
            raise UserError(f"port {ui_port} cannot be used ({error.strerror}); choose another with --port") from None
        self.api_url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        environment = {**os.environ, **QUIET, "PREFECT_HOME": str(home), "PREFECT_UI_API_URL": self.api_url}
        if ui_port is None:
            environment["PREFECT_SERVER_UI_ENABLED"] = "false"
            environment |= {f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in _UNNEEDED_SERVICES}
        self._environment = environment
        self._listener = listener
        self._log = (home / "server.log").open("wb")
        self._closing = False
        self._process = self._start()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "flows.embedded", str(self._listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            env=self._environment,
            pass_fds=[self._listener.fileno()],
            start_new_session=True,
        )

    def _keep(self) -> None:
        """Start a server that died (killed, out of memory) again, on the same socket: the timeline goes on.

        Connections wait at the socket meanwhile. At last it is closed: they fail then, and hold up nobody.
        """
        for _ in range(RESTARTS):
            self._process.wait()
            if self._closing:
                return
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process = self._start()
        self._listener.close()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_died(self) -> bool:
        """Whether it has died for good."""
        return not self._keeper.is_alive()

    def client_environment(self) -> dict[str, str]:
        """Variables that point Prefect, imported later in this process, at this server."""
        # A server on this machine that does not answer is dead; waiting for it would only hold up the night's end.
        patience = {"PREFECT_CLIENT_MAX_RETRIES": "1"}
        return {**CLIENT, **patience, "PREFECT_API_URL": self.api_url, "PREFECT_HOME": str(self.home)}

    def serving_environment(self) -> dict[str, str]:
        """The same for a long-running process, whose logs are its only terminal."""
        variables = {**QUIET, "PREFECT_API_URL": self.api_url, "PREFECT_HOME": str(self.home)}
        secret = os.environ.get("PREFECT_SERVER_API_AUTH_STRING")
        return {**variables, "PREFECT_API_AUTH_STRING": secret} if secret else variables

    def wait_until_healthy(self, unless: Callable[[], bool] = lambda: False) -> bool:
        """False as soon as `unless` holds. Raises `UserError` if the server ends, or is not up after two minutes."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and not self.has_died:
            if unless():
                return False
            try:
                with urllib.request.urlopen(f"{self.api_url}/health", timeout=POLL_SECONDS) as answer:
                    if answer.status == 200:
                        return True
            except OSError:
                time.sleep(POLL_SECONDS)
        raise UserError(f"the embedded Prefect server did not start; {self.home / 'server.log'} says why")

    def close(self) -> None:
        self._closing = True
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(3)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._keeper.join()
        self._listener.close()
        self._log.close()


@contextmanager
def embedded_server(home: Path) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(home)
    try:
        yield server
    finally:
        server.close()


def serve(descriptor: int) -> None:
    """The server process: listens on an inherited socket, and ends when its standard input does."""
    import uvicorn
    from prefect.server.api.server import create_app

    server = uvicorn.Server(uvicorn.Config(create_app(), fd=descriptor, log_level="error", lifespan="on"))

    def follow_parent() -> None:
        while os.read(0, 4096):
            pass
        server.should_exit = True
        time.sleep(2.0)
        os._exit(0)

    threading.Thread(target=follow_parent, daemon=True).start()
    server.run()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
