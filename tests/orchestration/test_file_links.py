"""What the UI links to is served, and nothing else of a workspace, whatever a path looks like."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from flows.files import served_files
from tokenmill.errors import UserError

SEEN = {
    "runs/r1/report/report.html": "<p>cost</p>",
    "runs/r1/profile/trace.json": "{}",
    "invocations/i1/report/report.html": "<p>night</p>",
    "validations/s1/v1/report.html": "<p>data</p>",
    "validations/s1/v1/data_docs/index.html": "<p>docs</p>",
    "validations/s1/v1/data_docs/static/a b.css": "p {}",
}
HIDDEN = {
    "runs/r1/run.json": "{}",
    "runs/r1/checkpoints/step-1/weights": "w",
    "validations/s1/v1/summary.json": "{}",
    "runs/r1/report/.secret": "s",
    "shards/k/train.tfrecord": "t",
}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    root = tmp_path / "workspace"
    for name, content in (SEEN | HIDDEN).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    (tmp_path / "outside.html").write_text("outside")
    (root / "runs/r1/report/leak.html").symlink_to(tmp_path / "outside.html")
    (root / "runs/r1/report/up").symlink_to(root / "shards")
    with served_files({"small": root}, 0) as url:
        yield url


def get(site: str, path: str, method: str = "GET", host: str | None = None) -> tuple[int, str, str]:
    """Status, content type and body; the path goes out as it is, without a client's own tidying."""
    address = urlsplit(site)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=10)
    connection.putrequest(method, path, skip_host=host is not None)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, answer.headers["Content-Type"] or "", answer.read().decode()
    connection.close()
    return found


def test_reports_data_docs_and_profiles_are_seen(site: str) -> None:
    for name, content in SEEN.items():
        assert get(site, f"/small/{name.replace(' ', '%20')}")[::2] == (200, content)
    assert get(site, "/small/runs/r1/report/report.html")[1] == "text/html; charset=utf-8"
    assert get(site, "/small/validations/s1/v1/data_docs/")[2] == "<p>docs</p>"
    assert "/small/runs/r1/report/report.html" in get(site, "/")[2]


@pytest.mark.parametrize("name", HIDDEN)
def test_nothing_else_is_seen(site: str, name: str) -> None:
    assert get(site, f"/small/{name}")[0] == 404


@pytest.mark.parametrize(
    "path",
    [
        "/small/runs/r1/report/../run.json",
        "/small/runs/r1/report/%2e%2e/run.json",
        "/small/runs/r1/report/..%2frun.json",
        "/small/runs/r1/report//../../../../../etc/passwd",
        "/small/runs/r1/report/leak.html",
        "/small/runs/r1/report/up/k/train.tfrecord",
        "/small/../outside.html",
        "/small/runs/r1/report/%00",
        "/other/runs/r1/report/report.html",
        "/small",
        "/small/runs/r1/report",
    ],
)
def test_no_path_leads_out(site: str, path: str) -> None:
    assert get(site, path)[0] == 404


def test_it_is_read_only_and_answers_to_this_machines_names_only(site: str) -> None:
    path = "/small/runs/r1/report/report.html"
    assert get(site, path, "HEAD")[::2] == (200, "")
    assert get(site, path, "PUT")[0] == 501
    assert get(site, path, "DELETE")[0] == 501
    assert get(site, path, host="evil.example")[0] == 403
    assert get(site, path, host="localhost:1")[0] == 200


def test_a_port_that_is_taken_is_one_sentence(site: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="choose another with --files-port"), served_files({}, int(site.split(":")[-1])):
        pass
