"""Connections of clients: listening sockets, limits and fair turns. The only importer of uvicorn's own protocol."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from http import HTTPStatus
from types import FrameType
from typing import Any, TypeVar, cast

import anyio
import anyio.to_thread
import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from crmctl.service.faults import FAILURES, BadRequest, Busy, Fault, Unavailable
from crmctl.service.http.json_answers import CLOSE, answer_for, head_too_large, too_slow

HEAD_LIMIT = 32 * 1024
"""Most bytes of a request's line and headers; a hundred conditions in a query fit."""

REST_SECONDS = 30.0
REST_BYTES = 64 * 1024 * 1024
"""Limits on reading the rest of a request that was answered early. A client that sends everything before it reads then still gets the
answer."""

STALLED_SECONDS = 60.0
STALLED_BYTES = 60 * 1024
"""A client that takes less than this of an answer in that time is disconnected."""

STOP_SECONDS = 1.0
"""The limit of REST_SECONDS while the service stops."""

_EVICTED_SHARE = 20

HEAD, IDLE, REQUEST, REST, CLOSING = "head", "idle", "request", "rest", "closing"


class Connections:
    """All connections of one process, at most `most`. Idle ones make room for new ones."""

    def __init__(self, most: int, head_seconds: float, headers: Callable[[], list[tuple[bytes, bytes]]]) -> None:
        """`headers` returns the headers that every answer carries."""
        self.most = most
        self.head_seconds = head_seconds
        self.headers = headers
        self.open: dict[Connection, None] = {}

    def evict(self) -> None:
        """Close the oldest connections without a request. If there are none, close those between two requests, and last one whose body is
        still arriving."""
        candidates = [connection for connection in self.open if connection.phase in (HEAD, REST, CLOSING)]
        candidates = candidates or [connection for connection in self.open if connection.phase == IDLE]
        share = max(1, min(self.most // _EVICTED_SHARE, len(candidates) // 2))  # the youngest may be about to send their request
        if not candidates:
            candidates, share = [connection for connection in self.open if connection.is_receiving], 1
        for connection in candidates[:share]:
            del self.open[connection]
            connection.abort()

    def drop(self, client: tuple[str, int] | None) -> None:
        """Close the connection of a client in the middle of its answer, after sending what was written."""
        for connection in [connection for connection in self.open if connection.client == client]:
            connection.cycle.disconnected = True
            connection.transport.close()


class Connection(H11Protocol):
    """A connection. `phase` is what it waits for, which decides how long it may wait."""

    def __init__(self, registry: Connections, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self.phase = HEAD
        self._registry = registry
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._discarded = 0
        self._is_refused = False

    @property
    def is_receiving(self) -> bool:
        """Whether the body of a request is still arriving, so that nothing has been done for it."""
        return self.phase == REQUEST and self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # Closing is decided here; uvicorn holds the same transport.
        super().connection_made(cast(asyncio.Transport, _Closing(transport, self._leave)))
        if len(self._registry.open) >= self._registry.most:
            self._registry.evict()
        if len(self._registry.open) >= self._registry.most:
            self._refuse(Unavailable("the service has too many connections; try again"))
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
        """Refuse a request that h11 rejects. uvicorn calls this while it handles the error; the application never sees the request."""
        hint = getattr(sys.exc_info()[1], "error_status_hint", 400)
        self._refuse(head_too_large(HEAD_LIMIT) if hint == 431 else BadRequest("the request is not valid HTTP"))

    def shutdown(self) -> None:
        super().shutdown()
        if self.phase == CLOSING:
            self.loop.call_later(STOP_SECONDS, self.abort)

    def abort(self) -> None:
        self.transport.abort()

    def _wait_for_reader(self, before: int | None = None) -> None:
        unsent = self.transport.get_write_buffer_size()
        if before is not None and before - unsent < STALLED_BYTES:
            self.abort()
        else:
            self._stalled = self.loop.call_later(STALLED_SECONDS, self._wait_for_reader, unsent)

    def _look(self) -> None:
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
        """Start the timer of a phase. Sending a little now and then does not restart it."""
        if phase == self.phase and not begin:
            return
        self.phase = phase
        self._discarded = 0
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        if self.phase == HEAD and self.conn.trailing_data[0]:
            self._refuse(too_slow("the request"))
        elif self.phase in (HEAD, IDLE):
            self.transport.close()
        else:
            self.abort()

    def _refuse(self, refusal: Fault) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        refusal.headers = {**refusal.headers, **CLOSE}
        answer, status = answer_for(refusal), HTTPStatus(refusal.status)
        headers = [*answer.raw_headers, *self._registry.headers()]
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        first = f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
        self._is_refused = True
        self.transport.write(first + lines + b"\r\n" + bytes(answer.body))
        self.transport.close()

    def _leave(self, transport: asyncio.Transport) -> None:
        """Close, but let a client that is still sending read the answer first."""
        self._wait_for(CLOSING, REST_SECONDS, begin=True)
        if (self._is_refused or self.conn.their_state is h11.SEND_BODY) and transport.can_write_eof():
            transport.write_eof()
            self.flow.resume_reading()
        else:
            transport.close()


class _Closing:
    """A transport that leaves `close` to the connection."""

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


RESERVED_FILES = 256
"""Descriptors reserved for the database, uploads and outgoing calls."""

_PAUSE = 0.1
"""Pause before the next try when the system has no descriptors left."""


def raise_file_limit(connections: int) -> int:
    """Raise the limit of open files for `connections` as far as allowed. Returns how many connections fit."""
    try:
        import resource
    except ImportError:
        # Windows has no such limit.
        return connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + RESERVED_FILES
    allowed = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return connections if soft == resource.RLIM_INFINITY else min(connections, max(soft - RESERVED_FILES, soft // 2))


class ListeningServer(uvicorn.Server):
    """uvicorn's server with its own accept loop. A signal ends it quietly."""

    def __init__(self, listener: socket.socket, config: uvicorn.Config, registry: Connections, started: Callable[[], None]) -> None:
        """`started` is called once requests are answered."""
        super().__init__(config)
        self._listener = listener
        self._registry = registry
        self._tell_started = started
        self._accepting: asyncio.Task[None] | None = None
        self._ticking: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        self._listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())
        self._tell_started()

    async def main_loop(self) -> None:
        self._ticking = asyncio.create_task(super().main_loop())
        await asyncio.wait([self._ticking])

    def stop(self) -> None:
        """End the main loop now instead of at its next tick, from any thread."""
        self.should_exit = True
        if self._ticking is not None:
            with contextlib.suppress(RuntimeError):
                self._ticking.get_loop().call_soon_threadsafe(self._ticking.cancel)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self.stop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
        self._listener.close()
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown([])
        # Clients that have not read their answers by now are disconnected.
        for connection in list(self.server_state.connections):
            cast(Connection, connection).abort()
        await asyncio.sleep(0)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        make = partial(Connection, self._registry, config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listener)
            except ConnectionError:
                continue
            except OSError as error:
                FAILURES.tell(error, briefly=True)
                self._registry.evict()
                await asyncio.sleep(_PAUSE)
                continue
            try:
                await loop.connect_accepted_socket(make, accepted)
            except OSError:
                accepted.close()


T = TypeVar("T")

LARGE = 256 * 1024
"""A body this large is processed alone, because it takes many times its size in memory."""

MOST_BODY_BYTES = 256 * 1024 * 1024
"""Most bytes of all bodies in memory at once."""

ADMISSIONS = 4

AT_ONCE_SECONDS = 0.01
"""Most seconds of a short read on the event loop, where most reads cost less than a thread. A longer one begins again on a thread."""

THREADS_SECONDS = 0.2
"""How long threads do all reads after one took too long, so that a lock or slow searches delay the event loop by five percent at most."""


class _Share:
    """The share of one key in a limiter, and how many of its requests are there."""

    def __init__(self, most: int) -> None:
        self.turns = asyncio.Semaphore(most)
        self.requests = 0


class FairLimiter:
    """At most `places` at once. At most `per_key` requests of one key are among them or next in the queue: the others let other keys pass.

    For one event loop.
    """

    def __init__(self, places: int, per_key: int) -> None:
        self._places = asyncio.Semaphore(places)
        self._per_key = per_key
        self._shares: dict[str, _Share] = {}

    @contextlib.asynccontextmanager
    async def place(self, key: str, seconds: float) -> AsyncIterator[bool]:
        """Wait for a turn, and yield whether the key has no other request here. Raises Busy after `seconds`; nothing has been done then."""
        share = self._shares.setdefault(key, _Share(self._per_key))
        share.requests += 1
        try:
            await self._enter(share, seconds)
            try:
                yield share.requests == 1
            finally:
                self._places.release()
                share.turns.release()
        finally:
            share.requests -= 1
            if not share.requests:
                del self._shares[key]

    async def _enter(self, share: _Share, seconds: float) -> None:
        waits = share.turns.locked() or self._places.locked()
        try:
            async with asyncio.timeout(seconds if waits else None), contextlib.AsyncExitStack() as stack:
                await stack.enter_async_context(share.turns)
                await self._places.acquire()
                stack.pop_all()
        except TimeoutError:
            raise Busy("the service is busy, and there was no turn in time; nothing was done, try again") from None


@dataclass
class Work:
    """The queues of one service process. Together they have fewer places than an engine has connections (see PostgresEngine).

    With `reads_at_once`, short reads run on the event loop.
    """

    reads_at_once: bool = False
    _threads_until: float = -math.inf

    reads: FairLimiter = field(default_factory=lambda: FairLimiter(6, 4))
    searches: FairLimiter = field(default_factory=lambda: FairLimiter(4, 2))
    writes: FairLimiter = field(default_factory=lambda: FairLimiter(6, 4))
    large_bodies: FairLimiter = field(default_factory=lambda: FairLimiter(4, 1))
    body_bytes: int = 0
    refused_at: float = -math.inf
    refusal: Unavailable | None = None
    """The last request that the storage refused; `refused_at` is on the monotonic clock."""

    @cached_property
    def _threads(self) -> tuple[anyio.CapacityLimiter, anyio.CapacityLimiter]:
        # Callers of `run` already have a place.
        return anyio.CapacityLimiter(ADMISSIONS), anyio.CapacityLimiter(math.inf)

    async def admit(self, fn: Callable[[float | None], T]) -> T:
        """Run the admission of a request. `fn` takes its most seconds, and raises Busy after them without having done anything."""
        return await self._at_once(fn, lambda: anyio.to_thread.run_sync(fn, None, limiter=self._threads[0]))

    async def run(self, fn: Callable[[], T]) -> T:
        """Run a function on a thread. The caller must have a place."""
        return await anyio.to_thread.run_sync(fn, limiter=self._threads[1])

    async def read(self, fn: Callable[[float], T]) -> T:
        """Do as `admit` does for a short read. The caller must have a place."""
        return await self._at_once(fn, lambda: self.run(lambda: fn(math.inf)))

    async def _at_once(self, fn: Callable[[float], T], on_thread: Callable[[], Awaitable[T]]) -> T:
        if self.reads_at_once and time.monotonic() >= self._threads_until:
            try:
                return fn(AT_ONCE_SECONDS)
            except Busy:
                self._threads_until = time.monotonic() + THREADS_SECONDS
        return await on_thread()

    @contextlib.contextmanager
    def body(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts the bytes of a request's body. It raises Busy when all bodies together are too large."""
        mine = 0

        def count(size: int) -> None:
            nonlocal mine
            mine += size
            self.body_bytes += size
            if self.body_bytes > MOST_BODY_BYTES:
                raise Busy("the service has too many large requests at once; nothing was done, try again")

        try:
            yield count
        finally:
            self.body_bytes -= mine
