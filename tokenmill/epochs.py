"""One writer on an object store (law 8): epochs `lease/<n>`, made by create-if-absent.

    lease/00000001   {"owner": {...}, "beat": 17, "released": false, "start_step": 40}

The newest epoch's owner is the one writer. It raises `beat` every few seconds. Who wants to take over watches: a beat
that stands still for `lease_seconds` **on the watcher's own monotonic clock** is dead, and the watcher creates the next
epoch; no clock of another machine is read, so none can be wrong. An owner that was frozen and thaws finds a newer epoch
and stops; what it could still put down carries its old epoch and does not count: see `counts`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenmill.errors import UserError
from tokenmill.store import Store

BEATS_A_LEASE = 5


class LeaseLostError(UserError):
    """Another machine has taken over: nothing may be committed from here any more."""


@dataclass(frozen=True)
class Epoch:
    number: int
    body: Mapping[str, Any]


class EpochLease:
    """The lease of whatever lies below `prefix` (a run, a pipeline)."""

    def __init__(self, store: Store, prefix: str, owner: Mapping[str, Any], *, lease_seconds: float) -> None:
        """`owner` is for people, and its `token` is this process's alone, `stage` this stage folder's."""
        self._store, self._prefix = store, f"{prefix}/lease"
        self._owner, self._lease_seconds = dict(owner), lease_seconds
        self._body: dict[str, Any] = {}
        self._lock = threading.Lock()
        self.number = 0
        """Of the epoch that is held; 0 before."""
        self.before: Epoch | None = None
        """The epoch before that one; none if it is the first."""

    def acquire(self, *, say: Callable[[str], None] = lambda message: None) -> None:
        """Become the one writer.

        At once where the one before was released or was held from this same stage folder (whose local lock the caller
        holds); after one lease time where it is silent; `UserError` where its owner is alive.
        """
        while True:
            newest = self.newest()
            if newest is not None and not self._is_free(newest):
                self._watch(newest, say)
            number = 1 if newest is None else newest.number + 1
            body = {"owner": self._owner, "beat": 0, "released": False}
            if self._store.create(self._key(number), json.dumps(body).encode()):
                self.number, self._body, self.before = number, body, newest
                return

    def declare(self, start_step: int) -> None:
        """From here on, checkpoints of earlier epochs beyond `start_step` do not count."""
        self._update(start_step=start_step)

    def beat(self) -> None:
        """Raises `LeaseLostError`."""
        self.check()
        self._update(beat=self._body["beat"] + 1)

    def check(self) -> None:
        """Raises `LeaseLostError` if there is a newer epoch."""
        newest = self.newest()
        if newest is None or newest.number != self.number:
            raise LeaseLostError(f"{self._prefix} is held by {_who(newest)} now; this process commits nothing more")

    def release(self) -> None:
        """The next start need not wait."""
        self.check()
        self._update(released=True)

    def newest(self) -> Epoch | None:
        numbers = [int(key.rsplit("/", 1)[1]) for key in self._store.list(self._prefix)]
        return self._read(max(numbers)) if numbers else None

    def _is_free(self, epoch: Epoch) -> bool:
        owner = epoch.body.get("owner", {})
        return bool(epoch.body.get("released")) or owner.get("stage") == self._owner["stage"]

    def _watch(self, epoch: Epoch, say: Callable[[str], None]) -> None:
        """Until the lease time is over without a beat; `UserError` at a beat."""
        say(f"{self._prefix} was held by {_who(epoch)}; waiting {self._lease_seconds:g} s for a sign of life")
        silent_since = time.monotonic()
        while time.monotonic() - silent_since < self._lease_seconds:
            time.sleep(self._lease_seconds / BEATS_A_LEASE / 2)
            now = self._read(epoch.number)
            if now.body.get("released"):
                return
            if now.body.get("beat") != epoch.body.get("beat"):
                raise UserError(f"{self._prefix.removesuffix('/lease')} is worked on by {_who(epoch)}; wait for it")

    def _update(self, **changes: Any) -> None:
        with self._lock:
            self._body |= changes
            self._store.put(self._key(self.number), json.dumps(self._body).encode())

    def _read(self, number: int) -> Epoch:
        return Epoch(number, json.loads(self._store.get(self._key(number))))

    def _key(self, number: int) -> str:
        return f"{self._prefix}/{number:08d}"


def counts(store: Store, prefix: str) -> Callable[[int, int], bool]:
    """Whether a checkpoint of (epoch, step) below `prefix` counts: every later epoch started at that step or beyond."""
    starts: dict[int, int] = {}
    for key in store.list(f"{prefix}/lease"):
        body = json.loads(store.get(key))
        if "start_step" in body:
            starts[int(key.rsplit("/", 1)[1])] = int(body["start_step"])
    return lambda epoch, step: all(step <= start for later, start in starts.items() if later > epoch)


def _who(epoch: Epoch | None) -> str:
    owner = {} if epoch is None else epoch.body.get("owner", {})
    return f"process {owner.get('pid', '?')} on {owner.get('host', 'another machine')}"
