"""Writes the request log, a second's requests at a time: a request itself waits for nothing."""

from __future__ import annotations

from crmctl.service.context import Context
from crmctl.service.jobs.periodic import GatheringJob
from crmctl.service.store import request_log
from crmctl.service.store.request_log import LoggedRequest
from crmctl.service.store.tx import Tx

MOST_WAITING = 20_000
"""What cannot be written for so long, because the database is away, is not kept."""


class RequestLogWriter(GatheringJob[list[LoggedRequest]]):
    """`add` is called by requests."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, [])

    def add(self, request: LoggedRequest) -> None:
        with self._lock:
            if len(self._held) < MOST_WAITING:
                self._held.append(request)
            else:
                self.dropped += 1

    def write(self, tx: Tx, held: list[LoggedRequest]) -> None:
        request_log.append(tx, held)

    def kept(self, held: list[LoggedRequest]) -> list[LoggedRequest]:
        return held[:MOST_WAITING]
