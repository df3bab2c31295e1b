"""Tells the operator, on stderr, what failed inside. A failure that comes again is told once a minute, and telling never fails itself."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Callable

QUIET_SECONDS = 60.0
_MOST_KINDS = 1000


class Failures:
    """What was told when, by kind and place of the error."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._told: dict[tuple[str, str, int], tuple[float, int]] = {}

    def tell(self, error: BaseException, *, briefly: bool = False, about: str = "") -> None:
        """The traceback, or `briefly` one line, and what it is `about`. A full disk or a closed stderr keeps nothing from going on."""
        skipped = self._skipped(error)
        if skipped is None:
            return
        text = f"{type(error).__name__}: {error}\n" if briefly else "".join(traceback.format_exception(error))
        more = f"(the same {skipped} times more since it was last told)\n" if skipped else ""
        text = f"{about}: {text}" if about else text
        # Without a stderr there is nobody to tell.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(text + more)
            sys.stderr.flush()

    def _skipped(self, error: BaseException) -> int | None:
        """How often it was not told since the last time; None when it is not to be told now."""
        frames = traceback.extract_tb(error.__traceback__, limit=-1)
        place = (frames[0].filename, frames[0].lineno or 0) if frames else ("", 0)
        kind = (type(error).__name__, *place)
        now = self._monotonic()
        with self._lock:
            if len(self._told) >= _MOST_KINDS:
                self._told.clear()
            since, count = self._told.get(kind, (None, 0))
            if since is not None and now - since < QUIET_SECONDS:
                self._told[kind] = (since, count + 1)
                return None
            self._told[kind] = (now, 0)
            return count


FAILURES = Failures()
"""Of this process: stderr is one."""
