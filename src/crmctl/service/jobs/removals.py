"""Takes away what deleted attributes and objects left behind: short pieces with pauses, so that writers get their turn in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from crmctl.service.context import Context
from crmctl.service.faults import Busy, Held
from crmctl.service.store import attribute_removals, object_removals
from crmctl.service.store.attribute_removals import INDEX, KEYS, RECORDS, VALUES, Sizes, StillLeaving
from crmctl.service.store.engine import Engine
from crmctl.service.store.tx import Tx

T = TypeVar("T")

PIECE_SECONDS = 0.1
FIRST_PIECE, LEAST_PIECE, LARGEST_PIECE = 500, 10, 20_000
"""Records of one piece; how many that are follows from how long the last piece took."""

AGAIN_SECONDS = 5.0
"""Until a table is tried again that somebody reads: everybody else waits behind a try."""

_PAUSE = 0.01


class Removals:
    """A job of the worker."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._pieces = Pieces(context.engine)
        self._next_at = 0.0

    def run_once(self) -> bool:
        clock = self._context.clock
        if clock.monotonic() < self._next_at or not self._context.engine.read(_is_waiting):
            return False
        try:
            took = self._pieces.take()
        except Busy:
            self._next_at = clock.monotonic() + AGAIN_SECONDS
            return False
        clock.sleep(_PAUSE if took is None else max(_PAUSE, took))
        return took is not None

    def close(self) -> None:
        """Nothing is kept open."""


def _is_waiting(tx: Tx) -> bool:
    return attribute_removals.is_waiting(tx) or object_removals.is_waiting(tx)


def _take_piece(tx: Tx, sizes: Sizes) -> str | None:
    return attribute_removals.take_out(tx, sizes) or object_removals.take_out(tx, sizes)


class Pieces:
    """Takes pieces that each last about PIECE_SECONDS, whatever the records are like."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sizes = dict.fromkeys((INDEX, VALUES, KEYS, RECORDS), FIRST_PIECE)

    def take(self) -> float | None:
        """Seconds that it took; None when there was nothing to take, or others are at it. Raises Busy as `take_out` does."""
        begun = time.monotonic()
        kind = self._engine.write(lambda tx: _take_piece(tx, self._sizes))
        if kind is None:
            return None
        took = time.monotonic() - begun
        wanted = self._sizes[kind] * PIECE_SECONDS / max(took, PIECE_SECONDS / 4)
        self._sizes[kind] = int(min(LARGEST_PIECE, max(LEAST_PIECE, wanted)))
        return took


def after_removal(engine: Engine, fn: Callable[[Tx], T], *, within: float, by: str | None = None) -> T:
    """`engine.write(fn)`, where `fn` changes a table and may want the slug of an attribute that was just deleted: as soon as its values are
    gone, and nobody reads the table for long, such as a backup.

    Raises StillLeaving or Held where that takes longer than `within` seconds.
    """
    end, pieces = time.monotonic() + within, Pieces(engine)
    while True:
        try:
            return engine.write(fn, within=max(0.001, end - time.monotonic()), by=by)
        except (StillLeaving, Held) as error:
            left = end - time.monotonic()
            if left <= 0:
                raise
            is_held = isinstance(error, Held)
        if is_held:
            time.sleep(min(AGAIN_SECONDS, left))
        else:
            _take_some(pieces, end)


def _take_some(pieces: Pieces, end: float) -> None:
    """For a second: whether the slug is free is not asked after every piece."""
    pause_at = min(end, time.monotonic() + 1)
    while time.monotonic() < pause_at:
        try:
            took = pieces.take()
        except Busy:
            took = None
        time.sleep(_PAUSE if took is None else max(_PAUSE, took))
        if took is None:
            return
