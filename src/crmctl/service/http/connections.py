"""Connections of clients: listening sockets, requests on the wire, limits on time and size. The only importer of the insides of uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from types import FrameType
from typing import Any, cast
from urllib.parse import unquote

import httptools
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.server import ServerState

from crmctl.errors import reason
from crmctl.service.faults import FAILURES, BadRequest, Fault, Unavailable
from crmctl.service.http.json_answers import CLOSE, answer_for, head_too_large, too_slow

HEAD_LIMIT = 32 * 1024
"""Most bytes of a request's line and headers; a hundred conditions in a query fit."""

_PIECE = 8 * 1024
"""Bytes that are parsed at once. After each, the limit of a head is checked, and whether a request waits for its turn."""

KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep idle connections: then the client closes them, and no request meets a closing one."""

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

_LOG = logging.getLogger("uvicorn.error")

DROP = "crmctl.drop"
"""Entry of a request's scope: a function that closes the connection in the middle of an answer, after sending what was written."""

HEAD, BODY, IDLE, REQUEST, REST, CLOSING = "head", "body", "idle", "request", "rest", "closing"


class Connections:
    """All connections of one process, at most `most`. Idle ones make room for new ones."""

    def __init__(self, most: int, head_seconds: float, headers: Callable[[], list[tuple[bytes, bytes]]]) -> None:
        """`headers` returns the headers that every answer carries."""
        self.most = most
        self.head_seconds = head_seconds
        self.headers = headers
        self.open: dict[Connection, None] = {}
        self.on_stop: Callable[[], None] = lambda: None
        """Called when the service begins to stop."""

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


class Connection(asyncio.Protocol):
    """A connection. `phase` is what it waits for, which decides how long it may wait.

    llhttp parses requests, uvicorn's cycle is the ASGI side of one. Requests that arrive before the answer to an earlier one wait.
    """

    def __init__(self, registry: Connections, config: uvicorn.Config, server_state: ServerState) -> None:
        self.phase = ""
        self._registry = registry
        self._config = config
        self._server = server_state
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._cycles: deque[RequestResponseCycle] = deque()
        """Requests without a complete answer. The first is being worked on, the body of the last may be arriving."""
        self._part: str | None = None
        """HEAD or BODY while a part of a request is arriving."""
        self._unparsed = b""
        self._unused = 0
        """Bytes since the last progress, in a head or around the chunks of a body."""
        self._discarded = 0
        self._refusal: Fault | None = None
        self._deadline = self._reader_deadline = math.inf
        self._unsent = 0
        """Bytes that the client had not taken yet when `_reader_deadline` was set."""

    @property
    def is_receiving(self) -> bool:
        """Whether the body of a request is still arriving, so that nothing has been done for it."""
        return self.phase == REQUEST and self._part == BODY

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = _Transport(cast(asyncio.Transport, transport), self._leave)
        self._flow = _Flow(cast(asyncio.Transport, self.transport))
        self._addresses = {"client": get_remote_addr(self.transport), "server": get_local_addr(self.transport)}  # type: ignore[arg-type]
        self._server.connections.add(self)  # type: ignore[arg-type]
        if len(self._registry.open) >= self._registry.most:
            self._registry.evict()
        if len(self._registry.open) >= self._registry.most:
            self._refuse(Unavailable("the service has too many connections; try again"))
            return
        self._registry.open[self] = None
        self._wait_for(HEAD, self._registry.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._registry.open.pop(self, None)
        self._server.connections.discard(self)
        for cycle in self._cycles:
            _disconnect(cycle)
        self._flow.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self.phase in (REST, CLOSING):
            self._discarded += len(data)
            if self._discarded > REST_BYTES:
                self.abort()
                return
        self._parse(data)

    def _parse(self, data: bytes = b"") -> None:
        """Parse what has arrived, until a request waits for its turn: unparsed requests take a tenth of the memory."""
        data, start = self._unparsed + data, 0
        while start < len(data) and len(self._cycles) < 2 and self.phase != CLOSING and self._refusal is None:
            self._feed(data[start : start + _PIECE])
            start += _PIECE
        self._unparsed = data[start:] if len(self._cycles) > 1 else b""
        self._look()

    def _feed(self, piece: bytes) -> None:
        self._unused += len(piece)
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            self._stay_with_http(piece[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._reject(BadRequest(f"the request is not valid HTTP: {reason(error)}"))
        else:
            if self._unused > HEAD_LIMIT:
                self._reject(head_too_large(HEAD_LIMIT))

    def _stay_with_http(self, rest: bytes) -> None:
        """Answer a request for another protocol as if it had not asked for one. llhttp would take its body for that protocol."""
        method, version = self._parser.get_method(), self._parser.get_http_version().encode()
        if method == b"CONNECT":
            self._reject(BadRequest("this service is not a proxy"))
            return
        lines = [b"%s: %s\r\n" % header for header in self._headers if header[0] != b"upgrade"]
        self._parser = httptools.HttpRequestParser(self)
        self._feed(b"%s %s HTTP/%s\r\n%s\r\n" % (method, self._target, version, b"".join(lines)) + rest)

    def on_message_begin(self) -> None:
        self._part = HEAD
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []

    def on_url(self, piece: bytes) -> None:
        self._target += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        # Fields after a body must not count as headers.
        if self._part == HEAD:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._parser.should_upgrade():
            return
        self._part, self._unused = BODY, 0
        version = self._parser.get_http_version()
        raw_path, _, query = self._target.partition(b"?")
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": self._config.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            **self._addresses,
            "scheme": "http",
            "method": self._parser.get_method().decode("ascii"),
            "root_path": "",
            "path": unquote(raw_path.decode("ascii")),
            "raw_path": raw_path,
            "query_string": query,
            "headers": self._headers,
            DROP: self.drop,
        }
        cycle = _Cycle(
            scope=cast("Any", scope),
            transport=cast(asyncio.Transport, self.transport),
            flow=self._flow,
            logger=_LOG,
            access_logger=_LOG,
            access_log=False,
            default_headers=self._server.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=any(name == b"expect" and value.lower() == b"100-continue" for name, value in self._headers),
            keep_alive=version != "1.0" and self._parser.should_keep_alive(),
            on_response=self._answered,
        )
        self._cycles.append(cycle)
        if len(self._cycles) == 1:
            self._start()
        else:
            self._flow.hold(True)

    def on_body(self, piece: bytes) -> None:
        self._unused = 0
        cycle = self._receiving
        if cycle is not None:
            cycle.body += piece
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self._flow.pause_reading()
            cycle.message_event.set()

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return
        cycle = self._receiving
        if cycle is not None:
            cycle.more_body = False
            cycle.message_event.set()
        self._part, self._unused = None, 0

    @property
    def _receiving(self) -> RequestResponseCycle | None:
        """The request whose body is arriving, unless it has been answered already."""
        return self._cycles[-1] if self._cycles and self._cycles[-1].more_body else None

    def _start(self) -> None:
        task = self._loop.create_task(self._cycles[0].run_asgi(self._config.loaded_app))
        task.add_done_callback(self._server.tasks.discard)
        self._server.tasks.add(task)

    def _answered(self) -> None:
        self._cycles.popleft()
        self._server.total_requests += 1
        if not self.transport.is_closing():
            self._flow.hold(len(self._cycles) > 1)
            if self._cycles:
                self._start()
            elif self._refusal is not None:
                self._refuse(self._refusal)
            self._parse()
        else:
            self._look()

    def pause_writing(self) -> None:
        self._flow.pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        self._flow.resume_writing()
        self._reader_deadline = math.inf

    def shutdown(self) -> None:
        """Close after the answers under way. uvicorn calls this when it stops."""
        if self._cycles:
            self._cycles[-1].keep_alive = False
        else:
            self.transport.close()
        if self.phase == CLOSING:
            self._loop.call_later(STOP_SECONDS, self.abort)

    def abort(self) -> None:
        self.transport.abort()

    def drop(self) -> None:
        for cycle in self._cycles:
            _disconnect(cycle)
        self.transport.close()

    def _wait_for_reader(self) -> None:
        self._reader_deadline, self._unsent = self._loop.time() + STALLED_SECONDS, self.transport.get_write_buffer_size()

    def _look(self) -> None:
        if self.phase == CLOSING:
            return
        if self._cycles:
            self._wait_for(REQUEST)
        elif self._part == BODY:
            self._wait_for(REST, REST_SECONDS)
        elif self._part == HEAD:
            self._wait_for(HEAD, self._registry.head_seconds)
        elif self.phase != HEAD:
            self._wait_for(IDLE, KEEP_ALIVE_SECONDS)

    def _wait_for(self, phase: str, seconds: float = math.inf) -> None:
        """Set the deadline of a phase. Sending a little now and then does not move it."""
        if phase != self.phase:
            self.phase, self._discarded, self._deadline = phase, 0, self._loop.time() + seconds

    def look_at_the_clock(self) -> None:
        """End what has taken too long. The server calls this every second."""
        now = self._loop.time()
        if now >= self._reader_deadline:
            if self._unsent - self.transport.get_write_buffer_size() < STALLED_BYTES:
                self.abort()
            self._wait_for_reader()
        if now < self._deadline:
            return
        if self._part == HEAD and self.phase == HEAD:
            self._refuse(too_slow("the request"))
        elif self.phase in (HEAD, IDLE):
            self.transport.close()
        else:
            self.abort()

    def _reject(self, refusal: Fault) -> None:
        """Refuse bytes that are not a request, after the answers to earlier requests."""
        self._refusal = refusal
        broken = self._receiving if self._part == BODY else None
        if broken is not None:
            _disconnect(self._cycles.pop())
        if self._cycles:
            return
        if self._part == BODY and (broken is None or broken.response_started):
            self.transport.close()
        else:
            self._refuse(refusal)

    def _refuse(self, refusal: Fault) -> None:
        refusal.headers = {**refusal.headers, **CLOSE}
        answer, status = answer_for(refusal), HTTPStatus(refusal.status)
        headers = [*answer.raw_headers, *self._registry.headers()]
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        first = f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
        self._refusal = refusal
        self.transport.write(first + lines + b"\r\n" + bytes(answer.body))
        self.transport.close()

    def _leave(self, transport: asyncio.Transport) -> None:
        """Close, but let a client that is still sending read the answer first."""
        self._wait_for(CLOSING, REST_SECONDS)
        if (self._refusal or self._part == BODY) and transport.can_write_eof():
            transport.write_eof()
            self._flow.hold(False)
        else:
            transport.close()


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Tell the application that nobody waits for its answer."""
    cycle.disconnected = True
    cycle.message_event.set()


class _Flow(FlowControl):
    """Reading stops while a request waits for its turn: otherwise a client could fill the memory with requests."""

    _is_held = False

    def hold(self, is_held: bool) -> None:
        self._is_held = is_held
        if is_held:
            self.pause_reading()
        else:
            self.resume_reading()

    def resume_reading(self) -> None:
        if not self._is_held:
            super().resume_reading()


class _Transport:
    """A transport that leaves `close` to the connection. While `is_held`, it keeps what is written for the next write."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[asyncio.Transport], None]) -> None:
        self._transport = transport
        self._close = close
        self._is_closing = False
        self._held = b""
        self.is_held = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._held = self._held + data if self._held else data
        if not self.is_held:
            self.flush()

    def flush(self) -> None:
        data, self._held = self._held, b""
        if data and not self.is_closing():  # uvloop raises an error where asyncio ignores what is written
            self._transport.write(data)

    def close(self) -> None:
        if not self._is_closing:
            self.flush()
            self._is_closing = True
            self._close(self._transport)

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()


class _Cycle(RequestResponseCycle):
    """Sends the head of an answer along with the first piece of its body: a packet costs as much as all headers."""

    transport: Any

    async def send(self, message: Any) -> None:
        is_head = message["type"] == "http.response.start"
        self.transport.is_held = is_head
        await super().send(message)
        if not is_head:
            self.transport.flush()


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

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            for connection in list(self.server_state.connections):
                cast(Connection, connection).look_at_the_clock()
        return await super().on_tick(counter)

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
        self._registry.on_stop()
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown([])
        # Clients that have not read their answers by now are disconnected.
        for connection in list(self.server_state.connections):
            cast(Connection, connection).abort()
        await asyncio.sleep(0)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        make = partial(Connection, self._registry, self.config, self.server_state)
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
                # Not cancelled at the stop: uvloop would close a connection that may have a request, and tell nobody.
                await asyncio.shield(loop.connect_accepted_socket(make, accepted))
            except OSError:
                accepted.close()
