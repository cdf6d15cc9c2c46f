"""What a tuning found, as Markdown with its plot inside, and as a page of its own."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence

from tokenmill.cost.money import format_usd
from tokenmill.cost.tuning import Knobs, Trial, best_at, last_of_each, pareto, paste_lines, xla_sentence
from tokenmill.cost.words import plural

HEADINGS = (
    "row length",
    "global batch",
    "micro batch",
    "precision",
    "XLA",
    "tokens / s",
    "USD / 1 M",
    "memory",
    "seen",
)


def rows(trials: Sequence[Trial]) -> list[dict[str, str]]:
    """Every configuration as its longest trial saw it, the undominated ones first."""
    last = last_of_each(trials)
    front = pareto(last)
    order = sorted(last, key=lambda t: (t.knobs.sequence_length, t not in front, -t.tokens_per_second))
    return [dict(zip(("", *HEADINGS), ("★" if t in front else "", *_cells(t)), strict=True)) for t in order]


def first_line(trials: Sequence[Trial], now: Knobs) -> str:
    best = best_at(trials, now.sequence_length)
    if best is None:
        return "No configuration could be measured."
    cost = best.usd_per_million_tokens
    price = "" if cost is None else f", {format_usd(cost)} per million tokens while stepping"
    text = f"Best at {now.sequence_length} tokens a row: {best.tokens_per_second:,.0f} tokens a second{price}"
    known = [t for t in last_of_each(trials) if t.knobs == now and t.status == "measured"]
    if known and known[0].knobs != best.knobs:
        text += f"; {100 * (best.tokens_per_second / known[0].tokens_per_second - 1):.0f} % faster than as it is now"
    elif known:
        text += "; that is how it is now"
    return text + "."


def markdown(trials: Sequence[Trial], now: Knobs, ending: str) -> str:
    spent = sum((trial.usd for trial in trials), start=trials[0].usd * 0) if trials else 0
    lines = [f"**{first_line(trials, now)}**", "", f"{plural(len(trials), 'trial')}, {format_usd(spent)}. {ending}", ""]
    table = rows(trials)
    heads = ("", *HEADINGS)
    lines += ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(row[head] for head in heads) + " |" for row in table]
    lines += [
        "",
        "★: no other of the same row length is both faster and smaller. Start, compile and warm-up are apart.",
    ]
    best = best_at(trials, now.sequence_length)
    if best is not None:
        if sentence := xla_sentence(last_of_each(trials), best):
            lines += ["", f"{sentence}."]
        lines += ["", "For pipelines.yaml:", "", "```yaml", *paste_lines(best.knobs, now), "```"]
        lines += ["", f"![memory against speed]({_plot(trials)})"]
    return "\n".join(lines) + "\n"


def page(trials: Sequence[Trial], now: Knobs, ending: str, title: str) -> str:
    """One file that needs no network, light and dark."""
    heads = ("", *HEADINGS)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(r[h])}</td>" for h in heads) + "</tr>" for r in rows(trials))
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    best = best_at(trials, now.sequence_length)
    pasted = "" if best is None else f"<pre>{html.escape(chr(10).join(paste_lines(best.knobs, now)))}</pre>"
    plot = "" if best is None else f'<img alt="memory against speed" src="{_plot(trials)}">'
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<style>:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;"
        "padding:0 1rem}.wide{overflow-x:auto}td,th{padding:.2rem .6rem;text-align:right;white-space:nowrap}"
        "img{max-width:100%;background:#fff}pre{overflow-x:auto}</style>"
        f"<h1>{html.escape(title)}</h1><p><strong>{html.escape(first_line(trials, now))}</strong></p>"
        f'<p>{html.escape(ending)}</p><div class="wide"><table><tr>{head}</tr>{body}'
        f"</table></div>{pasted}{plot}</html>\n"
    )


def _cells(trial: Trial) -> tuple[str, ...]:
    knobs = trial.knobs
    sizes = (str(knobs.sequence_length), str(knobs.global_batch_size), str(knobs.micro_batch_size))
    setting = (*sizes, knobs.precision, knobs.xla)
    if trial.status != "measured":
        return (*setting, "", "", "", trial.status.replace("_", " "))
    cost = trial.usd_per_million_tokens
    memory = "" if trial.peak_memory_bytes is None else f"{trial.peak_memory_bytes / 2**30:.2f} GiB"
    price = "" if cost is None else format_usd(cost)
    return (*setting, f"{trial.tokens_per_second:,.0f}", price, memory, plural(len(trial.step_seconds), "step"))


def _plot(trials: Sequence[Trial]) -> str:
    """Memory against tokens a second, a colour for each row length, as a data URI."""
    import matplotlib
    from matplotlib.figure import Figure

    last = [trial for trial in last_of_each(trials) if trial.status == "measured"]
    front = pareto(last)
    canvas = Figure(figsize=(6.2, 3.4), layout="constrained")
    axes = canvas.add_subplot()
    for length in sorted({trial.knobs.sequence_length for trial in last}):
        own = [trial for trial in last if trial.knobs.sequence_length == length]
        speeds, memory = [t.tokens_per_second for t in own], [(t.peak_memory_bytes or 0) / 2**30 for t in own]
        axes.scatter(speeds, memory, [70 if t in front else 22 for t in own], label=f"{length} tokens a row")
    axes.set_xlabel("non-padding tokens a second")
    axes.set_ylabel("peak memory, GiB")
    axes.legend(frameon=False)
    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tune"}):
        canvas.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return "data:image/svg+xml;base64," + base64.b64encode(out.getvalue().encode()).decode()
