"""How long tests wait for what must come: long enough for a busy machine, so that its end means "hangs" and never "is slow"."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 180.0
"""Seconds. Whoever waits this long has found something that does not come, on any machine."""


def wait_until(condition: Callable[[], bool], what: Callable[[], Any] = lambda: "it never came about") -> None:
    """Look until it holds, less and less often: looking too takes of the machine. `what` says what was found instead."""
    end, pause, seconds = time.monotonic() + PATIENCE, threading.Event(), 0.01
    while not condition():
        assert time.monotonic() < end, what()
        pause.wait(seconds)
        seconds = min(seconds * 1.3, 0.2)
