"""Progress on stderr: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from crmctl.clock import Clock, SystemClock
from crmctl.output.streams import Streams, clean

_GAP = 5.0
"""Seconds between two lines where no bar can be drawn."""


class ProgressDisplay:
    """A context manager; several threads may call `advance`.

    Without a terminal it prints lines through `say`, 5 seconds apart. `time_for` returns the minimum duration of a number of requests. With
    `still` it prints only notes. Every `beat` seconds it brings itself up to date while nothing advances, such as during a wait for the
    window of the rate limit.
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
        beat: float | None = None,
    ) -> None:
        self.streams = streams
        self.quiet = quiet
        self._still = still
        self._say = say or (lambda text: streams.write_err(f"{text}\n"))
        self._time_for = time_for
        self._beat = beat
        self._finished = threading.Event()
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
        self._due = math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.finish()

    def start(self, label: str, total: int | None = None, per_request: int = 0, /) -> None:
        """Start counting from zero, without a known end if `total` is None.

        `per_request`: items per request, to estimate the time under the rate limit.
        """
        self.finish()
        with self._lock:
            self._label, self._total, self._done, self._per_request = clean(label), total, 0, per_request
            self._counts.clear()
            self._started = self.clock.monotonic()
            self._due = self._started + _GAP
            self._ends, self._reckoned = None, self._started
            if not (self.quiet or self._still) and self.streams.stderr_is_terminal and self.streams.environ.get("TERM") != "dumb":
                from crmctl.output.progress_bar import Bar

                self._reckon()
                self._bar = Bar(self.streams, self._label, total, self.clock.monotonic, (self._left, self._told))
            self._finished = threading.Event()
            if self._beat is not None and not (self.quiet or self._still):
                threading.Thread(target=self._keep_up, args=(self._finished, self._beat), daemon=True).start()

    def _keep_up(self, finished: threading.Event, beat: float) -> None:
        while not finished.wait(beat):
            with self._lock:
                if not finished.is_set():
                    self._show()

    def advance(self, count: int = 1) -> None:
        with self._lock:
            self._done += count
            self._show()

    def _show(self) -> None:
        if self._bar is not None:
            if self.clock.monotonic() >= self._reckoned + 1.0:
                self._reckon()
            self._bar.show(self._done)
        elif self._label and not (self.quiet or self._still) and self.clock.monotonic() >= self._due:
            self._reckon()
            self._say(self._line())
            self._due = self.clock.monotonic() + _GAP

    def tally(self, counts: Mapping[str, int], /) -> None:
        """Add counts by outcome, shown beside the total."""
        with self._lock:
            self._counts.update(counts)

    def note(self, text: str) -> None:
        """Print a remark above the bar, such as why a run waits."""
        if self.quiet:
            return
        self._say(clean(text))

    def finish(self) -> None:
        """Remove the bar, if there is one."""
        with self._lock:
            self._finished.set()
            if self._bar is not None:
                self._bar.close()
                self._bar = None

    def _line(self) -> str:
        elapsed = self.clock.monotonic() - self._started
        rate = self._done / elapsed if elapsed > 0 else 0.0
        if self._total is None:
            return f"{self._label}: {self._done:,} done, {rate:,.0f}/s"
        share = f" ({self._done * 100 // self._total} %)" if self._total else ""
        remaining, note = self._left(), self._told()
        return (
            f"{self._label}: {self._done:,} of {self._total:,}{share}{f', {note}' if note else ''}, {rate:,.0f}/s"
            f"{f', about {remaining}' if remaining else ''}"
        )

    def _told(self) -> str:
        return ", ".join(f"{count:,} {word}" for word, count in self._counts.items() if count)

    def _reckon(self) -> None:
        """Estimate the end from the speed so far and the rate limit."""
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
    total = max(0, round(seconds))
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60} s"
    return f"{total // 3600} h {total % 3600 // 60} min"
