"""Bad input through the command line: one clear sentence, exit code 2, no traceback, and no training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.commands import tokenmill, write_pipelines

pytestmark = pytest.mark.integration


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.txt").write_text("a note")
    return tmp_path


def refused(folder: Path, *arguments: str) -> str:
    """The words of a refusal, on whichever stream."""
    done = tokenmill(folder, *arguments)
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    assert "Traceback" not in said
    return said


def source(folder: Path, **changes: Any) -> dict[str, Any]:
    return {"sources": [{"name": "notes", "root": str(folder / "notes"), "include": ["**/*.txt"], **changes}]}


def test_no_pipelines_file(folder: Path) -> None:
    assert "pipelines.yaml does not exist; start tokenmill beside" in refused(folder, "run", "small")


def test_unknown_pipeline(folder: Path) -> None:
    write_pipelines(folder)
    assert "pipeline 'smal' is not in pipelines.yaml; known pipelines: small" in refused(folder, "run", "smal")


def test_mistyped_keys_all_at_once(folder: Path) -> None:
    write_pipelines(folder, trainin={"seed": 1})
    said = refused(folder, "run", "small", "--set", "model.layer=2")
    assert "trainin: unknown key; did you mean 'training'?" in said
    assert "model.layer: unknown key; did you mean 'layers'?" in said


def test_missing_price(folder: Path) -> None:
    write_pipelines(folder, cost=None)
    assert "cost: required, and missing" in refused(folder, "run", "small")
    write_pipelines(folder, cost={"machine_type": "nowhere-1"})
    assert "there is no price for the machine 'nowhere-1'" in refused(folder, "run", "small")


def test_a_runtime_that_is_not_there_is_never_a_bare_process_in_silence(folder: Path) -> None:
    write_pipelines(folder, runtime={"kind": "docker"})
    said = refused(folder, "run", "small")
    assert "image.lock does not exist; write it with `tokenmill image lock`" in " ".join(said.split())
    assert not (folder / "workspace").exists()


def test_workspace_that_cannot_be_written(folder: Path) -> None:
    (folder / "file").write_text("")
    write_pipelines(folder, workspace="./file/workspace")
    assert "cannot be written" in refused(folder, "run", "small")


def test_too_little_disk(folder: Path) -> None:
    write_pipelines(folder, model={"layers": 5000, "d_model": 65536, "heads": 4})
    assert "MiB are needed; free some space or choose another folder" in refused(folder, "run", "small")


def test_source_root_that_is_no_folder(folder: Path) -> None:
    write_pipelines(folder, corpus=source(folder, root=str(folder / "nowhere")))
    assert "corpus.sources.0.root" in refused(folder, "run", "small")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"include": ["**/*.rst"]}, "corpus source 'notes': no file under"),
        ({"format": "parquet"}, "corpus: the sources' files give no document, all are empty or refused"),
    ],
    ids=["glob that matches nothing", "files that cannot be read"],
)
def test_corpus_that_gives_nothing(folder: Path, changes: dict[str, Any], sentence: str) -> None:
    """Found by prepare: the night leaves its report as well, since seconds were spent."""
    write_pipelines(folder, corpus=source(folder, **changes))
    assert sentence in refused(folder, "run", "small")
    assert len(list((folder / "workspace" / "invocations").glob("*/report/report.html"))) == 1
    assert not (folder / "workspace" / "runs").exists()


def test_empty_corpus(folder: Path) -> None:
    (folder / "notes" / "a.txt").write_text("")
    write_pipelines(folder)
    assert "corpus: the sources' files give no document" in refused(folder, "run", "small")


def test_debug_shows_the_traceback(folder: Path) -> None:
    done = tokenmill(folder, "run", "small", "--debug")
    assert done.returncode == 2
    assert "Traceback" in done.stderr


@pytest.mark.parametrize("command", ["run", "stop", "plan", "show", "ls"])
def test_each_command_has_help(folder: Path, command: str) -> None:
    done = tokenmill(folder, command, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout
