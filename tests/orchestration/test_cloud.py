"""Notices of the clouds, from a metadata service on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tasks.cloud import METADATA_URL, Metadata, watched_for_notices
from tasks.stopping import StopRequest

pytestmark = pytest.mark.integration

AWS = "/latest/meta-data/"
GCP = "/computeMetadata/v1/instance/"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """What a metadata service answers, by path; the rest is 404, and so is what comes without its header."""
    answers: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            named = self.headers.get("X-aws-ec2-metadata-token") == "token" or self.command == "PUT"
            allowed = self.headers.get("Metadata-Flavor") == "Google" if "computeMetadata" in self.path else named
            body = answers.get(self.path) if allowed else None
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write((body or "").encode())

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    monkeypatch.setenv(METADATA_URL, f"http://127.0.0.1:{server.server_address[1]}")
    yield answers
    server.shutdown()
    server.server_close()


AWS_HERE = {"/latest/api/token": "token"}
GCP_HERE = {GCP + "id": "1", GCP + "preempted": "FALSE", GCP + "maintenance-event": "NONE"}


@pytest.mark.parametrize(
    ("here", "path", "answer", "said"),
    [
        (AWS_HERE, AWS + "spot/instance-action", '{"action": "terminate"}', "AWS takes this Spot machine away"),
        (AWS_HERE, AWS + "events/recommendations/rebalance", '{"noticeTime": "x"}', "AWS recommends to leave"),
        (GCP_HERE, GCP + "preempted", "TRUE", "GCP takes this Spot machine away"),
        (GCP_HERE, GCP + "maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE", "GCP ends this machine"),
    ],
)
def test_a_notice_asks_to_stop(
    service: dict[str, str], here: dict[str, str], path: str, answer: str, said: str
) -> None:
    service.update(here)
    stop = StopRequest()
    with watched_for_notices(stop, poll_seconds=0.02):
        assert not stop.wait(0.2)
        service[path] = answer
        assert stop.wait(10)
    assert said in stop.reason
    assert stop.within_seconds is not None
    assert stop.within_seconds < 120
    assert not stop.urgent
    assert not stop.cancelled


def test_where_there_is_no_cloud_nothing_is_asked_twice(service: dict[str, str]) -> None:
    assert Metadata().cloud() is None
    stop = StopRequest()
    with watched_for_notices(stop, poll_seconds=0.01):
        assert not stop.wait(0.1)


def test_a_recommendation_that_stands_already_stops_nothing_but_a_notice_does(service: dict[str, str]) -> None:
    service.update(AWS_HERE)
    service[AWS + "events/recommendations/rebalance"] = "{}"
    stop = StopRequest()
    with watched_for_notices(stop, poll_seconds=0.02):
        assert not stop.wait(0.3)
        service[AWS + "spot/instance-action"] = "{}"
        assert stop.wait(10)
    assert "in two minutes" in stop.reason
