"""Follow the tasks of docs/guides/everyday-tasks.md one by one, with the requests and seconds of each."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pexpect

from tests.support.pages import Command, Step, follow, read_steps
from tests.support.service import RunningService
from tests.support.sources import ROOT

PAGE = ROOT / "docs" / "guides" / "everyday-tasks.md"
HEADING = re.compile(r"^### (\d+)\. .+$", re.MULTILINE)
MEASURE = re.compile(r"^\*(\d+) requests?, (\d+\.\d) s\*\n\n?", re.MULTILINE)


@dataclass(frozen=True)
class Task:
    """One task of the page. `requests` is the number in its measure, None if it has none yet."""

    number: int
    text: str

    @property
    def steps(self) -> list[Step]:
        return read_steps(self.text)

    @property
    def commands(self) -> list[Command]:
        return [step for step in self.steps if isinstance(step, Command)]

    @property
    def requests(self) -> int | None:
        measure = MEASURE.search(self.text)
        return int(measure[1]) if measure else None


def read_tasks() -> tuple[str, list[Task]]:
    """Return the text before the first task, and the tasks; a task ends where the next begins."""
    start, *parts = HEADING.split(PAGE.read_text(encoding="utf-8"))
    return start, [Task(int(number), text) for number, text in zip(parts[::2], parts[1::2], strict=True)]


def carry_out(shell: pexpect.spawn, service: RunningService) -> Iterator[tuple[Task, int, float]]:
    """Follow the page; yield each task with its requests and seconds."""
    start, tasks = read_tasks()
    Path(str(shell.cwd), "checks").mkdir()
    follow(shell, read_steps(start))
    for task in tasks:
        before, started = _requests(service), time.monotonic()
        follow(shell, task.steps)
        yield task, _requests(service) - before, time.monotonic() - started


def _requests(service: RunningService) -> int:
    """Return the number of requests so far. A request is logged once it is answered, so this waits for a probe to be logged last."""
    probes = _probes(service)
    service.client.get("/healthz").raise_for_status()
    while _probes(service) == probes:
        time.sleep(0.01)
    return len(service.log) - _probes(service)


def _probes(service: RunningService) -> int:
    return sum(entry["path"] == "/healthz" for entry in list(service.log))
