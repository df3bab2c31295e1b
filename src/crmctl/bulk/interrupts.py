"""Ctrl-C as a wish, not an exception: the first one is noted and work ends in order, the second leaves at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether the user wants to stop. Checked between rows and before every request."""

    def __init__(self) -> None:
        self.requested = False

    def request(self) -> None:
        self.requested = True


@contextmanager
def watch_interrupts(interrupt: Interrupt | None = None) -> Iterator[Interrupt]:
    """Catch SIGINT and SIGTERM while the block runs, and note them in `interrupt`.

    Outside the main thread signals cannot be caught and nothing changes.
    """
    interrupt = interrupt or Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def handle(_number: int, _frame: FrameType | None) -> None:
        if interrupt.requested:
            raise KeyboardInterrupt
        interrupt.request()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
