"""A night: one invocation of a pipeline at work. It knows where everything lies, starts stages, and writes down how
each one ended. No Prefect here: the tasks beside this file put each start on Prefect's timeline.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.cloud import watched_for_notices
from tasks.readiness import check_ready
from tasks.runtime import ProcessRuntime, Runtime, StageCommand, stage_environment
from tasks.stopping import StopRequest
from tasks.supervisor import Attempt, Ending, Listener, Supervised
from tasks.watchdog import Watchdog
from tokenmill import runs
from tokenmill.cost.prices import ledger_fields, resolve_price
from tokenmill.errors import UserError
from tokenmill.invocations import (
    Invocation,
    Outcome,
    StageRecord,
    asked_to_stop,
    close_dead_invocations,
    newest_outputs,
    only_invocation,
)
from tokenmill.locks import owner_of
from tokenmill.pipelines import Pipeline
from tokenmill.protocol import CORPUS_ROOT_PREFIX, SPEC_NAME, WORKSPACE_ROOT, LogLine, StageName, StageSpec
from tokenmill.runs import Run, RunStatus
from tokenmill.workspace import Workspace, write_atomic

if TYPE_CHECKING:
    from tasks.durable import Durable

BYTES_PER_PARAMETER = 12
"""Of a checkpoint: weights and two moments of AdamW in float32."""
SPARE_BYTES = 64 * 2**20


class NightOver(Exception):  # noqa: N818 - an outcome, not a fault
    """The night ends here, with this outcome and one sentence for people."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class Night:
    """One invocation at work; `open_night` makes it, holding the pipeline's lock and listening to signals."""

    def __init__(
        self, name: str, pipeline: Pipeline, workspace: Workspace, invocation: Invocation, runtime: Runtime
    ) -> None:
        self.name = name
        self.pipeline = pipeline
        self.workspace = workspace
        self.invocation = invocation
        self.stop = StopRequest()
        self.runtime = runtime
        self.listeners: list[Listener] = []
        self.outputs: dict[StageName, dict[str, Any]] = {}
        """What each completed stage made."""
        self.durable: Durable | None = None
        """The store's side, where the workspace is on one."""
        self.run: Run | None = None
        self.last_ending: Ending | None = None
        self.progressed = False
        """Whether the last attempt committed a step that was not committed before."""
        self.prepare_inputs: dict[str, Any] = {}
        """What the next prepare stage is told: nothing (the whole), or which part of it."""
        self._saving = threading.Lock()
        self._early: tuple[StageName, Supervised, StageRecord] | None = None
        self._numbers = itertools.count(1)

    def start_early(self, stage: StageName) -> None:
        """Start `stage` now, though the flow comes to it later: the next `attempt` of it is this one."""
        self._early = (stage, *self._start(stage))

    def must_end_early(self) -> bool:
        """Whether the stage that was started early has met a mistake of the user's, or the night is asked to stop."""
        ending = self._early[1].ending if self._early is not None else None
        return bool(self.stop) or (ending is not None and ending.reason == "user_error")

    def attempt(self, stage: StageName, listeners: Sequence[Listener] = ()) -> Ending:
        """Run one process of `stage` to its end."""
        if self._early is not None and self._early[0] is stage:
            _, supervised, record = self._early
            self._early = None
        else:
            supervised, record = self._start(stage)
        # The report's one line is said at the end, by whoever opened the night.
        mine = [] if stage is StageName.REPORT else self.listeners
        ending = self._wait(stage, supervised, _All([*mine, *listeners]))
        _close(record, ending)
        if ending.result is not None:
            self.outputs[stage] = ending.result.outputs
        self._note_progress(stage)
        self.save()
        self.last_ending = ending
        if self.durable is not None:
            self.durable.publish()
        return ending

    def attempt_part(self, stage: StageName, inputs: dict[str, Any], listener: Listener) -> Ending:
        """Run one process of a part of `stage` beside others, from any thread; however it ends, the night goes on."""
        supervised, record = self._start(stage, inputs)
        ending = supervised.wait(self.stop, listener)
        _close(record, ending)
        self.save()
        return ending

    def _note_progress(self, stage: StageName) -> None:
        self.progressed = False
        if stage is not StageName.TRAIN or self.run is None:
            return
        step = runs.committed_step(self.workspace, self.run.id)
        if step > self.run.committed_step:
            self.progressed = True
            self.update_run(committed_step=step, crashes_without_progress=0)

    def _wait(self, stage: StageName, supervised: Supervised, listener: Listener) -> Ending:
        if stage is not StageName.REPORT:
            return supervised.wait(self.stop, listener)
        # The night's end has a report though the night was asked to stop: only a signal that comes now ends this.
        stop = StopRequest()
        with stop.on_signals():
            return supervised.wait(stop, listener)

    def say(self, message: str) -> None:
        """One sentence of the night's own, to whoever listens to its stages."""
        _All(self.listeners).log(LogLine(level="INFO", message=message, time=time.time()))

    def end(self, outcome: Outcome, message: str) -> None:
        """Write down how the night ended. Time goes on until the report is done."""
        self.invocation.outcome = outcome
        self.invocation.message = message
        self.invocation.ended = time.time()
        self.save()

    def end_if_trained(self, snapshot: str) -> None:
        """Raise `NightOver` if a finished run of the same identity config has trained this snapshot."""
        run = runs.finished_run(self.workspace, self.name, self.pipeline, snapshot)
        if run is not None:
            self.run = run
            raise NightOver("already_trained", f"nothing new: run {run.id} has trained this snapshot already")

    def outputs_of(self, stage: StageName) -> dict[str, Any]:
        """What `stage` made for the night's run: tonight, or in the newest earlier invocation of the run."""
        if stage in self.outputs or self.run is None:
            return self.outputs.get(stage, {})
        return newest_outputs(self.workspace, self.run.id, stage)

    def close(self) -> None:
        """End a stage that was started early and that the flow never came to."""
        if self._early is not None:
            self.stop.interrupt("the flow ended before this stage's turn")
            self.attempt(self._early[0])

    def save(self) -> None:
        with self._saving:
            self.invocation.run_id = self.run.id if self.run else None
            self.invocation.save(self.workspace)

    def open_run(self, snapshot: str, validation: str) -> None:
        """Make the run of this pipeline on `snapshot` the night's, or open it again if it ended short of its length."""
        self.run = runs.open_run(self.workspace, self.name, self.pipeline, snapshot, validation)
        self.save()

    def update_run(self, **changes: Any) -> None:
        assert self.run is not None
        self.run = runs.update_run(self.workspace, self.run.id, **changes)

    def _start(self, stage: StageName, inputs: dict[str, Any] | None = None) -> tuple[Supervised, StageRecord]:
        number = next(self._numbers)
        invocation = self.workspace.invocation(self.invocation.id)
        ledger = invocation / "ledger" / f"{number:02d}-{stage}.jsonl"
        if stage is StageName.TRAIN:
            assert self.run is not None
            _wait_for_lease(self.workspace.run(self.run.id), self.pipeline.runtime.grace_seconds)
            if self.durable is not None:
                self.durable.watch(self.run.id, self.invocation.id)
            self.update_run(attempts=self.run.attempts + 1)
            ledger = self.workspace.run(self.run.id) / "ledger" / f"{self.run.attempts:04d}.jsonl"
        spec = StageSpec(
            stage=stage,
            pipeline_name=self.name,
            pipeline=self.pipeline.model_dump(mode="json"),
            invocation_id=self.invocation.id,
            ledger=self.workspace.relative(ledger),
            inputs=self._inputs(stage) if inputs is None else inputs,
        )
        spec_path = invocation / "stages" / f"{number:02d}-{stage}" / SPEC_NAME
        write_atomic(spec_path, spec.model_dump_json(indent=2).encode())
        record = StageRecord(stage=stage, ledger=spec.ledger, started=time.time())
        self.invocation.stages.append(record)
        self.save()
        roots = {WORKSPACE_ROOT: str(self.workspace.root)}
        roots |= {f"{CORPUS_ROOT_PREFIX}{source.name}": source.root for source in self.pipeline.corpus.sources}
        spawned = {
            "attempt_id": f"{self.invocation.id}/{number:02d}",
            "invocation_id": self.invocation.id,
            "run_id": self.run.id if self.run else None,
            **ledger_fields(resolve_price(self.pipeline.cost)),
        }
        attempt = Attempt(
            command=StageCommand(
                stage,
                spec_path,
                roots,
                stage_environment(self.pipeline),
                workers=self.pipeline.training.workers if stage is StageName.TRAIN else 1,
            ),
            ledger=ledger,
            spawned=spawned,
            grace_seconds=self.pipeline.runtime.grace_seconds,
            watchdog=Watchdog(ledger, spec_path, self.pipeline.telemetry) if stage is StageName.TRAIN else None,
            asked=lambda: stage is not StageName.REPORT and asked_to_stop(self.workspace, self.invocation.id),
        )
        return Supervised(self.runtime, attempt), record

    def _inputs(self, stage: StageName) -> dict[str, Any]:
        if stage is StageName.PREPARE:
            return self.prepare_inputs
        if stage is StageName.VALIDATE:
            return {"snapshot": self.outputs[StageName.PREPARE]["snapshot"]}
        if stage is StageName.REPORT:
            return {"invocation": self.invocation.id, "run_id": self.run.id if self.run else None}
        assert self.run is not None
        return {
            "run_id": self.run.id,
            "snapshot": self.run.snapshot,
            "validation": self.run.validation,
            "attempt": self.run.attempts,
        }


@contextmanager
def open_night(
    name: str, pipeline: Pipeline, overrides: Sequence[str] = (), *, fresh: bool = False, runtime: Runtime | None = None
) -> Iterator[Night]:
    """Begin an invocation: everything that can be refused without starting anything is refused here, as `UserError`.

    The night's run is the pipeline's unfinished one, if there is one and `fresh` is not asked for.
    """
    runtime = runtime or _runtime(pipeline, name)
    if not pipeline.is_remote:
        check_ready(pipeline, Workspace(pipeline.local_workspace))
    workspace = Workspace.open(str(pipeline.local_workspace), need_bytes=needed_bytes(pipeline))
    invocation = Invocation.begin(name, list(overrides))
    night = Night(name, pipeline, workspace, invocation, runtime)
    if pipeline.runtime.prepare_machines > 1:
        night.prepare_inputs = {"part": "plan", "batch_bytes": pipeline.runtime.prepare_batch_bytes}
    with ExitStack() as stack:
        stack.enter_context(only_invocation(workspace, invocation))
        runtime.end_orphans()
        stack.enter_context(night.stop.on_signals())
        stack.enter_context(watched_for_notices(night.stop))
        if pipeline.is_remote:
            from tasks.durable import open_durable

            night.durable = stack.enter_context(open_durable(name, pipeline, night.stop))
            check_ready(pipeline, workspace)
        close_dead_invocations(workspace, name)
        if fresh:
            runs.abandon_unfinished(workspace, name)
        night.run = runs.unfinished_run(workspace, name, pipeline)
        if night.durable is not None:
            night.durable.fetch(night.run)
        if night.run is not None:
            invocation.step = runs.committed_step(workspace, night.run.id)
        night.save()
        stack.callback(night.close)
        yield night


def needed_bytes(pipeline: Pipeline) -> int:
    """Room that a night certainly takes: its checkpoints, one more while the oldest still stands, and the export."""
    model = pipeline.model
    embeddings = pipeline.tokenizer.vocab_size * model.d_model
    d_mlp = model.d_mlp or 4 * model.d_model
    parameters = embeddings + model.layers * (4 * model.d_model**2 + 2 * model.d_model * d_mlp)
    return parameters * BYTES_PER_PARAMETER * (pipeline.training.checkpoint.keep_last + 2) + SPARE_BYTES


def _runtime(pipeline: Pipeline, name: str) -> Runtime:
    """Where the pipeline's stages run. A container that was asked for is never a bare process in silence."""
    if pipeline.runtime.kind == "docker":
        from tasks.docker_runtime import DockerRuntime

        return DockerRuntime(pipeline, name)
    if pipeline.runtime.kind == "kubernetes":
        raise UserError("runtime.kind: 'kubernetes' is not supported so far; set it to docker or process")
    return ProcessRuntime()


_RUN_STATUSES: dict[Outcome, RunStatus] = {
    "finished": RunStatus.COMPLETED,
    "stopped_by_condition": RunStatus.COMPLETED,
    "stopped_by_budget": RunStatus.STOPPED,
    "cancelled": RunStatus.CANCELLED,
    "crashed": RunStatus.FAILED,
    "interrupted": RunStatus.OPEN,
    "user_error": RunStatus.OPEN,
}


def finish(night: Night, outcome: Outcome, message: str, report: Callable[[], object]) -> None:
    """The end of a night: its outcome goes into its run, where that has one, and it leaves a report."""
    if night.run is not None and outcome in _RUN_STATUSES:
        night.update_run(status=_RUN_STATUSES[outcome], message=message)
    night.end(outcome, message)
    report()
    night.end(outcome, message)


def _wait_for_lease(run_folder: Path, seconds: float) -> None:
    """Wait for a stage whose supervisor was killed: it saves and ends by itself. The trainer refuses if it has not."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if owner_of(run_folder / "lease" / "lock") is None:
            return
        time.sleep(0.1)


def _close(record: StageRecord, ending: Ending) -> None:
    record.ended = time.time()
    record.exit_code = ending.exit_code
    record.message = ending.message
    record.status = ending.result.status if ending.result else ending.reason
    record.outputs = ending.result.outputs if ending.result else {}


class _All:
    """Several listeners as one."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners

    def log(self, line: Any) -> None:
        for listener in self._listeners:
            listener.log(line)

    def progress(self, line: Any) -> None:
        for listener in self._listeners:
            listener.progress(line)
