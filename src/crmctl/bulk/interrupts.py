"""Ctrl-C as a wish, not an exception: the first one is noted, and said what is waited for, and work ends in order; the second ends it at
once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

TELL_AFTER_SECONDS = 0.5
"""Work that has not ended by then says what it waits for."""

ENDING = "stopping after the request under way; Ctrl-C again ends at once"


class Interrupt:
    """Whether the user wants to stop, `again`: at once. Checked between rows and before every request.

    `is_patient`: somebody waits and looks at `again`, so that the second wish needs no exception either.
    """

    def __init__(self) -> None:
        self.requested = self.again = self.is_patient = False
        self._untold = threading.Lock()

    def request(self) -> None:
        self.again = self.requested
        self.requested = True

    def tell(self, tell: Callable[[str], None], text: str = ENDING) -> None:
        """Say what is waited for; in general only where nobody has said it."""
        if self._untold.acquire(blocking=False) or text != ENDING:
            tell(text)


@contextmanager
def watch_interrupts(tell: Callable[[str], None], interrupt: Interrupt | None = None) -> Iterator[Interrupt]:
    """Catch SIGINT and SIGTERM while the block runs, and note them in `interrupt`. `tell` hears of it when the block does not end soon.

    Outside the main thread signals cannot be caught and nothing changes.
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
