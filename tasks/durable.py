"""A night whose workspace is on an object store: holds the leases, brings what is needed, publishes what comes to be.

Only the supervisor speaks to the store: stages see the stage folder alone and need neither network nor credentials.
A thread publishes while a stage runs; the store may be away for a while, for everything is here until it comes back.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tasks.stopping import StopRequest
from tokenmill.epochs import BEATS_A_LEASE, EpochLease, LeaseLostError
from tokenmill.mirror import AREAS, Mirror
from tokenmill.pipelines import Pipeline
from tokenmill.quality.reference import LAST_GOOD_NAME
from tokenmill.runs import Run, committed_step, list_runs
from tokenmill.store import Store, StoreUnreachableError
from tokenmill.workspace import read_json, write_atomic

PUBLISH_SECONDS = 2.0
"""Between two looks for what is new: checkpoints, ledgers (which may be ten seconds behind), run.json."""
STAGE_ID = ".stage-folder"

log = logging.getLogger(__name__)


class Durable:
    """The store's side of one night; `open_durable` makes it, holding the pipeline's lease."""

    def __init__(self, name: str, pipeline: Pipeline, stop: StopRequest) -> None:
        self._name, self._pipeline, self._stop = name, pipeline, stop
        root = pipeline.local_workspace
        self.mirror = Mirror(root, Store(pipeline.workspace, patience_seconds=pipeline.runtime.store_patience_seconds))
        self._owner = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "stage": _stage_id(self.mirror),
            "token": uuid.uuid4().hex,
        }
        self._leases: list[EpochLease] = []
        self._run: tuple[str, EpochLease] | None = None
        self._places: tuple[str, ...] = ()
        self._busy = threading.Lock()
        self._done = threading.Event()
        self._threads = [
            threading.Thread(target=self._beat, daemon=True),
            threading.Thread(target=self._publish, daemon=True),
        ]

    def begin(self) -> None:
        """Become the pipeline's one writer and bring what every start needs."""
        self._lease(f"pipelines/{self._name}")
        self.mirror.pull_small()
        for thread in self._threads:
            thread.start()

    def fetch(self, run: Run | None) -> None:
        """Bring the unfinished run with its data set; or what a prepare and a validation go by."""
        with self._busy:
            self._fetch_run(run) if run is not None else self._fetch_earlier_nights()

    def _fetch_run(self, run: Run) -> None:
        self.mirror.pull_snapshot(run.snapshot)
        if run.validation:
            self.mirror.pull(run.validation)
        self.mirror.pull_run(run.id)
        if run.starting_model:
            self.mirror.pull(f"models/{run.starting_model}")
        self._take(run.id)

    def _fetch_earlier_nights(self) -> None:
        """A prepare goes by the shards of the newest snapshots, a validation by the last good one's."""
        self.mirror.pull("tokenizers")
        workspace = self.mirror.workspace
        snapshots = {run.snapshot for run in list_runs(workspace)[-1:] if run.pipeline == self._name}
        with suppress(FileNotFoundError):
            last = read_json(workspace.pipeline(self._name) / LAST_GOOD_NAME)
            snapshots.add(last["snapshot"])
            for folder in (last["validation"], last.get("reference")):
                if folder:
                    self.mirror.pull(folder)
        for snapshot in snapshots:
            self.mirror.pull_snapshot(snapshot)

    def watch(self, run_id: str, invocation_id: str) -> None:
        """Training begins: from now on the thread publishes what this run makes."""
        with self._busy:
            self._take(run_id)
        self._places = (f"runs/{run_id}", f"invocations/{invocation_id}", f"pipelines/{self._name}")

    def publish(self) -> None:
        """All that is new. Where that cannot be, the night is asked to stop; here everything lies safe."""
        try:
            self._publish_all()
        except (StoreUnreachableError, LeaseLostError) as error:
            self._stop.interrupt(str(error))

    def _publish_all(self) -> None:
        with self._busy:
            self._check()
            if self._run is not None:
                self.mirror.push_checkpoints(*self._run)
            self.mirror.push(AREAS)

    def end(self) -> None:
        """Publish the last, and let the next start begin at once.

        Raises `StoreUnreachableError` once patience is over (the grace, if asked to stop), `LeaseLostError`.
        """
        if self._stop:
            store = self.mirror.store
            store.patience_seconds = min(store.patience_seconds, self._pipeline.runtime.grace_seconds)
        self._done.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._publish_all()
        for lease in self._leases:
            lease.release()

    def _take(self, run_id: str) -> None:
        """Become the one writer of the run, with its newest checkpoint that counts."""
        if self._run is not None and self._run[0] == run_id:
            return
        lease = self._lease(f"runs/{run_id}")
        before = lease.before
        if before is not None and before.body["owner"].get("stage") != self._owner["stage"]:
            self.mirror.drop_uncommitted(run_id)
        self.mirror.pull_checkpoint(run_id)
        lease.declare(committed_step(self.mirror.workspace, run_id))
        self._run = run_id, lease

    def _lease(self, prefix: str) -> EpochLease:
        lease = EpochLease(self.mirror.store, prefix, self._owner, lease_seconds=self._pipeline.runtime.lease_seconds)
        lease.acquire(say=log.warning)
        self._leases.append(lease)
        return lease

    def _check(self) -> None:
        for lease in self._leases:
            lease.check()

    def _beat(self) -> None:
        while not self._done.wait(self._pipeline.runtime.lease_seconds / BEATS_A_LEASE):
            try:
                for lease in list(self._leases):
                    lease.beat()
            except LeaseLostError as error:
                self._stop.interrupt(str(error))
                return
            except StoreUnreachableError as error:
                log.warning("%s", error)

    def _publish(self) -> None:
        said = False
        while not self._done.wait(PUBLISH_SECONDS):
            try:
                with self._busy:
                    self._check()
                    if self._run is not None:
                        self.mirror.push_checkpoints(*self._run)
                    self.mirror.push(self._places)
                said = False
            except LeaseLostError as error:
                self._stop.interrupt(str(error))
                return
            except Exception as error:  # whatever it is, this thread is the only one that publishes
                if not said:
                    log.warning("nothing can be published for now: %s", error)
                said = True


@contextmanager
def open_durable(name: str, pipeline: Pipeline, stop: StopRequest) -> Iterator[Durable]:
    """Call it while holding the pipeline's local lock."""
    durable = Durable(name, pipeline, stop)
    try:
        durable.begin()
        yield durable
    finally:
        durable.end()


def _stage_id(mirror: Mirror) -> str:
    """Names this stage folder: an empty disk has another one."""
    path = mirror.root / STAGE_ID
    with suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8")
    write_atomic(path, uuid.uuid4().hex.encode())
    return path.read_text(encoding="utf-8")
