"""How far a long run is: a bar on a terminal, a plain line now and then elsewhere, always on stderr. Knows nothing of what is counted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from crmctl.clock import Clock, SystemClock
from crmctl.output.control_characters import clean
from crmctl.output.streams import Streams

_FIRST_LINE = 5.0
_LONGEST_GAP = 30.0


class ProgressDisplay:
    """Use as a context manager, or call `finish` in any case. May be advanced from several threads.

    Plain lines come after 5 seconds, then 10, 20 and 30 seconds apart, through `say`. `time_for` knows how many seconds so many requests
    take at least. A `still` one only says notes.
    """

    def __init__(
        self,
        streams: Streams,
        *,
        quiet: bool = False,
        still: bool = False,
        clock: Clock | None = None,
        say: Callable[[str], None] | None = None,
        time_for: Callable[[int], float] = lambda _: 0.0,
    ) -> None:
        self.streams = streams
        self.quiet = quiet
        self._still = still
        self._say = say or (lambda text: streams.write_err(f"{text}\n"))
        self._time_for = time_for
        self.clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._bar: Any = None
        self._label = ""
        self._total: int | None = None
        self._per_request = 0
        self._ends: float | None = None
        self._reckoned = 0.0
        self._done = 0
        self._counts: Counter[str] = Counter()
        self._started = 0.0
        self._due = 0.0
        self._gap = _FIRST_LINE

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.finish()

    def start(self, label: str, total: int | None = None, per_request: int = 0, /) -> None:
        """Begin counting from zero; `total` None means that the end is not known. A running count ends.

        `per_request`: how many one request brings, where the rate limit decides how long it takes.
        """
        self.finish()
        with self._lock:
            self._label, self._total, self._done, self._per_request = clean(label), total, 0, per_request
            self._counts.clear()
            self._started = self.clock.monotonic()
            self._gap = _FIRST_LINE
            self._due = self._started + self._gap
            self._ends, self._reckoned = None, self._started
            if self._draws_bar:
                from crmctl.output.bar import Bar

                self._reckon()
                self._bar = Bar(self.streams, self._label, total, self.clock.monotonic, (self._left, self._told))

    def advance(self, count: int = 1) -> None:
        """That many more are done."""
        with self._lock:
            self._done += count
            if self._bar is not None:
                if self.clock.monotonic() >= self._reckoned + 1.0:
                    self._reckon()
                self._bar.show(self._done)
            elif not (self.quiet or self._still) and self.clock.monotonic() >= self._due:
                self._reckon()
                self._say(self._line())
                self._gap = min(self._gap * 2, _LONGEST_GAP)
                self._due = self.clock.monotonic() + self._gap

    def tally(self, counts: Mapping[str, int], /) -> None:
        """What became of some of them, in words."""
        with self._lock:
            self._counts.update(counts)

    def note(self, text: str) -> None:
        """A remark that does not disturb the bar: why a run waits, until when."""
        if self.quiet:
            return
        self._say(clean(text))

    def finish(self) -> None:
        """Take the bar away. Calling it twice does no harm."""
        with self._lock:
            if self._bar is not None:
                self._bar.close()
                self._bar = None

    @property
    def _draws_bar(self) -> bool:
        return not (self.quiet or self._still) and self.streams.stderr_is_terminal and self.streams.environ.get("TERM") != "dumb"

    def _line(self) -> str:
        elapsed = self.clock.monotonic() - self._started
        rate = self._done / elapsed if elapsed > 0 else 0.0
        if self._total is None:
            return f"{self._label}: {self._done:,} done, {rate:,.0f}/s"
        share = f" ({self._done * 100 // self._total} %)" if self._total else ""
        left, told = self._left(), self._told()
        return (
            f"{self._label}: {self._done:,} of {self._total:,}{share}{f', {told}' if told else ''}, {rate:,.0f}/s"
            f"{f', about {left}' if left else ''}"
        )

    def _told(self) -> str:
        return ", ".join(f"{count:,} {word}" for word, count in self._counts.items() if count)

    def _reckon(self) -> None:
        """When it will be done: at the speed so far, but no sooner than the rate limit allows."""
        now = self.clock.monotonic()
        self._reckoned, self._ends = now, None
        if self._total is None or self._done >= self._total:
            return
        count = self._total - self._done
        needed = [self._time_for(-(-count // self._per_request))] if self._per_request else []
        if self._done and now > self._started:
            needed.append(count * (now - self._started) / self._done)
        self._ends = now + max(needed) if any(needed) else None

    def _left(self) -> str:
        return "" if self._ends is None else f"{duration(self._ends - self.clock.monotonic())} left"


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
