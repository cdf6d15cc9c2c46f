"""`tokenmill image lock` and `tokenmill image check`: the pin of a deployment's image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tokenmill.errors import UserError
from tokenmill.pipelines import Pipeline, read_pipeline_file

app = typer.Typer(no_args_is_help=True, help="Pin the image that stages run in, and look after the pin.")
FileOption = Annotated[Path, typer.Option("--file", "-f", help="The file of pipelines.")]
PipelineArgument = Annotated[str | None, typer.Argument(help="A pipeline of the file; none means its first.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
PIPELINES_FILE = Path("pipelines.yaml")


@app.command()
def lock(
    pipeline: PipelineArgument = None,
    reference: Annotated[str | None, typer.Option("--reference", help="Instead of image.reference.")] = None,
    file: FileOption = PIPELINES_FILE,
    debug: DebugOption = False,
) -> None:
    """Resolve the image's tag to its digest and write image.lock."""
    from tasks.image_lock import write_lock
    from tasks.images import resolve

    loaded = _load(file, pipeline)
    wanted = reference or loaded.image.reference
    if wanted is None:
        raise UserError("image.reference: not set; name the engine image's repository and tag, or give --reference")
    made = resolve(wanted, loaded.image.registry)
    write_lock(Path(loaded.image.lock), made)
    Console().print(f"{loaded.image.lock}: {made.image}", soft_wrap=True)


@app.command()
def check(pipeline: PipelineArgument = None, file: FileOption = PIPELINES_FILE, debug: DebugOption = False) -> None:
    """Say how old the pin is, whether its image can be had, and what its tag names today. Exit code 2: mend it."""
    from tasks.image_lock import read_lock
    from tasks.images import check as judge

    loaded = _load(file, pipeline)
    verdict = judge(read_lock(Path(loaded.image.lock)), loaded.image.registry)
    for sentence in verdict.sentences:
        Console().print(sentence, soft_wrap=True)
    raise typer.Exit(0 if verdict.ok else 2)


def _load(path: Path, name: str | None) -> Pipeline:
    file = read_pipeline_file(path)
    return file.load(name or next(iter(file.pipelines), ""))
