"""Invocations: one at a time for a pipeline, and none stays `running` when its process is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenmill.errors import UserError
from tokenmill.invocations import (
    INVOCATION_FILE,
    Invocation,
    StageRecord,
    ask_to_stop,
    asked_to_stop,
    close_dead_invocations,
    list_invocations,
    only_invocation,
    running_invocation,
)
from tokenmill.protocol import StageName
from tokenmill.workspace import Workspace


def test_a_second_start_of_a_pipeline_is_refused_and_another_pipeline_is_not(tmp_path: Path) -> None:
    workspace = Workspace.open(str(tmp_path))
    first = Invocation.begin("p", [])
    assert running_invocation(workspace, "p") is None
    with only_invocation(workspace, first):
        assert running_invocation(workspace, "p") == first.id
        with pytest.raises(UserError, match=f"'p' is running already .*{first.id}"), only_invocation(workspace, first):
            pass
        with only_invocation(workspace, Invocation.begin("q", [])):
            assert running_invocation(workspace, "q")
    assert running_invocation(workspace, "p") is None


def test_an_invocation_whose_process_is_gone_is_closed_by_the_next(tmp_path: Path) -> None:
    workspace = Workspace.open(str(tmp_path))
    dead = Invocation.begin("p", ["a=1"])
    dead.stages.append(StageRecord(stage=StageName.PREPARE, ledger="x", started=dead.started + 5))
    dead.save(workspace)
    other = Invocation.begin("q", [])
    other.save(workspace)
    assert [item.id for item in close_dead_invocations(workspace, "p")] == [dead.id]
    closed, untouched = list_invocations(workspace)
    assert (closed.outcome, closed.ended, closed.stages[0].status) == ("crashed", dead.started + 5, "crashed")
    assert untouched.outcome == "running"


def test_asking_to_stop_reaches_that_invocation_alone(tmp_path: Path) -> None:
    workspace = Workspace.open(str(tmp_path))
    assert not asked_to_stop(workspace, "a")
    ask_to_stop(workspace, "a")
    assert asked_to_stop(workspace, "a")
    assert not asked_to_stop(workspace, "b")


def test_an_invocation_that_cannot_be_understood_is_named(tmp_path: Path) -> None:
    workspace = Workspace.open(str(tmp_path))
    half = Invocation.begin("p", [])
    half.save(workspace)
    path = workspace.invocation(half.id) / INVOCATION_FILE
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(UserError, match=f"{half.id}/{INVOCATION_FILE} is not an invocation.json"):
        list_invocations(workspace)
