"""Receive webhooks locally."""

from __future__ import annotations

import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from crmctl.clock import Clock
from crmctl.errors import UsageError, reason
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.signatures import SignatureError, read_headers, verify

MAX_BODY = 5 * 1024 * 1024
READ_SECONDS = 15.0
"""Seconds to wait for the next bytes of a request."""

ANSWER_SECONDS = 10.0
"""Seconds an event waits for others to be taken; then its sender is told to retry."""

REMEMBERED = 10_000
"""Event ids remembered to recognise repeats."""

_TYPE_HEADER = "webhook-event-type"


@frozen
class ReceivedEvent:
    """One verified delivery. `type` is None if the sender does not name it."""

    id: str
    type: str | None
    timestamp: int
    body: bytes

    def to_document(self) -> Json:
        """Return `{"id", "type", "timestamp", "data"}`: the time as ISO 8601 UTC, the body as data, or as text if it is not JSON."""
        from datetime import UTC, datetime

        moment = datetime.fromtimestamp(self.timestamp, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return {"id": self.id, "type": self.type, "timestamp": moment, "data": _content(self.body)}


class Receiver:
    """Listens until closed. `take` returns whether it kept an event; `refuse` gets a message about each rejected request.

    Threads of the server call both, `take` one at a time. Only an event that was taken gets a success, once however often it comes; a 503
    makes the sender repeat the others.
    """

    def __init__(
        self,
        address: tuple[str, int],
        secret: str,
        clock: Clock,
        *,
        tolerance: float,
        take: Callable[[ReceivedEvent], bool],
        refuse: Callable[[str], None],
    ) -> None:
        """Raises UsageError if it cannot listen there."""
        self.secret = secret
        self.clock = clock
        self.tolerance = tolerance
        self.take = take
        self.refuse = refuse
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._taking = threading.Lock()
        self._lock = threading.Condition()
        self._answering = 0
        try:
            self._server = _Server(address, self)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"cannot listen on {address[0]} port {address[1]}: {reason(error)}", hint="--port 0 takes a free port"
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.1], name="receiver", daemon=True)

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}/" if ":" in str(host) else f"http://{host!s}:{port}/"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Accept no more connections."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def await_answers(self, seconds: float) -> bool:
        """Wait until every delivery has its answer, at most `seconds`; return whether all have."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._answering, seconds)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count a delivery from its last byte to its answer."""
        with self._lock:
            self._answering += 1
        try:
            yield
        finally:
            with self._lock:
                self._answering -= 1
                self._lock.notify_all()

    def receive(self, pairs: tuple[tuple[str, str], ...], body: bytes) -> bool:
        """Check a delivery, take a new one, and return whether it was taken. Raises SignatureError."""
        headers = read_headers(dict(pairs))
        verify(self.secret, headers, body, self.clock.now(), self.tolerance)
        if not self._taking.acquire(timeout=ANSWER_SECONDS):
            return False
        try:
            if headers.id not in self._seen:
                if not self.take(ReceivedEvent(headers.id, event_type(pairs, body), int(headers.timestamp), body)):
                    return False
                if len(self._seen) == REMEMBERED:
                    self._seen.popitem(last=False)
            self._seen[headers.id] = None
            self._seen.move_to_end(headers.id)
            return True
        finally:
            self._taking.release()


def event_type(headers: tuple[tuple[str, str], ...], body: bytes) -> str | None:
    """Return the type of an event from the header, else from the body; None without either."""
    named = next((value.strip() for name, value in headers if name.lower() == _TYPE_HEADER and value.strip()), None)
    if named is not None:
        return named
    content = _content(body)
    members = [content.get(key) for key in ("type", "eventType", "event")] if isinstance(content, dict) else []
    kind = next(filter(None, members), None)
    return kind if isinstance(kind, str) else None


def _content(body: bytes) -> Any:
    try:
        return jsontext.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], receiver: Receiver) -> None:
        self.receiver = receiver
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without looking up the host's name, which may take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a caller that left or was too slow."""


class _Handler(BaseHTTPRequestHandler):
    """One request per connection."""

    protocol_version = "HTTP/1.1"
    server_version = "crmctl"
    sys_version = ""
    server: _Server
    timeout = READ_SECONDS

    def do_POST(self) -> None:
        self.close_connection = True
        receiver = self.server.receiver
        try:
            body = b"".join(self._body())
        except _Unacceptable as problem:
            self._answer(problem.status, str(problem))
            self._drain()
            receiver.refuse(f"turned away a request from {self.client_address[0]}: {problem}")
            return
        with receiver.answering():
            try:
                is_taken = receiver.receive(tuple(self.headers.items()), body)
            except SignatureError as error:
                self._answer(401, str(error))
                receiver.refuse(f"turned away a request from {self.client_address[0]}: {error}")
                return
            if is_taken:
                self._answer(204)
            else:
                self._answer(503, "the event was not taken; send it again later", **{"Retry-After": "10"})

    def _other(self) -> None:
        self.close_connection = True
        self._answer(405, "deliveries are POST requests", Allow="POST")

    do_GET = do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _other  # noqa: N815 - as http.server looks for them

    def _body(self) -> Iterator[bytes]:
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            yield from self._chunks()
            return
        try:
            length = int(self.headers.get("content-length") or 0)
        except ValueError:
            raise _Unacceptable(400, "the content length is no number") from None
        if not 0 <= length <= MAX_BODY:
            raise _Unacceptable(413, f"the body is larger than {MAX_BODY >> 20} MB")
        yield self._exactly(length)

    def _chunks(self) -> Iterator[bytes]:
        total = 0
        while True:
            line = self.rfile.readline(1024)
            try:
                length = int(line.partition(b";")[0].strip(), 16)
            except ValueError:
                raise _Unacceptable(400, "the chunks of the body cannot be read") from None
            total += length
            if length < 0 or total > MAX_BODY:
                raise _Unacceptable(413, f"the body is larger than {MAX_BODY >> 20} MB")
            if length == 0:
                return
            yield self._exactly(length)
            self.rfile.readline(1024)

    def _exactly(self, length: int) -> bytes:
        content = self.rfile.read(length)
        if len(content) < length:
            raise _Unacceptable(400, "the body ended too early")
        return content

    def _drain(self) -> None:
        """Read some of the remaining bytes: closing earlier would reset the connection and lose the answer."""
        bytes_left = 2 * MAX_BODY
        while bytes_left > 0 and (content := self.rfile.read1(65_536)):
            bytes_left -= len(content)

    def _answer(self, status: int, text: str = "", **headers: str) -> None:
        content = jsontext.dumps({"error": text}).encode() if text else b""
        self.send_response(status)
        for name, value in {"Connection": "close", **headers}.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """The receiver reports what matters."""


class _Unacceptable(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
