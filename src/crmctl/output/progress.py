"""How far a long run is: a bar on a terminal, a plain line now and then elsewhere, always on stderr. Knows nothing of what is counted."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Self

from crmctl.clock import Clock, SystemClock
from crmctl.output.cleaning import clean
from crmctl.output.streams import Streams

_FIRST_LINE = 5.0
_LONGEST_GAP = 30.0


class Progress:
    """Use as a context manager, or call `finish` in any case. May be advanced from several threads.

    Plain lines come after 5 seconds, then 10, 20 and 30 seconds apart.
    """

    def __init__(self, streams: Streams, *, quiet: bool = False, clock: Clock | None = None) -> None:
        self.streams = streams
        self.quiet = quiet
        self.clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._bar: Any = None
        self._label = ""
        self._total: int | None = None
        self._done = 0
        self._started = 0.0
        self._due = 0.0
        self._gap = _FIRST_LINE

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.finish()

    def start(self, label: str, total: int | None = None) -> None:
        """Begin counting from zero; `total` None means that the end is not known. A running count ends."""
        self.finish()
        with self._lock:
            self._label, self._total, self._done = clean(label), total, 0
            self._started = self.clock.monotonic()
            self._gap = _FIRST_LINE
            self._due = self._started + self._gap
            if self._draws_bar:
                from crmctl.output.bar import Bar

                self._bar = Bar(self.streams, self._label, total, self.clock.monotonic)

    def advance(self, count: int = 1) -> None:
        """That many more are done."""
        with self._lock:
            self._done += count
            if self._bar is not None:
                self._bar.show(self._done)
            elif not self.quiet and self.clock.monotonic() >= self._due:
                self.streams.write_err(f"{self._line()}\n")
                self._gap = min(self._gap * 2, _LONGEST_GAP)
                self._due = self.clock.monotonic() + self._gap

    def note(self, text: str) -> None:
        """A remark that does not disturb the bar: why a run waits, until when."""
        if self.quiet:
            return
        with self._lock:
            if self._bar is not None:
                self._bar.print(clean(text))
            else:
                self.streams.write_err(f"{clean(text)}\n")

    def finish(self) -> None:
        """Take the bar away. Calling it twice does no harm."""
        with self._lock:
            if self._bar is not None:
                self._bar.close()
                self._bar = None

    @property
    def _draws_bar(self) -> bool:
        return not self.quiet and self.streams.stderr_is_terminal and self.streams.environ.get("TERM") != "dumb"

    def _line(self) -> str:
        elapsed = self.clock.monotonic() - self._started
        rate = self._done / elapsed if elapsed > 0 else 0.0
        if self._total is None:
            return f"{self._label}: {self._done:,} done, {rate:,.0f}/s"
        share = f" ({self._done * 100 // self._total} %)" if self._total else ""
        left = f", about {duration((self._total - self._done) / rate)} left" if rate > 0 and self._done < self._total else ""
        return f"{self._label}: {self._done:,} of {self._total:,}{share}, {rate:,.0f}/s{left}"


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
