"""Writes the request log, a second's requests at a time: a request itself waits for nothing."""

from __future__ import annotations

import threading

from crmctl.service.context import Context
from crmctl.service.faults import Unavailable
from crmctl.service.store import request_log
from crmctl.service.store.request_log import LoggedRequest

EVERY_SECONDS = 1.0
MOST_WAITING = 20_000
"""What cannot be written for so long, because the database is away, is not kept."""


class RequestLogWriter:
    """A job of the worker; `add` is called by requests."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._waiting: list[LoggedRequest] = []
        self._next_at = 0.0
        self.dropped = 0

    def add(self, request: LoggedRequest) -> None:
        with self._lock:
            if len(self._waiting) < MOST_WAITING:
                self._waiting.append(request)
            else:
                self.dropped += 1

    def run_once(self) -> bool:
        now = self._context.clock.monotonic()
        if now >= self._next_at:
            self._next_at = now + EVERY_SECONDS
            self._write()
        return False

    def close(self) -> None:
        """Write what waits."""
        try:
            self._write()
        except Unavailable:
            self.dropped += len(self._waiting)

    def _write(self) -> None:
        with self._lock:
            batch = self._waiting
            self._waiting = []
        if not batch:
            return
        try:
            self._context.engine.write(lambda tx: request_log.append(tx, batch))
        except BaseException:
            with self._lock:
                self._waiting = (batch + self._waiting)[:MOST_WAITING]
            raise
