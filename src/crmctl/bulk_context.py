"""The dependencies of bulk work: service, clock, directories, listeners, interrupts."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import BinaryIO, Protocol

from crmctl.client.crm import Crm
from crmctl.client.directory import Directory
from crmctl.clock import Clock
from crmctl.models.findings import Finding


class Progress(Protocol):
    """Shows the progress of work. `per_request`: how many items one request covers, if the rate limit sets the pace."""

    def start(self, label: str, total: int | None = None, per_request: int = 0, /) -> None: ...
    def advance(self, count: int = 1, /) -> None: ...
    def tally(self, counts: Mapping[str, int], /) -> None:
        """Count results by a word: `created`, `failed`."""
        ...

    def note(self, text: str) -> None: ...
    def finish(self) -> None: ...


@contextmanager
def showing(progress: Progress, label: str, total: int | None = None, per_request: int = 0) -> Iterator[Progress]:
    """Show a progress bar during the block."""
    progress.start(label, total, per_request)
    try:
        yield progress
    finally:
        progress.finish()


class Listener(Protocol):
    """Hears what happens during a use case. Results repeat everything except notes and progress."""

    @property
    def progress(self) -> Progress: ...

    def note(self, text: str) -> None:
        """Take one sentence worth knowing."""
        ...

    def report(self, finding: Finding) -> None:
        """Take a finding about a row or the whole file."""
        ...

    def confirm(self, question: str) -> None:
        """Ask before something is lost; the question has no question mark. Raises CrmctlError to refuse."""
        ...


class BulkContext(Protocol):
    """The dependencies of a use case, each created on first use."""

    @property
    def service(self) -> Crm:
        """The service in the lane of bulk work, which leaves some requests of the rate limit to people."""
        ...

    @property
    def crm(self) -> Crm:
        """The service in the interactive lane."""
        ...

    @property
    def directory(self) -> Directory: ...

    @property
    def origin(self) -> str:
        """Scheme, host and port of the service; jobs and plans belong to one origin."""
        ...

    @property
    def profile(self) -> str: ...

    @property
    def key(self) -> str:
        """The API key; a mirror belongs to an origin and a key."""
        ...

    @property
    def state(self) -> Path:
        """The directory of jobs and incremental exports."""
        ...

    @property
    def stdin(self) -> BinaryIO: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def listener(self) -> Listener: ...


TELL_AFTER_SECONDS = 0.5
"""Seconds after an interrupt until the program says what it waits for."""

ENDING = "stopping after the request under way; Ctrl-C again ends at once"


class Interrupt:
    """Whether the user wants to stop, or `again` to stop at once. Work checks it between rows and before every request.

    `is_patient`: the work watches `again`, so a second interrupt raises no exception.
    """

    def __init__(self) -> None:
        self.requested = self.again = self.is_patient = False
        self._untold = threading.Lock()

    def request(self) -> None:
        self.again = self.requested
        self.requested = True

    def tell(self, tell: Callable[[str], None], text: str = ENDING) -> None:
        """Say what the program waits for; the general text only once."""
        if self._untold.acquire(blocking=False) or text != ENDING:
            tell(text)


@contextmanager
def watch_interrupts(tell: Callable[[str], None], interrupt: Interrupt | None = None) -> Iterator[Interrupt]:
    """Record SIGINT and SIGTERM in `interrupt` during the block; `tell` hears of them if the block does not end soon.

    Outside the main thread signals cannot be caught, and nothing changes.
    """
    interrupt = interrupt or Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    ended = threading.Event()

    def tell_later() -> None:
        if not ended.wait(TELL_AFTER_SECONDS):
            interrupt.tell(tell)

    def handle(_number: int, _frame: FrameType | None) -> None:
        is_first, is_second = not interrupt.requested, interrupt.requested and not interrupt.again
        interrupt.request()
        if is_first:
            threading.Thread(target=tell_later, daemon=True).start()
        elif not (is_second and interrupt.is_patient):
            raise KeyboardInterrupt

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        ended.set()
        for number, handler in before.items():
            signal.signal(number, handler)
