"""Webhook receivers on real sockets: one keeps requests, answers as configured, may hang or break the connection; one sends raw bytes."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True)
class Received:
    """One request, header names in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


class _Server(ThreadingHTTPServer):
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: a client that refuses the certificate closes the connection."""


Answer = Callable[[Received, int], int | None]
"""Returns the status for the request, given the number of earlier ones; None breaks the connection."""


@dataclass
class Receiver:
    """`answer` decides the status, `body` follows it; `received` lists the requests in order of arrival. `tls` enables https.

    `names` lists the host names that clients asked for over TLS.
    """

    answer: Answer = lambda request, number: 200
    headers: dict[str, str] = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)
    body: bytes = b"ok"
    tls: ssl.SSLContext | None = None
    names: list[str | None] = field(default_factory=list)
    _arrived: threading.Condition = field(default_factory=threading.Condition)

    def __enter__(self) -> Self:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                request = Received(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
                with receiver._arrived:
                    number = len(receiver.received)
                    receiver.received.append(request)
                    receiver._arrived.notify_all()
                status = receiver.answer(request, number)
                self.close_connection = True
                if status is None:
                    return
                self.send_response(status)
                for name, value in {"content-length": str(len(receiver.body)), "connection": "close", **receiver.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(receiver.body)

            def log_message(self, *arguments: Any) -> None:
                """Log nothing."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if self.tls is not None:
            self.tls.sni_callback = lambda _socket, name, _context: self.names.append(name)
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}/hook"

    def wait_for(self, number: int, seconds: float = 20) -> list[Received]:
        """Wait until this many requests have arrived, and return them."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.received) >= number, seconds), f"only {len(self.received)} of {number} arrived"
            return list(self.received)


class ByteReceiver:
    """Passes each connection to `speak(connection, stopping)` on a thread. `accepted` counts them."""

    def __init__(self, speak: Callable[[socket.socket, threading.Event], None]) -> None:
        self._speak = speak
        self._stopping = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.accepted = 0
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/hook"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.accepted += 1
                thread = threading.Thread(target=self._serve, args=[connection], daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self._speak(connection, self._stopping)


SLOW_HANDSHAKE = (b"\x16\x03\x03\x40\x00", b"\x02")
"""The beginning of a TLS server's handshake, and the byte to repeat."""


def drip(start: bytes, drop: bytes, pause: float = 0.02) -> Callable[[socket.socket, threading.Event], None]:
    """Return a function that sends `start` at once, then `drop` every `pause` seconds, 500 times, and then closes the connection."""

    def speak(connection: socket.socket, stopping: threading.Event) -> None:
        connection.sendall(start)
        for _ in range(500):
            if stopping.wait(pause):
                return
            connection.sendall(drop)

    return speak
