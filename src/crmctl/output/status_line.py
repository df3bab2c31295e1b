"""How things stand while something is waited for: every change on a terminal, a line now and then elsewhere, always on stderr."""

from __future__ import annotations

from crmctl.clock import Clock
from crmctl.output.control_characters import clean
from crmctl.output.streams import Streams

_FIRST_LINE, _LONGEST_GAP = 5.0, 60.0


class StatusLine:
    """Call it with a sentence as often as there is something to say; it decides what is shown."""

    def __init__(self, streams: Streams, clock: Clock, *, quiet: bool = False) -> None:
        self._streams = streams
        self._clock = clock
        self._quiet = quiet
        self._last = ""
        self._gap = _FIRST_LINE
        self._started = clock.monotonic()
        self._due = self._started + self._gap

    def __call__(self, text: str) -> None:
        now = self._clock.monotonic()
        changed, due = text != self._last, now >= self._due
        if self._quiet or not (due or (changed and self._streams.stderr_is_terminal)):
            return
        if due:
            self._gap = min(self._gap * 2, _LONGEST_GAP)
            self._due = now + self._gap
        self._last = text
        self._streams.write_err(f"{clean(text)} ({now - self._started:.0f} s)\n")
