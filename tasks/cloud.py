"""The cloud's notices that this machine will be taken away, turned into a request to stop with a deadline.

AWS (IMDSv2): `spot/instance-action` (two minutes) and `events/recommendations/rebalance`; GCP: `instance/preempted` (30
seconds) and `instance/maintenance-event`. Where no metadata service answers there is nothing to watch, and no start
waits for that: the first look is made in the watching thread. A recommendation that stands at the start already is
passed over, or no start would get anywhere until the machine is gone. `TOKENMILL_METADATA_URL` is another address.
"""

from __future__ import annotations

import http.client
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tasks.stopping import StopRequest

METADATA_URL = "TOKENMILL_METADATA_URL"
LINK_LOCAL = "http://169.254.169.254"
ANSWER_SECONDS = 1.0
POLL_SECONDS = 2.0
"""AWS advises five; a notice of 30 seconds is worth more looks."""
AWS_SECONDS, GCP_SECONDS = 90.0, 20.0
"""For the stage to save and end: the notices are of 120 and 30 seconds, and the rest is for publishing."""
RECOMMENDED = "AWS recommends to leave this Spot machine"
AWS_NOTICES = {
    "spot/instance-action": "AWS takes this Spot machine away in two minutes",
    "events/recommendations/rebalance": RECOMMENDED,
}
GCP_NOTICES = {
    "preempted": ("TRUE", "GCP takes this Spot machine away in 30 seconds"),
    "maintenance-event": ("TERMINATE_ON_HOST_MAINTENANCE", "GCP ends this machine for maintenance"),
}


class Metadata:
    """The metadata service of whichever cloud this is. Every question is answered within a second, or by None."""

    def __init__(self, base: str | None = None) -> None:
        self._base = (base or os.environ.get(METADATA_URL) or LINK_LOCAL).rstrip("/")
        # A proxy of the user's must not be asked for what is this machine's own.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def cloud(self) -> str | None:
        """`aws`, `gcp` or none."""
        if self._token() is not None:
            return "aws"
        return "gcp" if self._gcp("instance/id") is not None else None

    def notice(self, cloud: str) -> str | None:
        """One sentence, once the cloud has said that it wants the machine back."""
        if cloud == "aws":
            headers = {"X-aws-ec2-metadata-token": self._token() or ""}
            found = (text for path, text in AWS_NOTICES.items() if self._ask(f"latest/meta-data/{path}", headers))
            return next(found, None)
        for path, (word, text) in GCP_NOTICES.items():
            if self._gcp(f"instance/{path}") == word:
                return text
        return None

    def _token(self) -> str | None:
        return self._ask("latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "300"}, method="PUT")

    def _gcp(self, path: str) -> str | None:
        return self._ask(f"computeMetadata/v1/{path}", {"Metadata-Flavor": "Google"})

    def _ask(self, path: str, headers: Mapping[str, str], method: str = "GET") -> str | None:
        request = urllib.request.Request(f"{self._base}/{path}", headers=dict(headers), method=method)
        try:
            with self._opener.open(request, timeout=ANSWER_SECONDS) as answer:
                return str(answer.read().decode("utf-8", errors="replace")).strip()
        except (OSError, urllib.error.URLError, http.client.HTTPException):
            return None


@contextmanager
def watched_for_notices(stop: StopRequest, *, poll_seconds: float = POLL_SECONDS) -> Iterator[None]:
    """In this block a notice asks `stop` to interrupt. Without a cloud the thread ends at once."""
    done = threading.Event()

    def watch() -> None:
        metadata = Metadata()
        cloud = metadata.cloud()
        old = metadata.notice(cloud) if cloud is not None else None
        while cloud is not None and not done.is_set():
            notice = metadata.notice(cloud)
            if notice is not None and not (notice == old == RECOMMENDED):
                if not stop:
                    stop.interrupt(notice, within_seconds=AWS_SECONDS if cloud == "aws" else GCP_SECONDS)
                return
            done.wait(poll_seconds)

    threading.Thread(target=watch, name="notices", daemon=True).start()
    try:
        yield
    finally:
        done.set()
