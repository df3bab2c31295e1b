"""A webhook receiver on a real socket: keeps what came, answers what it is told, may hang or cut the line."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True)
class Received:
    """One request: header names in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


Answer = Callable[[Received, int], int | None]
"""Status for the request, given how many came before it; None cuts the line."""


@dataclass
class Receiver:
    """`answer` decides the status; `received` lists the requests in order of arrival."""

    answer: Answer = lambda request, number: 200
    headers: dict[str, str] = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)
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
                for name, value in {"content-length": "2", "connection": "close", **receiver.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *arguments: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/hook"

    def wait_for(self, number: int, seconds: float = 20) -> list[Received]:
        """The requests so far, once there are that many."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.received) >= number, seconds), f"only {len(self.received)} of {number} arrived"
            return list(self.received)
