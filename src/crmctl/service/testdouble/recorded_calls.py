"""Webhook calls of a test double."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from crmctl.service.outbound.caller import Caller, Reply

Recorder = Callable[[str, Mapping[str, str], bytes, int | None], None]
"""Takes URL, headers, body and the status of the answer."""


@dataclass(frozen=True, kw_only=True)
class RecordedCaller(Caller):
    """Tells `record` of each call. Calls of the URL `sink` succeed without a network."""

    sink: str
    record: Recorder

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Reply:
        reply = None
        try:
            reply = Reply(200, {}, "") if url == self.sink else super().post(url, headers, body)
        finally:
            self.record(url, headers, body, reply.status if reply else None)
        return reply
