"""Checks of a machine before money is spent on it: what was looked at, what was found, and how to mend it.

Those here need no TensorFlow: places, room, clocks, and the ring of workers.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from tokenmill.errors import UserError
from tokenmill.workspace import write_atomic

MOST_SKEW_SECONDS = 5.0
"""The lease and the bill compare clocks of several machines."""
METADATA_ADDRESS = ("169.254.169.254", 80)
"""Of AWS, Google Cloud and Azure alike."""
RING_SECONDS = 30.0


class Check(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    status: Literal["ok", "warning", "failed", "skipped"]
    found: str
    fix: str = ""
    """What to do about a warning or a failure."""
    value: float | None = None
    """The measured number, where there is one: FLOP/s of a product, seconds of skew."""


def checked(name: str, look: Callable[[], Check]) -> Check:
    """`look`, whose unforeseen failure is a failed check as well."""
    try:
        return look()
    except UserError as error:
        return Check(name=name, status="failed", found=str(error), fix="mend what the sentence names")
    except Exception as error:
        return Check(name=name, status="failed", found=f"{type(error).__name__}: {error}", fix="see the message")


def workspace_check(folder: Path) -> Check:
    """Write, rename, read: what every stage relies on."""
    probe = folder / f".doctor-{uuid.uuid4().hex}"
    word = uuid.uuid4().hex.encode()
    try:
        write_atomic(probe, word)
        same = probe.read_bytes() == word
    except OSError as error:
        return Check(
            name="workspace",
            status="failed",
            found=f"{folder} cannot be written: {error.strerror or error}",
            fix="mend its permissions, or name another folder in workspace",
        )
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
    if same:
        return Check(name="workspace", status="ok", found=f"{folder}: written, renamed, read back")
    fix = "this file system loses writes: put the workspace on another one"
    return Check(name="workspace", status="failed", found=f"{folder} gave back other bytes", fix=fix)


def disk_check(folder: Path, need_bytes: int, free_bytes: int | None = None) -> Check:
    free = shutil.disk_usage(folder).free if free_bytes is None else free_bytes
    found = f"{free / 2**20:,.0f} MiB free, {need_bytes / 2**20:,.0f} MiB needed for checkpoints and model"
    if free >= need_bytes:
        return Check(name="disk", status="ok", found=found)
    fix = "free some space (tokenmill gc), lower training.checkpoint.keep_last, or choose another workspace"
    return Check(name="disk", status="failed", found=found, fix=fix)


def clock_check(folder: Path, server: str | None = None, now: Callable[[], float] = time.time) -> Check:
    """Against the file system that holds the workspace, and against the Date of an HTTP server if one is named."""
    skews = {"the workspace": _file_skew(folder, now)}
    if server is not None:
        with contextlib.suppress(OSError, ValueError, TypeError):
            skews[server] = _server_skew(server, now)
    where, skew = max(skews.items(), key=lambda item: abs(item[1]))
    found = f"this machine's clock is {abs(skew):.1f} s {'ahead of' if skew >= 0 else 'behind'} that of {where}"
    if abs(skew) <= MOST_SKEW_SECONDS:
        return Check(name="clock", status="ok", found=found, value=skew)
    return Check(name="clock", status="failed", found=found, fix="let chrony or systemd-timesyncd set it", value=skew)


def _file_skew(folder: Path, now: Callable[[], float]) -> float:
    probe = folder / f".doctor-{uuid.uuid4().hex}"
    probe.touch()
    try:
        return now() - probe.stat().st_mtime
    finally:
        probe.unlink()


def _server_skew(url: str, now: Callable[[], float]) -> float:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            date = answer.headers["Date"]
    except urllib.error.HTTPError as error:
        date = error.headers["Date"]
    # The header has whole seconds: half of one is the mean error.
    return now() - parsedate_to_datetime(date).timestamp() - 0.5


def metadata_check(address: tuple[str, int] = METADATA_ADDRESS) -> Check:
    try:
        with socket.create_connection(address, timeout=1.0):
            return Check(name="metadata", status="ok", found=f"the cloud's metadata service answers at {address[0]}")
    except OSError:
        return Check(
            name="metadata",
            status="skipped",
            found="no cloud metadata service: machine type and market are those of the pipeline, and nobody gives "
            "notice of an interruption",
        )


def ring_check(config: Mapping[str, object] | None, limit_seconds: float = RING_SECONDS) -> Check:
    """Each worker of a `TF_CONFIG` reaches the next one on the port on which TensorFlow will listen."""
    workers, index = _workers(config)
    if len(workers) < 2:
        return Check(name="workers", status="skipped", found="one worker, which needs no other")
    following = workers[(index + 1) % len(workers)]
    deadline = time.monotonic() + limit_seconds
    with _listening(workers[index], deadline) as heard:
        if not _reaches(following, deadline):
            return Check(
                name="workers",
                status="failed",
                found=f"worker {index} does not reach worker {(index + 1) % len(workers)} at {following} "
                f"within {limit_seconds:g} s",
                fix="open this port between the workers, and see that the name resolves on each of them",
            )
        if not heard.wait(max(0.0, deadline - time.monotonic())):
            before = (index - 1) % len(workers)
            return Check(
                name="workers",
                status="failed",
                found=f"worker {before} did not reach worker {index} within {limit_seconds:g} s",
                fix=f"look at the log of worker {before}, and at the firewall before {workers[index]}",
            )
    return Check(name="workers", status="ok", found=f"worker {index} of {len(workers)} reaches the next one")


def _workers(config: Mapping[str, object] | None) -> tuple[Sequence[str], int]:
    if not config:
        return [], 0
    cluster, task = config["cluster"], config["task"]
    assert isinstance(cluster, Mapping)
    assert isinstance(task, Mapping)
    return list(cluster.get("worker", [])), int(task["index"])


@contextlib.contextmanager
def _listening(address: str, deadline: float) -> Iterator[threading.Event]:
    """Listen on the port of `address` until someone has called, or the block ends."""
    heard, done = threading.Event(), threading.Event()
    server = socket.create_server(("", int(address.rpartition(":")[2])), reuse_port=False)
    server.settimeout(0.1)

    def listen() -> None:
        while not done.is_set() and not heard.is_set() and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                server.accept()[0].close()
                heard.set()

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield heard
    finally:
        done.set()
        thread.join()
        server.close()


def _reaches(address: str, deadline: float) -> bool:
    host, _, port = address.rpartition(":")
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=2.0):
            return True
        time.sleep(0.05)
    return False
