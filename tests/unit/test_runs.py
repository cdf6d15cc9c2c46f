"""Runs: the same question has the same id, an unfinished run is found again, and updates are not lost."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.errors import UserError
from tokenmill.pipelines import Pipeline
from tokenmill.runs import (
    Run,
    RunStatus,
    abandon_unfinished,
    changed_numerics,
    committed_step,
    finished_run,
    freeze,
    list_runs,
    numeric_environment,
    open_run,
    read_run,
    resolve_starting_model,
    run_id,
    unfinished_run,
    update_run,
)
from tokenmill.workspace import Workspace


def pipeline(**training: Any) -> Pipeline:
    return Pipeline.model_validate(
        {
            "corpus": {"sources": [{"name": "notes", "root": "/nowhere"}]},
            "training": {"length": {"steps": 10}, **training},
            "cost": "unpriced",
        }
    )


def start(workspace: Workspace, snapshot: str = "s1", **training: Any) -> Run:
    return open_run(workspace, "p", pipeline(**training), snapshot, f"validations/{snapshot}/r")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.open(str(tmp_path))


plain = st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=4), max_size=4)


@given(plain, plain, st.text(max_size=4), st.none() | st.text(max_size=4))
def test_the_id_depends_on_identity_snapshot_and_starting_model_alone(
    a: Any, b: Any, snapshot: str, model: Any
) -> None:
    assert run_id(a, snapshot, model) == run_id(dict(reversed(a.items())), snapshot, model)
    assert (run_id(a, snapshot, model) == run_id(b, snapshot, model)) == (a == b)
    assert run_id(a, snapshot, model) != run_id(a, snapshot + "x", model)
    assert run_id(a, snapshot, model) != run_id(a, snapshot, "other/1")


def test_only_identity_fields_make_another_run(workspace: Workspace) -> None:
    first = start(workspace)
    assert start(workspace, precision="float32", max_seconds=5).id == first.id
    assert start(workspace, seed=1).id != first.id
    assert start(workspace, "s2").id != first.id


def test_an_open_run_is_found_whatever_the_corpus_is_now(workspace: Workspace) -> None:
    assert unfinished_run(workspace, "p", pipeline()) is None
    run = start(workspace)
    assert unfinished_run(workspace, "p", pipeline(precision="float32")) == run
    assert unfinished_run(workspace, "p", pipeline(seed=1)) is None
    assert unfinished_run(workspace, "other", pipeline()) is None


@pytest.mark.parametrize("status", [s for s in RunStatus if s is not RunStatus.OPEN])
def test_a_run_that_ended_is_not_gone_on_with_by_itself(workspace: Workspace, status: RunStatus) -> None:
    run = start(workspace)
    update_run(workspace, run.id, status=status)
    assert unfinished_run(workspace, "p", pipeline()) is None
    found = finished_run(workspace, "p", pipeline(), "s1")
    assert (found is not None) == (status is RunStatus.COMPLETED)
    assert finished_run(workspace, "p", pipeline(), "s2") is None


def test_starting_again_on_the_same_snapshot_opens_what_ended_short_of_its_length(workspace: Workspace) -> None:
    run = start(workspace)
    update_run(workspace, run.id, status="failed", crashes_without_progress=3, attempts=3, frozen={"xla": "off"})
    again = start(workspace)
    assert (again.id, again.status, again.crashes_without_progress) == (run.id, RunStatus.OPEN, 0)
    assert (again.attempts, again.frozen) == (3, {"xla": "off"})
    update_run(workspace, run.id, status="completed")
    assert start(workspace).status is RunStatus.COMPLETED


def test_a_fresh_start_abandons_what_is_open(workspace: Workspace) -> None:
    run, other = start(workspace), start(workspace, seed=1)
    update_run(workspace, other.id, status="completed")
    assert [r.id for r in abandon_unfinished(workspace, "p")] == [run.id]
    assert read_run(workspace, run.id).status is RunStatus.ABANDONED
    assert read_run(workspace, other.id).status is RunStatus.COMPLETED


def test_updates_of_many_writers_are_all_kept(workspace: Workspace) -> None:
    run = start(workspace)
    writers = [
        threading.Thread(target=freeze, args=(workspace, run.id, {f"choice{number}": number})) for number in range(16)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert read_run(workspace, run.id).frozen == {f"choice{number}": number for number in range(16)}


def test_a_frozen_choice_stays(workspace: Workspace) -> None:
    run = start(workspace)
    assert freeze(workspace, run.id, {"xla": "off", "micro_batch_size": 4}) == {"xla": "off", "micro_batch_size": 4}
    assert freeze(workspace, run.id, {"xla": "on", "threads": 2}) == {"xla": "off", "micro_batch_size": 4, "threads": 2}


def test_a_wrong_update_changes_nothing(workspace: Workspace) -> None:
    run = start(workspace)
    with pytest.raises(ValueError, match="colour"):
        update_run(workspace, run.id, colour="red")
    assert read_run(workspace, run.id) == run


def test_a_run_that_is_not_there_is_named_with_the_newest(workspace: Workspace) -> None:
    run = start(workspace)
    with pytest.raises(UserError, match=f"run 'nope' is not in .*{run.id}"):
        read_run(workspace, "nope")
    with pytest.raises(UserError):
        update_run(workspace, "nope", attempts=1)
    assert [r.id for r in list_runs(workspace)] == [run.id]


def test_a_file_of_another_version_is_refused_by_name(workspace: Workspace) -> None:
    run = start(workspace)
    path = workspace.run(run.id) / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"new_field": 1}))
    with pytest.raises(UserError, match="new_field"):
        read_run(workspace, run.id)


def test_the_committed_step_is_the_newest_with_a_marker(workspace: Workspace) -> None:
    run = start(workspace)
    assert committed_step(workspace, run.id) == 0
    for step, committed in ((20, True), (100, True), (900, False)):
        folder = workspace.run(run.id) / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        if committed:
            (folder / "COMMIT").touch()
    assert committed_step(workspace, run.id) == 100


def test_latest_is_looked_up_once_and_stands_as_a_number(workspace: Workspace) -> None:
    workspace.model("p", 7).mkdir(parents=True)
    workspace.model("p", "latest").write_text("7\n")
    assert resolve_starting_model(workspace, None) is None
    assert resolve_starting_model(workspace, "p/latest") == "p/7"
    assert start(workspace, init_from="p/latest").starting_model == "p/7"
    with pytest.raises(UserError, match=r"training\.init_from: there is no model 'p/8'"):
        resolve_starting_model(workspace, "p/8")


def test_what_rounding_depends_on_is_compared_by_name() -> None:
    before, after = numeric_environment(pipeline()), numeric_environment(pipeline(precision="float32"))
    assert changed_numerics(before, before) == []
    assert changed_numerics(before, after) == ["config.training.precision: auto → float32"]
    assert before["versions"]["numpy"]
