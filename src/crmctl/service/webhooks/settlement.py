"""Writes down what became of tries, those that end at the same time in one transaction, and takes as many new deliveries in the same one.

Two flushes of the disk for each delivery would be the bound of all of them.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from crmctl.service.context import Context
from crmctl.service.store import actors, delivery_claims
from crmctl.service.store.delivery_claims import Due, EndedTry, Terms
from crmctl.service.store.tx import Tx


@dataclass
class _Place:
    """What a thread waits for: that its try is written, and what its place is for from then on."""

    ended: EndedTry
    following: Due | None = None
    is_free: bool = False


class Settlement:
    """Thread-safe. What comes while something is written is written after it, all together."""

    def __init__(self, context: Context, terms: Terms) -> None:
        self._context = context
        self._terms = terms
        self._changed = threading.Condition()
        self._waiting: list[_Place] = []
        self._is_writing = False
        self._is_closing = False

    def settle(self, ended: EndedTry) -> Due | None:
        """When it is written, by this thread or another: a delivery that was claimed for this thread, where there was one.

        Raises what the database raises, in the one thread that tried to write; the leases of what could not be written end by themselves.
        """
        place = _Place(ended)
        with self._changed:
            self._waiting.append(place)
            # A thread whose try another one has written goes on at once: it does not queue behind the next transaction.
            self._changed.wait_for(lambda: place.is_free or not self._is_writing)
            if place.is_free:
                return place.following
            batch, self._waiting, self._is_writing = self._waiting, [], True
        try:
            claimed = self._context.engine.write(lambda tx: self._write(tx, batch), by=actors.SERVICE)
            for each, following in zip(batch, claimed, strict=False):
                each.following = following
        finally:
            with self._changed:
                for each in batch:
                    each.is_free = True
                self._is_writing = False
                self._changed.notify_all()
        return place.following

    def close(self) -> None:
        """Nothing is claimed any more."""
        self._is_closing = True

    def _write(self, tx: Tx, batch: list[_Place]) -> list[Due]:
        delivery_claims.settle(tx, [each.ended for each in batch], self._context.ids)
        if self._is_closing:
            return []
        return delivery_claims.claim(tx, self._terms, len(batch), now=self._context.clock.now())
