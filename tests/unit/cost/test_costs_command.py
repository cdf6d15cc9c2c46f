"""`tokenmill costs` with nothing to show, and with names and days that are not there."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from flows.listing import list_costs
from tokenmill.errors import UserError
from tokenmill.pipelines import PipelineFile, read_pipeline_file

TEXT = """
pipelines:
  small:
    corpus: {sources: [{name: notes, root: .}]}
    training: {length: {steps: 10}}
    cost: unpriced
"""


@pytest.fixture
def file(tmp_path: Path) -> PipelineFile:
    (tmp_path / "pipelines.yaml").write_text(TEXT)
    return read_pipeline_file(tmp_path / "pipelines.yaml")


@pytest.mark.parametrize(
    ("pipeline", "since", "said"),
    [
        ("nope", None, "pipeline 'nope' is not in pipelines.yaml; known pipelines: small"),
        (None, "yesterday", "--since: 'yesterday' is not a day such as 2026-11-30"),
        ("small", "0001-01-01", "--since: '0001-01-01' is not a day"),
    ],
)
def test_what_is_not_there_is_refused(file: PipelineFile, pipeline: str | None, since: str | None, said: str) -> None:
    with pytest.raises(UserError) as error:
        list_costs(Console(file=io.StringIO()), file, pipeline, since)
    assert said in str(error.value)


def test_no_night_is_said(file: PipelineFile) -> None:
    out = io.StringIO()
    list_costs(Console(file=out), file, None, "2026-11-30")
    assert out.getvalue().strip() == "no night has a report since 2026-11-30"
