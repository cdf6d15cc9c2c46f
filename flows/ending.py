"""What `tokenmill run` says at its end, and the exit code that it leaves."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from tasks.night import Night
from tokenmill.invocations import Outcome
from tokenmill.protocol import ExitCode, StageName
from tokenmill.workspace import read_json

SAMPLES = 2
SAMPLE_LINES = 6

EXIT_CODES: dict[Outcome, ExitCode] = {
    "finished": ExitCode.DONE,
    "already_trained": ExitCode.DONE,
    "stopped_by_budget": ExitCode.DONE,
    "stopped_by_condition": ExitCode.DONE,
    "cancelled": ExitCode.DONE,
    "refused_by_validation": ExitCode.USER_ERROR,
    "user_error": ExitCode.USER_ERROR,
    "interrupted": ExitCode.INTERRUPTED,
    "crashed": ExitCode.CRASHED,
    "running": ExitCode.CRASHED,
}


def print_ending(console: Console, night: Night) -> None:
    """The report's first line, what the model writes, how good it is, and where everything lies."""

    def say(text: str = "", style: str | None = None) -> None:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    outcome, message = night.invocation.outcome, night.invocation.message
    say()
    first_line = night.outputs.get(StageName.REPORT, {}).get("first_line", "there is no report: it could not be made")
    if outcome != "finished" and message.lower() not in first_line.lower():
        say(message)
    say(first_line, "bold")
    if night.run is not None and outcome in (
        "finished",
        "already_trained",
        "stopped_by_budget",
        "stopped_by_condition",
    ):
        for sample in _samples(night)[:SAMPLES]:
            say()
            for line in _shortened(f"{sample['prompt']}{sample['text']}"):
                say(f"    {line}")
        say()
        say(_quality(night))
    say()
    for label, path in _places(night):
        say(f"{label:<10} {path}")


def _samples(night: Night) -> list[dict[str, Any]]:
    assert night.run is not None
    try:
        samples: list[dict[str, Any]] = read_json(night.workspace.run(night.run.id) / "samples.json")
    except FileNotFoundError:
        return []
    return samples


def _shortened(text: str) -> list[str]:
    lines = text.splitlines()
    return lines[:SAMPLE_LINES] + (["..."] if len(lines) > SAMPLE_LINES else [])


def _quality(night: Night) -> str:
    trained = night.outputs_of(StageName.TRAIN)
    verdict = night.outputs_of(StageName.VALIDATE)
    if trained.get("eval_loss") is None:
        return "This run has not been evaluated."
    text = f"evaluation loss {trained['eval_loss']:.3f} nats per token on held-out documents"
    if verdict.get("unigram_entropy_nats") is not None:
        text += f"; unigram entropy of the corpus {verdict['unigram_entropy_nats']:.3f}"
    return text


def _places(night: Night) -> list[tuple[str, str]]:
    places = []
    workspace = night.workspace
    report = night.outputs.get(StageName.REPORT, {}).get("folder")
    if report:
        places.append(("report", str(workspace.root / report / "report.html")))
    if night.run is not None:
        run = workspace.run(night.run.id)
        places += [("run", str(run))]
        places += [("model", str(run / "model"))] if (run / "model").is_dir() else []
        if (run / "tensorboard").is_dir():
            places.append(("curves", f"tokenmill board {run.name}"))
    places.append(("invocation", str(workspace.invocation(night.invocation.id))))
    return places
