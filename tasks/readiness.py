"""What can be refused before anything starts: places that a pipeline names and that are not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tokenmill.cost.prices import resolve_price
from tokenmill.errors import UserError
from tokenmill.pipelines import Pipeline
from tokenmill.runs import resolve_starting_model
from tokenmill.workspace import Workspace


def check_ready(pipeline: Pipeline, workspace: Workspace) -> None:
    """Raises `UserError` about the first thing that a person must mend. Writes nothing."""
    resolve_price(pipeline.cost)
    for problem in _missing_places(pipeline):
        raise UserError(problem)
    resolve_starting_model(workspace, pipeline.training.init_from)


def _missing_places(pipeline: Pipeline) -> Iterator[str]:
    for number, source in enumerate(pipeline.corpus.sources):
        if "://" not in source.root and not Path(source.root).is_dir():
            yield (
                f"corpus.sources.{number}.root: '{source.root}' (source '{source.name}') is not a folder; "
                "name the folder that holds the files"
            )
    tokenizer = pipeline.tokenizer.source
    if tokenizer is not None and tokenizer.startswith("/") and not Path(tokenizer).is_dir():
        yield f"tokenizer.source: '{tokenizer}' is not a folder; name a folder or a hub name with a revision"
    suite = pipeline.checks.suite
    if suite is not None and not Path(suite).is_file():
        yield f"checks.suite: '{suite}' does not exist; name a JSON or Python file"
