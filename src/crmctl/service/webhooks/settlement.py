"""Writes down what became of tries, those that end at the same time in one transaction, and takes as many new deliveries in the same one.

Two flushes of the disk for each delivery would be the bound of all of them.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from crmctl.service.context import Context
from crmctl.service.store import actors, delivery_claims
from crmctl.service.store.delivery_claims import Attempt, Due, Terms
from crmctl.service.store.tx import Tx


@dataclass
class EndedTry:
    """One try that has ended; `again` is the Unix time of the next one. `following` is what its place is for from then on."""

    due: Due
    attempt: Attempt
    again: float | None
    following: Due | None = None


class Settlement:
    """Thread-safe. What comes while something is written is written after it, all together."""

    def __init__(self, context: Context, terms: Terms) -> None:
        self._context = context
        self._terms = terms
        self._adding = threading.Lock()
        self._writing = threading.Lock()
        self._waiting: list[EndedTry] = []
        self._is_closing = False

    def settle(self, ended: EndedTry) -> Due | None:
        """When it is written, by this thread or another: a delivery that was claimed for this thread, where there was one.

        Raises what the database raises, in the one thread that tried to write; the leases of what could not be written end by themselves.
        """
        with self._adding:
            self._waiting.append(ended)
        with self._writing:
            with self._adding:
                batch, self._waiting = self._waiting, []
            if batch:
                claimed = self._context.engine.write(lambda tx: self._write(tx, batch), by=actors.SERVICE)
                for each, following in zip(batch, claimed, strict=False):
                    each.following = following
        return ended.following

    def close(self) -> None:
        """Nothing is claimed any more."""
        self._is_closing = True

    def _write(self, tx: Tx, batch: list[EndedTry]) -> list[Due]:
        # In one order, so that two processes do not wait for each other.
        for each in sorted(batch, key=lambda one: (one.due.endpoint, one.due.delivery)):
            delivery_claims.settle(tx, each.due, each.attempt, each.again, self._context.ids)
        if self._is_closing:
            return []
        return delivery_claims.claim(tx, self._terms, len(batch), now=self._context.clock.now())
