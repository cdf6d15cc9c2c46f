"""Checks of places, clocks and workers, each with a healthy and a sick case."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenmill.errors import UserError
from tokenmill.pipelines import Pipeline
from tokenmill.stages.preflight import checkpoint_bytes, place_checks, refuse
from tokenmill.telemetry.checks import (
    Check,
    checked,
    clock_check,
    disk_check,
    metadata_check,
    ring_check,
    workspace_check,
)
from tokenmill.telemetry.peaks import documented_peak


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def config(ports: list[int], index: int) -> dict[str, object]:
    return {"cluster": {"worker": [f"127.0.0.1:{p}" for p in ports]}, "task": {"type": "worker", "index": index}}


def test_a_workspace_is_written_renamed_and_read(tmp_path: Path) -> None:
    assert workspace_check(tmp_path).status == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named_with_its_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    found = workspace_check(tmp_path / "file")
    assert (found.status, found.fix) == ("failed", "mend its permissions, or name another folder in workspace")


def test_a_full_disk_is_named_with_its_fix(tmp_path: Path) -> None:
    assert disk_check(tmp_path, 1).status == "ok"
    found = disk_check(tmp_path, 10 << 30, free_bytes=1 << 30)
    assert found.status == "failed"
    assert found.found == "1,024 MiB free, 10,240 MiB needed for checkpoints and model"
    assert "keep_last" in found.fix


def test_room_is_wanted_for_the_checkpoints_that_are_kept_and_two_more(tmp_path: Path) -> None:
    def pipeline(keep_last: int) -> Pipeline:
        return Pipeline.model_validate(
            {
                "corpus": {"sources": [{"name": "notes", "root": str(tmp_path)}]},
                "training": {"length": {"steps": 1}, "checkpoint": {"keep_last": keep_last}},
                "cost": "unpriced",
            }
        )

    assert checkpoint_bytes(pipeline(8), 4096) == 2 * checkpoint_bytes(pipeline(3), 4096)
    assert {check.status for check in place_checks(pipeline(2), tmp_path, 4096)} == {"ok"}
    found = {check.name: check for check in place_checks(pipeline(10**9), tmp_path, 4096)}
    assert found["disk"].status == "failed"
    assert "free some space (tokenmill gc)" in found["disk"].fix


@pytest.mark.parametrize(
    ("ahead", "status", "word"), [(0, "ok", ""), (90, "failed", "ahead"), (-90, "failed", "behind")]
)
def test_a_clock_that_is_wrong_is_named(tmp_path: Path, ahead: float, status: str, word: str) -> None:
    found = clock_check(tmp_path, now=lambda: time.time() + ahead)
    assert found.status == status
    assert word in found.found


@pytest.fixture
def late_server() -> Iterator[str]:
    """An HTTP server whose clock is an hour late."""

    class Late(http.server.BaseHTTPRequestHandler):
        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(time.time() - 3600)

        def do_GET(self) -> None:
            self.send_response(404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Late) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def test_the_clock_is_compared_with_a_servers(tmp_path: Path, late_server: str) -> None:
    found = clock_check(tmp_path, late_server)
    assert found.status == "failed"
    assert f"ahead of that of {late_server}" in found.found
    assert found.value == pytest.approx(3600, abs=5)


def test_a_server_that_is_away_leaves_the_workspaces_clock(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    assert clock_check(tmp_path, f"http://127.0.0.1:{port}/").status == "ok"


def test_a_metadata_service_is_seen_or_said_to_be_absent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert metadata_check(server.getsockname()).status == "ok"
    (port,) = free_ports(1)
    assert metadata_check(("127.0.0.1", port)).status == "skipped"


def test_one_worker_needs_no_ring() -> None:
    assert ring_check(None).status == "skipped"


@pytest.mark.parametrize("count", [2, 4])
def test_workers_reach_each_other(count: int) -> None:
    ports, found = free_ports(count), {}

    def work(index: int) -> None:
        found[index] = ring_check(config(ports, index))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {check.status for check in found.values()} == {"ok"}


def test_a_worker_that_is_not_there_is_named() -> None:
    found = ring_check(config(free_ports(2), 0), limit_seconds=0.3)
    assert found.status == "failed"
    assert "worker 0 does not reach worker 1 at 127.0.0.1:" in found.found
    assert "open this port" in found.fix


def test_what_fails_unforeseen_is_a_failure_too() -> None:
    found = checked("price", lambda: [][0])  # type: ignore[arg-type, return-value]
    assert (found.name, found.status) == ("price", "failed")


def test_a_training_is_refused_with_every_failure_and_its_fix() -> None:
    bad = [Check(name=name, status="failed", found="it is broken", fix="mend it") for name in ("disk", "clock")]
    with pytest.raises(UserError, match=r"disk: it is broken; mend it \| clock: it is broken; mend it"):
        refuse([*bad, Check(name="cudnn", status="warning", found="old")])
    refuse([Check(name="cudnn", status="warning", found="old")])


@pytest.mark.parametrize(
    ("device", "precision", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.5),
        ("NVIDIA H100 PCIe", "bfloat16", 756),
        ("NVIDIA L40S", "bfloat16", 362),
        ("NVIDIA L4", "bfloat16", 121),
        ("Tesla T4", "float16", 65),
        ("Tesla V100-SXM2-16GB", "bfloat16", None),
        ("CPU", "float32", None),
    ],
)
def test_peaks_by_the_drivers_name(device: str, precision: str, tflops: float | None) -> None:
    peak = documented_peak(device, precision)
    assert (peak and peak.flops_per_second) == (tflops and tflops * 1e12)
