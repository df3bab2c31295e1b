"""Forgets what is older than it has to be kept: a little at a time, so that nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable

from crmctl.service.context import Context
from crmctl.service.store import attempt_counts, audit_log, change_log, deliveries, request_log
from crmctl.service.store.tx import Tx

CHUNK = 1000
EVERY_SECONDS = 600.0
DELIVERY_SECONDS = 30 * 24 * 3600.0
"""How long settled deliveries, their attempts and the bodies of their events are kept."""
COUNTS_SECONDS = 2 * 24 * 3600.0


class Retention:
    """A job of the worker."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._next_at = 0.0

    def run_once(self) -> bool:
        now = self._context.clock.now()
        if now < self._next_at:
            return False
        self._next_at = now + EVERY_SECONDS
        kept = self._context.settings.kept
        self._repeat(lambda tx: deliveries.forget(tx, now - DELIVERY_SECONDS, CHUNK))
        self._context.engine.write(lambda tx: attempt_counts.forget(tx, now - COUNTS_SECONDS))
        self._repeat(lambda tx: change_log.slim(tx, now - DELIVERY_SECONDS, CHUNK))
        self._repeat(lambda tx: change_log.forget(tx, now - kept.history, CHUNK))
        self._repeat(lambda tx: request_log.forget(tx, now - kept.requests, CHUNK))
        self._repeat(lambda tx: audit_log.forget(tx, now - kept.audit, CHUNK))
        return False

    def close(self) -> None:
        """Nothing is kept open."""

    def _repeat(self, forget: Callable[[Tx], int]) -> None:
        while self._context.engine.write(forget) == CHUNK:
            pass
