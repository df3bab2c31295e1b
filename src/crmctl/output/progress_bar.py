"""A progress bar on a terminal. Drawing it needs rich, which takes a tenth of a short import's time where nobody sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task
from rich.table import Column
from rich.text import Text

from crmctl.output.streams import Streams

_LEAST_FOR_RATE, _LEAST_FOR_COUNT = 70, 50
"""Columns of a terminal; a narrower one shows only the share and the time left."""


class _Told(ProgressColumn):
    """A column of the text that a function returns. It does not wrap; the bar shrinks instead."""

    def __init__(self, tell: Callable[[Task], str], style: str = "") -> None:
        super().__init__(Column(no_wrap=True, overflow="ellipsis"))
        self._tell, self._style = tell, style

    def render(self, task: Task) -> Text:
        return Text(self._tell(task), style=self._style)


def _speed(task: Task) -> str:
    speed = task.finished_speed or task.speed
    return f"{speed:,.0f}/s" if speed else ""


class Bar:
    """A bar that follows the terminal's width and disappears when closed. Other lines on stderr appear above it.

    `said` returns the time left, and the counts by outcome, which are cut if there is no room.
    """

    def __init__(
        self, streams: Streams, label: str, total: int | None, monotonic: Callable[[], float], said: Sequence[Callable[[], str]]
    ) -> None:
        colored = streams.color("stderr")
        self._streams = streams
        self._console = Console(
            file=streams.stderr,
            force_terminal=True,
            color_system="auto" if colored else None,
            no_color=not colored,
            markup=False,
            emoji=False,
            highlight=False,
        )
        has_count = total is None or self._console.width >= _LEAST_FOR_COUNT
        columns = (
            _Told(lambda task: task.description),
            *([BarColumn(bar_width=None, table_column=Column(ratio=1))] if has_count else []),
            _Told(lambda task: f"{int(task.percentage)}%".rjust(4) if task.total else ""),
            *([_Told(lambda task: f"{int(task.completed):,}" + (f" of {total:,}" if total is not None else ""))] if has_count else []),
            *([_Told(_speed, "dim")] if self._console.width >= _LEAST_FOR_RATE else []),
            _Told(lambda _: said[0]()),
            *([_Told(lambda _: said[1]())] if has_count else []),
        )
        self._progress = Progress(*columns, console=self._console, transient=True, expand=True, get_time=monotonic)
        self._task = self._progress.add_task(label, total=total)
        self._progress.start()
        streams.above = self._print

    def show(self, done: int) -> None:
        self._progress.update(self._task, completed=done)

    def close(self) -> None:
        self._streams.above = None
        self._progress.stop()

    def _print(self, text: str) -> None:
        try:
            self._console.print(Text.from_ansi(text), soft_wrap=True)
        except (OSError, ValueError):  # a terminal that has gone must not stop the run
            self._streams.above = None
