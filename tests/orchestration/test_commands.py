"""`stop`, `plan`, `ls` and what `serve` finds left, over nights on fake stages."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from flows.listing import list_everything
from flows.planning import plan_lines
from flows.stopping import stop_run
from tasks.again import until_done
from tasks.night import NightOver, finish
from tests.orchestration.nights import Quiet, fake_night, order, pipeline
from tokenmill.errors import UserError
from tokenmill.invocations import left_unfinished
from tokenmill.pipelines import PipelineFile, read_pipeline_file
from tokenmill.protocol import StageName
from tokenmill.runs import list_runs
from tokenmill.workspace import Workspace


def pipelines_file(folder: Path) -> PipelineFile:
    raw = pipeline(folder).model_dump(mode="json", exclude_unset=True)
    (folder / "pipelines.yaml").write_text(yaml.safe_dump({"pipelines": {"small": raw}}))
    return read_pipeline_file(folder / "pipelines.yaml")


def train_until(folder: Path, action: str) -> None:
    """A night that waits in training until it is interrupted, or stopped by hand."""
    order(folder, "train", "wait")
    with fake_night(folder) as night:

        def act() -> None:
            if action == "interrupt":
                night.stop.interrupt("Ctrl-C")
            else:
                assert "asked" in stop_run(pipelines_file(folder), "small")

        night.listeners.append(Quiet(waiting=act))
        night.open_run("s1", "validations/s1/r")
        with pytest.raises(NightOver) as over:
            until_done(night, StageName.TRAIN, lambda: night.attempt(StageName.TRAIN))
        finish(night, over.value.outcome, str(over.value), lambda: night.attempt(StageName.REPORT))


def test_stop_reaches_a_running_night_and_its_run_is_cancelled(tmp_path: Path) -> None:
    train_until(tmp_path, "stop")
    (run,) = list_runs(Workspace(tmp_path / "workspace"))
    assert (run.status, run.committed_step) == ("cancelled", 10)
    assert left_unfinished(Workspace(tmp_path / "workspace"), "small") is None
    with pytest.raises(UserError, match=f"run {run.id} does not run: it is cancelled"):
        stop_run(pipelines_file(tmp_path), run.id[:6])


def test_stop_closes_a_run_that_nobody_works_on(tmp_path: Path) -> None:
    train_until(tmp_path, "interrupt")
    left = left_unfinished(Workspace(tmp_path / "workspace"), "small")
    assert left is not None
    assert left.outcome == "interrupted"
    assert "marked as cancelled" in stop_run(pipelines_file(tmp_path), "small")
    assert list_runs(Workspace(tmp_path / "workspace"))[0].status == "cancelled"


def test_stop_of_something_unknown_names_what_is_known(tmp_path: Path) -> None:
    train_until(tmp_path, "interrupt")
    with pytest.raises(UserError, match=r"no run or pipeline with runs called 'nope'; newest runs: [0-9a-f]{12}"):
        stop_run(pipelines_file(tmp_path), "nope")


def test_plan_says_what_goes_on_and_from_where(tmp_path: Path) -> None:
    file = pipelines_file(tmp_path)
    said = "\n".join(plan_lines("small", file.load("small")))
    assert "a new run" in said
    assert "$1" in said
    assert not (tmp_path / "workspace").exists()
    train_until(tmp_path, "interrupt")
    said = "\n".join(plan_lines("small", file.load("small")))
    assert "would go on with run" in said
    assert "from step 10" in said


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("tokenizer.source=./gone", "tokenizer.source: .*/gone' is not a folder"),
        ("checks.suite=gone.py", "checks.suite: .*/gone.py' does not exist"),
        ("training.init_from=small/7", "training.init_from: there is no model 'small/7'"),
        ("corpus.sources=[{name: a, root: gone}]", "corpus.sources.0.root: .*/gone' .* is not a folder"),
    ],
)
def test_plan_refuses_places_that_are_not_there(tmp_path: Path, override: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        list(plan_lines("small", pipelines_file(tmp_path).load("small", [override])))


def test_ls_shows_pipelines_and_runs_whole(tmp_path: Path) -> None:
    train_until(tmp_path, "interrupt")
    out = io.StringIO()
    list_everything(Console(file=out, width=240), pipelines_file(tmp_path))
    (run,) = list_runs(Workspace(tmp_path / "workspace"))
    assert run.id in out.getvalue()
    assert "interrupted at step 10 (Ctrl-C); start again to go on" in out.getvalue()


def test_ls_names_a_manifest_that_is_broken(tmp_path: Path) -> None:
    file = pipelines_file(tmp_path)
    manifest = tmp_path / "workspace" / "snapshots" / "s1" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text('{"documents_kept": 3,')
    with pytest.raises(UserError, match=f"{manifest} is broken"):
        list_everything(Console(file=io.StringIO()), file)
