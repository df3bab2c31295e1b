"""The progress bar on a terminal, drawn by rich. Only progress.py uses it."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from crmctl.output.streams import Streams


class _Count(ProgressColumn):
    def render(self, task: Task) -> Text:
        total = "" if task.total is None else f" of {int(task.total):,}"
        return Text(f"{int(task.completed):,}{total}")


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f}/s" if speed else "", style="dim")


def _whole() -> Column:
    """A column that stays on its line; the bar gives way."""
    return Column(no_wrap=True)


class Bar:
    """One bar that follows the terminal's width and disappears when closed."""

    def __init__(self, streams: Streams, label: str, total: int | None, monotonic: Callable[[], float]) -> None:
        colored = streams.color("stderr")
        self._console = Console(
            file=streams.stderr,
            force_terminal=True,
            color_system="auto" if colored else None,
            no_color=not colored,
            markup=False,
            emoji=False,
            highlight=False,
        )
        columns = (
            TextColumn("{task.description}", markup=False, table_column=_whole()),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            TaskProgressColumn(markup=False, table_column=_whole()),
            _Count(_whole()),
            _Rate(_whole()),
            TimeRemainingColumn(compact=True, table_column=_whole()),
        )
        self._progress = Progress(*columns, console=self._console, transient=True, expand=True, get_time=monotonic)
        self._task = self._progress.add_task(label, total=total)
        self._progress.start()

    def show(self, done: int) -> None:
        self._progress.update(self._task, completed=done)

    def print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def close(self) -> None:
        self._progress.stop()
