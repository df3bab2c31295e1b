"""A bounded number of threads for work that waits for others: each piece of work takes a place and gives it back, whatever happens."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Places:
    """Used by one job's thread. What work raises is reported; its lease in the database decides what becomes of it."""

    def __init__(self, most: int, name: str) -> None:
        self._most = self._free = most
        self._has_ended = False
        self._changed = threading.Condition()
        self._pool = ThreadPoolExecutor(most, thread_name_prefix=name)

    def free(self) -> int:
        """How many pieces of work could start now. `wait` counts from here."""
        with self._changed:
            self._has_ended = False
            return self._free

    def start(self, work: Callable[[T], None], item: T) -> None:
        """Run `work(item)` on a thread of its own."""
        with self._changed:
            self._free -= 1
        self._pool.submit(self._run, work, item)

    def wait(self, seconds: float) -> bool:
        """Until a piece of work has ended since `free`, whose place may be wanted, or the time is over.

        False, at once, when none is under way.
        """
        with self._changed:
            if self._free == self._most:
                return self._has_ended
            self._changed.wait_for(lambda: self._has_ended, seconds)
            return True

    def close(self) -> None:
        """Waits for the work under way."""
        self._pool.shutdown()

    def _run(self, work: Callable[[T], None], item: T) -> None:
        try:
            work(item)
        except Exception:
            traceback.print_exc(file=sys.stderr)
        finally:
            with self._changed:
                self._free += 1
                self._has_ended = True
                self._changed.notify_all()
