"""Time limits of tests: long enough for a busy machine, so that reaching one means "hangs", never "slow"."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 180.0
"""Seconds. Waiting this long means that the expected event never happens, on any machine."""


def wait_until(condition: Callable[[], bool], what: Callable[[], Any] = lambda: "the condition never held") -> None:
    """Poll the condition, less and less often to save processor time. `what` describes the actual state in the error."""
    end, pause, seconds = time.monotonic() + PATIENCE, threading.Event(), 0.01
    while not condition():
        assert time.monotonic() < end, what()
        pause.wait(seconds)
        seconds = min(seconds * 1.3, 0.2)
