"""What a person sees while stages work: progress bars in a terminal, plain lines where there is none."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tokenmill.protocol import LogLine, ProgressLine

PLAIN_SECONDS = 60.0
TENTHS = 10
"""Where there is no terminal, a piece of work is spoken of once in so many seconds, and at each tenth."""
_SHOWN = ("INFO", "WARNING", "ERROR", "CRITICAL")
_STYLES = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}


class Terminal:
    """A listener for the supervisor (see `tasks.supervisor.Listener`)."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._spoken: dict[str, tuple[float, int]] = {}

    def __enter__(self) -> Terminal:
        if self._console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[unit]}"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[detail]}"),
                console=self._console,
            )
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def log(self, line: LogLine) -> None:
        if line.level in _SHOWN:
            style = _STYLES.get(line.level)
            self._console.print(line.message, style=style, markup=False, highlight=False, soft_wrap=True)

    def progress(self, line: ProgressLine) -> None:
        if self._bars is not None:
            self._show(self._bars, line)
        elif self._is_news(line):
            total = f" of {line.total:,}" if line.total is not None else ""
            text = f"{line.label}: {line.done:,}{total} {line.unit} {line.detail}".rstrip()
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _is_news(self, line: ProgressLine) -> bool:
        """Whether to say it where each word stays: not a beginning, then each tenth, or once a minute."""
        now, tenth = time.monotonic(), line.done * TENTHS // line.total if line.total else 0
        if line.label in self._spoken:
            then, spoken_tenth = self._spoken[line.label]
            if tenth == spoken_tenth and now - then < PLAIN_SECONDS:
                return False
        elif not line.done:
            return False
        self._spoken[line.label] = (now, tenth)
        return True

    def _show(self, bars: Progress, line: ProgressLine) -> None:
        if line.label not in self._tasks:
            self._tasks[line.label] = bars.add_task(line.label, total=line.total, unit=line.unit, detail="")
        bars.update(self._tasks[line.label], completed=line.done, total=line.total, detail=line.detail)
