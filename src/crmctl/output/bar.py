"""The progress bar on a terminal, drawn by rich. Only progress.py uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from crmctl.output.streams import Streams

_LEAST_FOR_RATE, _LEAST_FOR_COUNT = 70, 50
"""Columns of a terminal. On a narrower one the share and the time that is left have to do."""


class _Share(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{int(task.percentage)}%".rjust(4) if task.total else "")


class _Count(ProgressColumn):
    def render(self, task: Task) -> Text:
        total = "" if task.total is None else f" of {int(task.total):,}"
        return Text(f"{int(task.completed):,}{total}")


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f}/s" if speed else "", style="dim")


class _Said(ProgressColumn):
    def __init__(self, say: Callable[[], str], column: Column) -> None:
        super().__init__(column)
        self._say = say

    def render(self, task: Task) -> Text:
        return Text(self._say())


def _whole() -> Column:
    """A column that stays on its line; the bar gives way."""
    return Column(no_wrap=True)


class Bar:
    """One bar that follows the terminal's width and disappears when closed; what is written to stderr meanwhile stands above it.

    `said` says in a few words how long it will still take, and what became of what is done, which gives way where there is no room.
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
            TextColumn("{task.description}", markup=False, table_column=_whole()),
            *([BarColumn(bar_width=None, table_column=Column(ratio=1))] if has_count else []),
            _Share(_whole()),
            *([_Count(_whole())] if has_count else []),
            *([_Rate(_whole())] if self._console.width >= _LEAST_FOR_RATE else []),
            _Said(said[0], _whole()),
            *([_Said(said[1], Column(no_wrap=True, overflow="ellipsis"))] if has_count else []),
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
        """Lines with the colours they come with."""
        try:
            self._console.print(Text.from_ansi(text), soft_wrap=True)
        except (OSError, ValueError):  # a terminal that has gone must not stop the run
            self._streams.above = None
