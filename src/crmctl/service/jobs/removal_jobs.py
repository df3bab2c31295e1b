"""Remove deleted and expired data piece by piece."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from crmctl.service.context import Context
from crmctl.service.faults import Busy, Held
from crmctl.service.jobs.worker import BackgroundJob, PeriodicJob
from crmctl.service.store import change_log, deliveries, logs, removals
from crmctl.service.store.engine import Engine
from crmctl.service.store.removals import INDEX, KEYS, RECORDS, VALUES, Sizes, StillLeaving
from crmctl.service.store.tx import Tx

T = TypeVar("T")

PIECE_SECONDS = 0.1
FIRST_PIECE, LEAST_PIECE, LARGEST_PIECE = 500, 10, 20_000
"""Records per piece. The duration of the last piece decides the next size."""

AGAIN_SECONDS = 5.0
"""Pause after a table was in use: everyone else waits behind each try."""

_PAUSE = 0.01


class Removals(BackgroundJob):
    """Removes the values of deleted attributes and the records of deleted objects."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._pieces = Pieces(context.engine)
        self._next_at = 0.0

    def run_once(self) -> bool:
        clock = self._context.clock
        if clock.monotonic() < self._next_at or not self._context.engine.read(removals.is_waiting):
            return False
        try:
            took = self._pieces.take()
        except Busy:
            self._next_at = clock.monotonic() + AGAIN_SECONDS
            return False
        clock.sleep(_PAUSE if took is None else max(_PAUSE, took))
        return took is not None


def _take_piece(tx: Tx, sizes: Sizes) -> str | None:
    return removals.take_out(tx, sizes) or removals.take_out_object(tx, sizes)


class Pieces:
    """Takes pieces that each last about PIECE_SECONDS, whatever the records are like."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sizes = dict.fromkeys((INDEX, VALUES, KEYS, RECORDS), FIRST_PIECE)

    def take(self) -> float | None:
        """Take one piece and return its seconds; None if there is none, or another process is at work. Raises Busy as `take_out` does."""
        begun = time.monotonic()
        kind = self._engine.write(lambda tx: _take_piece(tx, self._sizes))
        if kind is None:
            return None
        took = time.monotonic() - begun
        size = self._sizes[kind] * PIECE_SECONDS / max(took, PIECE_SECONDS / 4)
        self._sizes[kind] = int(min(LARGEST_PIECE, max(LEAST_PIECE, size)))
        return took


def after_removal(engine: Engine, fn: Callable[[Tx], T], *, within: float, by: str | None = None) -> T:
    """Run `engine.write(fn)`, which changes a table and may reuse the slug of a deleted attribute, once its values are removed and no long
    reader, such as a backup, uses the table.

    Raises StillLeaving or Held when that takes longer than `within` seconds.
    """
    end, pieces = time.monotonic() + within, Pieces(engine)
    while True:
        try:
            return engine.write(fn, within=max(0.001, end - time.monotonic()), by=by)
        except (StillLeaving, Held) as error:
            seconds = end - time.monotonic()
            if seconds <= 0:
                raise
            is_held = isinstance(error, Held)
        if is_held:
            time.sleep(min(AGAIN_SECONDS, seconds))
        else:
            _take_some(pieces, end)


def _take_some(pieces: Pieces, end: float) -> None:
    """Take pieces for a second before the slug is tried again."""
    pause_at = min(end, time.monotonic() + 1)
    while time.monotonic() < pause_at:
        try:
            took = pieces.take()
        except Busy:
            took = None
        time.sleep(_PAUSE if took is None else max(_PAUSE, took))
        if took is None:
            return


CHUNK = 1000
DELIVERY_SECONDS = 30 * 24 * 3600.0
"""Retention of settled deliveries, their attempts and the bodies of their events."""
COUNTS_SECONDS = 2 * 24 * 3600.0


class Retention(PeriodicJob):
    """Deletes what is older than the settings keep."""

    every = 600.0

    def work(self) -> None:
        now = self._context.clock.now()
        kept = self._context.settings.kept
        self._repeat(lambda tx: deliveries.forget(tx, now - DELIVERY_SECONDS, CHUNK))
        self._context.engine.write(lambda tx: deliveries.forget_counts(tx, now - COUNTS_SECONDS))
        self._repeat(lambda tx: change_log.slim(tx, now - DELIVERY_SECONDS, CHUNK))
        self._repeat(lambda tx: change_log.forget(tx, now - kept.history, CHUNK))
        self._repeat(lambda tx: logs.forget(tx, "request_log", now - kept.requests, CHUNK))
        self._repeat(lambda tx: logs.forget(tx, "audit_log", now - kept.audit, CHUNK))

    def _repeat(self, forget: Callable[[Tx], int]) -> None:
        while self._context.engine.write(forget) == CHUNK:
            pass
