"""Connections of clients: how many there may be, how long each may take to say what it wants, how each ends.

HTTP itself is uvicorn's and h11's.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from crmctl.service.http.answers import JsonAnswer
from crmctl.service.http.errors import Refusal, answer_for, head_too_large, head_too_slow, not_http, too_many_connections

HEAD_LIMIT = 32 * 1024
"""Bytes of a request's line and headers; a hundred conditions in a query fit."""

REST_SECONDS = 30.0
REST_BYTES = 64 * 1024 * 1024
"""How long, and how much, is read of a request that was answered before it had arrived: a client that sends everything before it reads
gets to read the answer."""

STALLED_SECONDS = 60.0
STALLED_BYTES = 60 * 1024
"""A client that takes less of an answer in that time is given up."""

STOP_SECONDS = 1.0
"""What is left of REST_SECONDS when the service stops."""

_EVICTED_SHARE = 20

HEAD, IDLE, REQUEST, REST, CLOSING = "head", "idle", "request", "rest", "closing"


class Connections:
    """All connections of one process, at most `most`. When that many are there, those that ask for nothing make room."""

    def __init__(self, most: int, head_seconds: float, headers: Callable[[], list[tuple[bytes, bytes]]]) -> None:
        """`headers` gives what every answer carries besides its own headers."""
        self.most = most
        self.head_seconds = head_seconds
        self.headers = headers
        self.open: dict[Connection, None] = {}

    def make_room(self) -> bool:
        """Whether one more may come; where there are too many, others end first."""
        if len(self.open) >= self.most:
            self.evict()
        return len(self.open) < self.most

    def evict(self) -> None:
        """End the oldest of those that have not said what they want, and of these first the ones of the address that has most of them;
        clients between two requests only when there are no such, and requests whose body is still coming when nothing else is left."""
        candidates = [each for each in self.open if each.phase in (HEAD, REST, CLOSING)]
        candidates = candidates or [each for each in self.open if each.phase == IDLE]
        share = max(1, self.most // _EVICTED_SHARE)
        if not candidates:
            candidates, share = [each for each in self.open if each.is_receiving], 1
        addresses = Counter(each.address for each in candidates)
        # A stable sort of what is in order of arrival.
        candidates.sort(key=lambda each: -addresses[each.address])
        for each in candidates[:share]:
            del self.open[each]
            each.abort()


class Connection(H11Protocol):
    """One connection. `phase`: what it is waiting for, which decides how long it may."""

    def __init__(self, registry: Connections, **uvicorn: Any) -> None:
        """`uvicorn`: the arguments of its own protocol."""
        super().__init__(**uvicorn)
        self.phase = HEAD
        self.address = ""
        self._registry = registry
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._discarded = 0
        self._is_refused = False

    @property
    def is_receiving(self) -> bool:
        """Whether a request is under way whose body has not arrived: nothing has been done for it."""
        return self.phase == REQUEST and self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # It closes as this connection decides; uvicorn holds it too.
        super().connection_made(cast(asyncio.Transport, _Closing(transport, self._leave)))
        self.address = self.client[0] if self.client else ""
        if not self._registry.make_room():
            self._refuse(too_many_connections())
            return
        self._registry.open[self] = None
        self._wait_for(HEAD, self._registry.head_seconds, begin=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._registry.open.pop(self, None)
        for timer in (self._timer, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.phase in (REST, CLOSING):
            self._discarded += len(data)
            if self._discarded > REST_BYTES:
                self.abort()
                return
        if self.phase != CLOSING:
            super().data_received(data)
            self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn while it handles h11's error; such a request never reaches the application."""
        hint = getattr(sys.exc_info()[1], "error_status_hint", 400)
        self._refuse(head_too_large(HEAD_LIMIT) if hint == 431 else not_http())

    def shutdown(self) -> None:
        super().shutdown()
        if self.phase == CLOSING:
            self.loop.call_later(STOP_SECONDS, self.abort)

    def abort(self) -> None:
        self.transport.abort()

    def _wait_for_reader(self, before: int | None = None) -> None:
        left = self.transport.get_write_buffer_size()
        if before is not None and before - left < STALLED_BYTES:
            self.abort()
        else:
            self._stalled = self.loop.call_later(STALLED_SECONDS, self._wait_for_reader, left)

    def _look(self) -> None:
        """Find out what the connection waits for now."""
        if self.phase == CLOSING:
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_for(REQUEST)
        elif self.conn.their_state is h11.SEND_BODY:
            self._wait_for(REST, REST_SECONDS)
        elif self.cycle is None or self.conn.trailing_data[0]:
            self._wait_for(HEAD, self._registry.head_seconds)
        else:
            self._wait_for(IDLE, self.timeout_keep_alive)

    def _wait_for(self, phase: str, seconds: float | None = None, *, begin: bool = False) -> None:
        """Time runs from the moment the phase began: sending a little now and then does not lengthen it."""
        if phase == self.phase and not begin:
            return
        self.phase = phase
        self._discarded = 0
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        if self.phase == HEAD and self.conn.trailing_data[0]:
            self._refuse(head_too_slow())
        elif self.phase in (HEAD, IDLE):
            self.transport.close()
        else:
            self.abort()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer without the application, and close."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        answer: JsonAnswer = answer_for(refusal)
        headers = [*answer.raw_headers, (b"connection", b"close"), *self._registry.headers()]
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        status = f"HTTP/1.1 {refusal.status.value} {refusal.status.phrase}\r\n".encode()
        self._is_refused = True
        self.transport.write(status + lines + b"\r\n" + bytes(answer.body))
        self.transport.close()

    def _leave(self, transport: asyncio.Transport) -> None:
        """Close, but not under the feet of a client that is still sending: it would lose the answer with the connection."""
        self._wait_for(CLOSING, REST_SECONDS, begin=True)
        if (self._is_refused or self.conn.their_state is h11.SEND_BODY) and transport.can_write_eof():
            transport.write_eof()
            self.flow.resume_reading()
        else:
            transport.close()


class _Closing:
    """A transport whose `close` is decided elsewhere. Everything else is the transport's own."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[asyncio.Transport], None]) -> None:
        self._transport = transport
        self._close = close
        self._is_closing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._is_closing:
            self._transport.write(data)

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._close(self._transport)

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()
