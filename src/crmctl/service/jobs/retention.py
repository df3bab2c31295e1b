"""Forgets what is older than it has to be kept: a little at a time, so that nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable

from crmctl.service.jobs.periodic import PeriodicJob
from crmctl.service.store import attempt_counts, audit_log, change_log, deliveries, request_log
from crmctl.service.store.tx import Tx

CHUNK = 1000
DELIVERY_SECONDS = 30 * 24 * 3600.0
"""How long settled deliveries, their attempts and the bodies of their events are kept."""
COUNTS_SECONDS = 2 * 24 * 3600.0


class Retention(PeriodicJob):
    """A job of the worker."""

    every = 600.0

    def work(self) -> None:
        now = self._context.clock.now()
        kept = self._context.settings.kept
        self._repeat(lambda tx: deliveries.forget(tx, now - DELIVERY_SECONDS, CHUNK))
        self._context.engine.write(lambda tx: attempt_counts.forget(tx, now - COUNTS_SECONDS))
        self._repeat(lambda tx: change_log.slim(tx, now - DELIVERY_SECONDS, CHUNK))
        self._repeat(lambda tx: change_log.forget(tx, now - kept.history, CHUNK))
        self._repeat(lambda tx: request_log.forget(tx, now - kept.requests, CHUNK))
        self._repeat(lambda tx: audit_log.forget(tx, now - kept.audit, CHUNK))

    def _repeat(self, forget: Callable[[Tx], int]) -> None:
        while self._context.engine.write(forget) == CHUNK:
            pass
