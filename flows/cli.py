"""The command line `tokenmill`. Prefect is imported where it is needed, and as late as can be."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from flows import image
from tokenmill.errors import UserError
from tokenmill.pipelines import read_pipeline_file
from tokenmill.protocol import ExitCode

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Retrain a language model every night on TensorFlow and know what each token cost.",
)

app.add_typer(image.app, name="image")

FileOption = Annotated[Path, typer.Option("--file", help="The file of named pipelines.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Overrule a dotted key of the pipeline; may be given several times."
    ),
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
WIDE = 240
PIPELINES_FILE = Path("pipelines.yaml")


@app.command()
def run(
    pipeline: Annotated[str, typer.Argument(help="A pipeline of the file.")],
    overrides: SetOption = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Give up the unfinished run, if there is one.")] = False,
    retrain_tokenizer: Annotated[
        bool, typer.Option("--retrain-tokenizer", help="Make the pipeline's tokenizer anew; implies --fresh.")
    ] = False,
    file: FileOption = PIPELINES_FILE,
    debug: DebugOption = False,
) -> None:
    """Retrain: prepare, validate, train, report. An unfinished run goes on where it was.

    Exit codes: 0 done, or nothing new to train; 1 crashed; 2 something for you to mend (also: the data was refused);
    75 interrupted (Ctrl-C, SIGTERM), everything is committed: start it again to go on.
    """
    from flows.ending import EXIT_CODES, print_ending
    from flows.local import spend_night
    from flows.terminal import Terminal
    from tasks.night import open_night
    from tokenmill.tokens.pinning import unpin

    settings = list(overrides or [])
    loaded = read_pipeline_file(file).load(pipeline, settings)
    console = _console()
    with open_night(pipeline, loaded, settings, fresh=fresh or retrain_tokenizer) as night:
        if retrain_tokenizer:
            unpin(night.workspace, pipeline)
        with Terminal(console) as terminal:
            night.listeners.append(terminal)
            if night.run is not None:
                console.print(f"going on with run {night.run.id}", highlight=False)
            outcome = spend_night(night)
        print_ending(console, night)
    raise typer.Exit(EXIT_CODES[outcome])


@app.command()
def stop(
    run: Annotated[str, typer.Argument(help="A run, by its id or the beginning of it, or a pipeline.")],
    file: FileOption = PIPELINES_FILE,
    debug: DebugOption = False,
) -> None:
    """Stop a run with a checkpoint. It does not go on by itself; starting its pipeline by hand goes on with it."""
    from flows.stopping import stop_run

    typer.echo(stop_run(read_pipeline_file(file), run))


@app.command()
def plan(
    pipeline: Annotated[str, typer.Argument(help="A pipeline of the file.")],
    overrides: SetOption = None,
    file: FileOption = PIPELINES_FILE,
    debug: DebugOption = False,
) -> None:
    """Say what a start would do, what is there already, and what it would cost. Starts nothing."""
    from flows.planning import plan_lines

    for line in plan_lines(pipeline, read_pipeline_file(file).load(pipeline, list(overrides or []))):
        typer.echo(line)


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="A run, by its id or the beginning of it, or a pipeline.")],
    file: FileOption = PIPELINES_FILE,
    debug: DebugOption = False,
) -> None:
    """Print a run's report."""
    from flows.listing import show_report

    show_report(_console(), read_pipeline_file(file), run)


@app.command()
def board(
    run: Annotated[str, typer.Argument(help="A run, by its id or the beginning of it, or a pipeline.")],
    port: Annotated[int, typer.Option("--port", help="On loopback.")] = 6006,
    file: FileOption = PIPELINES_FILE,
    debug: DebugOption = False,
) -> None:
    """Show a run in TensorBoard: scalars, what the model writes, utilisation, profiles."""
    from flows.board import show_board

    show_board(_console(), read_pipeline_file(file), run, port)


@app.command()
def doctor(
    pipeline: Annotated[str | None, typer.Argument(help="A pipeline of the file; none means its first.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    file: FileOption = PIPELINES_FILE,
    debug: DebugOption = False,
) -> None:
    """Check this machine: devices and their speed, profiler, disk, clocks, price, image. Exit code 2: mend it."""
    from flows.doctor import diagnose

    raise typer.Exit(diagnose(_console(), read_pipeline_file(file), pipeline, as_json=as_json))


@app.command()
def serve(
    port: Annotated[int, typer.Option("--port", help="Of the UI, if this brings its own server.")] = 4200,
    files_port: Annotated[
        int | None, typer.Option("--files-port", help="Of the reports that the UI links to; else the next port.")
    ] = None,
    file: FileOption = PIPELINES_FILE,
    debug: DebugOption = False,
) -> None:
    """Run nights on schedule and on demand until stopped. Goes on with what an earlier `serve` left unfinished.

    Without PREFECT_API_URL it brings a Prefect server with its UI, on loopback.
    """
    from flows.serving import serve_pipelines

    serve_pipelines(_console(), read_pipeline_file(file), port, files_port)


@app.command()
def deploy(
    pool: Annotated[
        str | None, typer.Option("--pool", help="A work pool whose workers run the nights, instead of `serve`.")
    ] = None,
    pool_kind: Annotated[
        str, typer.Option("--pool-kind", help="process, docker or kubernetes; made if the server has no such pool.")
    ] = "process",
    image: Annotated[
        str | None, typer.Option("--image", help="The orchestrator image, for docker and kubernetes.")
    ] = None,
    file: FileOption = PIPELINES_FILE,
    debug: DebugOption = False,
) -> None:
    """Create or update deployments and automations on the server that PREFECT_API_URL names."""
    from flows.serving import deploy_pipelines

    deploy_pipelines(_console(), read_pipeline_file(file), pool, pool_kind, image)


@app.command()
def costs(
    pipeline: Annotated[str | None, typer.Argument(help="Only this pipeline.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="YYYY-MM-DD", help="Only nights from then on.")
    ] = None,
    file: FileOption = PIPELINES_FILE,
    debug: DebugOption = False,
) -> None:
    """Compare what nights, pipelines and configurations cost."""
    from flows.listing import list_costs

    list_costs(_console(), read_pipeline_file(file), pipeline, since)


@app.command()
def tune(
    pipeline: Annotated[str, typer.Argument(help="A pipeline of the file.")],
    overrides: SetOption = None,
    budget_usd: Annotated[float | None, typer.Option(min=0.000001, help="What the trials may cost in all.")] = None,
    max_minutes: Annotated[float, typer.Option(min=0.01, help="How long they may take in all.")] = 30,
    sequence_lengths: Annotated[str | None, typer.Option(help="Tokens a row, such as 256,512.")] = None,
    batch_sizes: Annotated[str | None, typer.Option(help="Sequences in an update, such as 16,32.")] = None,
    accumulations: Annotated[str | None, typer.Option(help="Passes of an update, such as 1,2,4.")] = None,
    precisions: Annotated[str | None, typer.Option(help="Such as float32,bfloat16.")] = None,
    xla: Annotated[str | None, typer.Option(help="Such as off,on.")] = None,
    file: FileOption = PIPELINES_FILE,
    debug: DebugOption = False,
) -> None:
    """Find the fastest configuration by short trials. Ended early, the same command goes on where it was."""
    from flows.tuning import numbers, tune_pipeline, words

    options = {
        "budget_usd": budget_usd,
        "max_minutes": max_minutes,
        "sequence_lengths": numbers("--sequence-lengths", sequence_lengths),
        "batch_sizes": numbers("--batch-sizes", batch_sizes),
        "accumulations": numbers("--accumulations", accumulations),
        "precisions": words("--precisions", precisions, ("float32", "bfloat16", "float16")),
        "xla": words("--xla", xla, ("off", "on", "fuse")),
    }
    tune_pipeline(read_pipeline_file(file), pipeline, list(overrides or []), options)


@app.command(name="ls")
def list_all(file: FileOption = PIPELINES_FILE, debug: DebugOption = False) -> None:
    """List pipelines, snapshots, runs and models."""
    from flows.listing import list_everything

    list_everything(_console(), read_pipeline_file(file))


@app.command()
def promote(
    run: Annotated[str, typer.Argument(help="A run, by its id or the beginning of it, or a pipeline.")],
    file: FileOption = PIPELINES_FILE,
    debug: DebugOption = False,
) -> None:
    """Make a run's model the pipeline's latest, for `training.init_from: PIPELINE/latest`."""
    from flows.promoting import promote as promote_model

    promote_model(_console(), read_pipeline_file(file), run)


@app.command()
def inspect(
    snapshot: Annotated[str, typer.Argument(help="A snapshot, by its id or the beginning of it, or a pipeline.")],
    out: Annotated[Path | None, typer.Option("--out", help="Where to write the page.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Check every byte and row instead of writing a page.")] = False,
    file: FileOption = PIPELINES_FILE,
    debug: DebugOption = False,
) -> None:
    """Write one HTML page about a snapshot: lengths, tokens, padding, duplicates, refusals, packed rows."""
    from flows.tidying import inspect_snapshot, verify_snapshot

    if deep:
        verify_snapshot(_console(), read_pipeline_file(file), snapshot)
    else:
        inspect_snapshot(_console(), read_pipeline_file(file), snapshot, out, show=show)


@app.command()
def gc(
    keep_days: Annotated[float, typer.Option("--keep-days", min=0, help="Nights younger than this are kept.")] = 30,
    yes: Annotated[bool, typer.Option("--yes", help="Remove, do not only list.")] = False,
    file: FileOption = PIPELINES_FILE,
    debug: DebugOption = False,
) -> None:
    """List the runs, snapshots and shards that nothing refers to any more; with --yes remove them."""
    from flows.tidying import collect_garbage

    collect_garbage(_console(), read_pipeline_file(file), keep_days=keep_days, yes=yes)


@app.command()
def forget(
    ids: Annotated[list[str], typer.Argument(help="Documents, by their id or their content digest.", metavar="ID...")],
    yes: Annotated[bool, typer.Option("--yes", help="Purge and rebuild, do not only say who saw them.")] = False,
    file: FileOption = PIPELINES_FILE,
    debug: DebugOption = False,
) -> None:
    """Say which snapshots and models saw documents; with --yes purge them and rebuild the shards without them."""
    from flows.tidying import forget_documents

    forget_documents(_console(), read_pipeline_file(file), ids, yes=yes)


def _console() -> Console:
    """Wide where there is no terminal: lines in a log are not cut at an eightieth column."""
    return Console() if sys.stdout.isatty() else Console(width=WIDE)


def main() -> None:
    """The entry point: a mistake of the user's is one sentence and exit code 2."""
    try:
        app()
    except UserError as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        print(f"tokenmill: {error}", file=sys.stderr)
        sys.exit(ExitCode.USER_ERROR)


if __name__ == "__main__":
    main()
