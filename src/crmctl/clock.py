"""Time as an argument, so that tests decide what time it is. Standard library only."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What code may ask of time."""

    def now(self) -> float:
        """Unix time in seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards, comparable within one boot of the machine."""
        ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clock. CLOCK_BOOTTIME counts suspended time and is shared by all processes of a boot."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        boottime = getattr(time, "CLOCK_BOOTTIME", None)
        return time.clock_gettime(boottime) if boottime is not None else time.monotonic()

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)
