"""The flow on a real Prefect server, over fake stages: every end of a night has its state, report and artifacts."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.orchestration.nights import Quiet, fake_night, order
from tokenmill.invocations import list_invocations
from tokenmill.runs import list_runs
from tokenmill.workspace import Workspace

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("prefect_server")]


def spend(folder: Path, stop_at_wait: str = "", **options: Any) -> Any:
    """One night; returns the flow run's state."""
    from flows.retrain import retrain, use

    with fake_night(folder, **options) as night:
        if stop_at_wait:
            action = night.stop.interrupt if stop_at_wait == "interrupt" else night.stop.cancel
            night.listeners.append(Quiet(waiting=lambda: action("Ctrl-C")))
        with use(night):
            return retrain(pipeline=night.name, return_state=True)


def last(folder: Path) -> dict[str, Any]:
    workspace = Workspace(folder / "workspace")
    invocation = list_invocations(workspace)[-1]
    found: dict[str, Any] = json.loads(invocation.model_dump_json())
    base = workspace.run(invocation.run_id) if invocation.run_id else workspace.invocation(invocation.id)
    found["report"] = (base / "report" / "report.md").read_text()
    return found


def stages(folder: Path) -> list[str]:
    return [stage["stage"] for stage in last(folder)["stages"]]


def run_status(folder: Path) -> str:
    return str(list_runs(Workspace(folder / "workspace"))[-1].status)


def test_a_night_from_corpus_to_report_and_a_second_with_nothing_to_do(tmp_path: Path) -> None:
    state = spend(tmp_path)
    assert (state.type.value, state.name) == ("COMPLETED", "Completed")
    assert stages(tmp_path) == ["prepare", "validate", "train", "report"]
    night = last(tmp_path)
    assert (night["outcome"], night["report"]) == ("finished", "# small: finished\n")
    assert night["ended"] > night["started"]
    assert run_status(tmp_path) == "completed"
    state = spend(tmp_path)
    assert (state.type.value, state.name) == ("COMPLETED", "AlreadyTrained")
    assert "nothing new" in state.message
    assert stages(tmp_path) == ["prepare", "report"]
    (tmp_path / "notes" / "b.txt").write_text("more")
    assert spend(tmp_path).name == "Completed"
    assert len(list_runs(Workspace(tmp_path / "workspace"))) == 2


def test_artifacts_keep_their_keys_night_by_night(tmp_path: Path) -> None:
    from prefect.client.orchestration import get_client

    spend(tmp_path, name="keys_1")
    order(tmp_path, "prepare", "complete")
    spend(tmp_path, name="keys_1")
    with get_client(sync_client=True) as client:
        artifacts = [item for item in client.read_artifacts() if item.key and item.key.endswith("keys-1")]
    keys = [item.key for item in artifacts]
    assert keys.count("cost-report-keys-1") == 2
    assert {"verdict-keys-1", "rules-keys-1", "samples-keys-1", "progress-prepare-keys-1"} <= set(keys)
    assert any("def main():" in str(item.data) for item in artifacts)


def test_data_that_is_refused_ends_the_night_with_a_report_and_no_run(tmp_path: Path) -> None:
    order(tmp_path, "validate", "failed")
    state = spend(tmp_path)
    assert (state.type.value, state.name, state.message) == ("FAILED", "Refused", "too many unknown tokens")
    assert stages(tmp_path) == ["prepare", "validate", "report"]
    assert last(tmp_path)["outcome"] == "refused_by_validation"
    assert not list_runs(Workspace(tmp_path / "workspace"))


def test_training_on_the_last_good_snapshot_is_said_loudly_and_done_once(tmp_path: Path) -> None:
    order(tmp_path, "train", "stopped_by_budget")
    spend(tmp_path)
    workspace = Workspace(tmp_path / "workspace")
    (workspace.root / "last-good").write_text(list_runs(workspace)[-1].snapshot)
    for _ in range(2):
        (tmp_path / "notes" / "b.txt").write_text("aGVsbG8=")
        order(tmp_path, "validate", "replaced")
        state = spend(tmp_path)
        night = last(tmp_path)
        if night["outcome"] == "refused_by_validation":
            break
        assert (state.type.value, state.name) == ("COMPLETED", "CompletedOnLastGood")
        loud = "DATA REFUSED, the last good snapshot was trained on instead: It is base64. "
        assert state.message.startswith(loud)
        assert night["message"].startswith(loud)
    assert (state.type.value, state.name) == ("FAILED", "Refused")
    assert state.message.startswith("no training, data refused: It is base64. The last good snapshot, ")
    assert [run.status for run in list_runs(workspace)] == ["completed"]


def test_an_interrupted_night_has_a_report_and_the_next_goes_on_without_the_corpus(tmp_path: Path) -> None:
    order(tmp_path, "train", "wait")
    state = spend(tmp_path, "interrupt")
    assert (state.type.value, state.name) == ("CRASHED", "Interrupted")
    assert state.message == "interrupted at step 10 (Ctrl-C); start again to go on"
    assert last(tmp_path)["report"] == "# small: interrupted\n"
    assert run_status(tmp_path) == "open"
    (tmp_path / "notes" / "b.txt").write_text("the corpus has grown")
    assert spend(tmp_path).name == "Completed"
    assert stages(tmp_path) == ["train", "report"]
    assert [run.status for run in list_runs(Workspace(tmp_path / "workspace"))] == ["completed"]


def test_a_fresh_start_gives_up_what_is_unfinished(tmp_path: Path) -> None:
    order(tmp_path, "train", "wait")
    spend(tmp_path, "interrupt")
    (tmp_path / "notes" / "b.txt").write_text("the corpus has grown")
    spend(tmp_path, fresh=True)
    assert stages(tmp_path) == ["prepare", "validate", "train", "report"]
    assert [run.status for run in list_runs(Workspace(tmp_path / "workspace"))] == ["abandoned", "completed"]


def test_a_run_stopped_by_hand_is_cancelled_and_a_start_by_hand_opens_it_again(tmp_path: Path) -> None:
    order(tmp_path, "train", "wait")
    state = spend(tmp_path, "cancel")
    assert state.type.value == "CANCELLED"
    assert run_status(tmp_path) == "cancelled"
    assert spend(tmp_path).name == "Completed"
    assert stages(tmp_path) == ["prepare", "validate", "train", "report"]
    assert run_status(tmp_path) == "completed"


def test_a_run_out_of_budget_is_stopped_and_goes_on_when_the_corpus_is_the_same(tmp_path: Path) -> None:
    order(tmp_path, "train", "stopped_by_budget")
    assert spend(tmp_path).name == "StoppedByBudget"
    assert (last(tmp_path)["outcome"], run_status(tmp_path)) == ("stopped_by_budget", "stopped")
    spend(tmp_path)
    assert len(list_runs(Workspace(tmp_path / "workspace"))) == 1
    assert run_status(tmp_path) == "completed"


def test_attempts_stand_on_the_timeline_in_plain_words(tmp_path: Path) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    order(tmp_path, "train", "preempt", "die")
    state = spend(tmp_path)
    with get_client(sync_client=True) as client:
        wanted = FlowRunFilter(id=FlowRunFilterId(any_=[state.state_details.flow_run_id]))
        runs = client.read_task_runs(flow_run_filter=wanted)
        flow_run = client.read_flow_run(state.state_details.flow_run_id)
    said = {run.name: (run.state.name, run.state.message) for run in runs if run.name.startswith("train")}
    assert said["train, attempt 1"] == ("Interrupted", "interrupted at step 10, resuming")
    assert said["train, attempt 2"] == ("Failed", "killed (SIGKILL)")
    assert said["train, attempt 3"][0] == "Completed"
    assert flow_run.name.startswith("small 2")


def test_prepare_on_many_machines_is_planned_mapped_and_committed(tmp_path: Path) -> None:
    order(tmp_path, "prepare", "complete", "die", "die", "fail")
    assert spend(tmp_path, machines=2).name == "Completed"
    assert stages(tmp_path).count("prepare") > 1 + 5 + 1
    assert sorted(path.name for path in (tmp_path / "workspace" / "built").iterdir()) == ["0", "1", "2", "3", "4"]
    assert run_status(tmp_path) == "completed"


def test_a_report_that_crashes_does_not_change_the_outcome(tmp_path: Path) -> None:
    order(tmp_path, "report", "die", "die")
    assert spend(tmp_path).name == "Completed"
    assert stages(tmp_path)[-2:] == ["report", "report"]


def test_a_start_that_meets_a_running_one_is_skipped(tmp_path: Path) -> None:
    import yaml

    from flows.retrain import retrain

    with fake_night(tmp_path) as night:
        raw = night.pipeline.model_dump(mode="json", exclude_unset=True)
        (tmp_path / "pipelines.yaml").write_text(yaml.safe_dump({"pipelines": {"small": raw}}))
        state = retrain(pipeline="small", file=str(tmp_path / "pipelines.yaml"), return_state=True)
    assert (state.type.value, state.name) == ("COMPLETED", "Skipped")
    assert f"running already ({night.invocation.id})" in state.message


def test_the_forms_mistakes_are_said_in_the_flow_runs_state(tmp_path: Path) -> None:
    from flows.retrain import retrain

    state = retrain(pipeline="small", file=str(tmp_path / "nowhere.yaml"), return_state=True)
    assert (state.type.value, state.name) == ("FAILED", "UserError")
    assert "does not exist" in state.message


def test_the_form_offers_the_pipelines_and_their_limits(tmp_path: Path) -> None:
    from flows.deployments import make_deployments
    from tokenmill.pipelines import PipelineFile

    raw = {"training": {"length": {"steps": 1}}, "cost": "unpriced", "workspace": str(tmp_path)}
    corpus = {"corpus": {"sources": [{"name": "notes", "root": "/x"}]}}
    nightly = raw | corpus | {"schedule": {"cron": "0 22 * * *", "timezone": "Europe/Zurich"}}
    made = make_deployments(PipelineFile(tmp_path / "pipelines.yaml", {}, {"a": raw | corpus, "nightly": nightly}))
    assert [deployment.name for deployment in made] == ["on-demand", "nightly"]
    properties = made[0]._parameter_openapi_schema.properties
    assert properties["pipeline"]["enum"] == ["a", "nightly"]
    assert "exclusiveMinimum" in str(properties["budget_usd"])
    assert made[1].parameters["pipeline"] == "nightly"
    assert str(made[1].schedules[0].schedule.timezone) == "Europe/Zurich"


def test_an_alarm_of_a_training_is_an_event_at_the_server(tmp_path: Path) -> None:
    from prefect.client.orchestration import get_client

    order(tmp_path, "train", "alarm")
    assert spend(tmp_path, name="alarming").name == "Completed"
    query = {"filter": {"event": {"name": ["tokenmill.alarm.low_utilisation"]}}}
    deadline = time.monotonic() + 30
    found: list[dict[str, Any]] = []
    with get_client(sync_client=True) as client:
        while not found and time.monotonic() < deadline:
            found = client.request("POST", "/events/filter", json=query).json()["events"]
            time.sleep(0.2)
    (event,) = found
    assert event["resource"]["prefect.resource.id"] == "tokenmill.pipeline.alarming"
    assert event["payload"] == {"alarm": "low_utilisation", "cause": "input_bound", "usd_per_hour_wasted": 0.6}
