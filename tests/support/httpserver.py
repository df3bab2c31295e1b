"""A scriptable HTTP server over real sockets: every request takes the next step of the script.

Unexpected requests and unused steps fail.

with ScriptedServer(Reply(json={"objects": []}), Reply(429, headers={"Retry-After": "1"}), Drop()) as server:
    ...
assert server.requests[0].path == "/api/v1/objects"
"""

from __future__ import annotations

import gzip
import json as jsonlib
import socket
import ssl
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from tests.support.patience import PATIENCE


@dataclass(frozen=True)
class Received:
    """One received request. `connection` numbers the connections from 0, which shows their reuse."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    connection: int

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> list[tuple[str, str]]:
        return parse_qsl(urlsplit(self.target).query, keep_blank_values=True)

    @property
    def json(self) -> Any:
        return jsonlib.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """One answer. `json`, `text` or `body` is its content; `expect` is the `METHOD /path` of the expected request.

    `cut` sends only this many bytes of the whole answer and then closes the connection (or resets it, with `reset`); `close` closes it
    unannounced after the answer; `hold` keeps it open and silent, after `cut` bytes, until the server stops.
    """

    status: int = 200
    json: Any = None
    text: str | None = None
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    expect: str | None = None
    content_type: str | None = None
    compress: bool = False
    chunked: bool = False
    cut: int | None = None
    reset: bool = False
    close: bool = False
    hold: bool = False
    raw: bytes | None = None

    def rendered(self) -> bytes:
        """Return the bytes on the wire."""
        if self.raw is not None:
            return self.raw
        body, kind = self._content()
        lines = {"Content-Type": kind} if kind else {}
        if self.compress:
            body = gzip.compress(body)
            lines["Content-Encoding"] = "gzip"
        if self.chunked:
            lines["Transfer-Encoding"] = "chunked"
            pieces = [body[at : at + 7] for at in range(0, len(body), 7)]
            body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        elif self.status != 204:
            lines["Content-Length"] = str(len(body))
        lines |= self.headers
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"HTTP/1.1 {self.status} Scripted\r\n{head}\r\n".encode("latin-1") + body

    def _content(self) -> tuple[bytes, str | None]:
        if self.json is not None:
            return jsonlib.dumps(self.json).encode(), self.content_type or "application/json"
        if self.text is not None:
            return self.text.encode(), self.content_type or "text/plain; charset=utf-8"
        return self.body, self.content_type


@dataclass(frozen=True)
class Drop(Reply):
    """Reads the request and closes the connection without an answer; `reset` sends a RST instead of a FIN."""

    cut: int | None = 0


@dataclass(frozen=True)
class Hang(Reply):
    """Reads the request and does not answer."""

    cut: int | None = 0
    hold: bool = True


class ScriptedServer:
    """Listens on a free port of 127.0.0.1 while it is a context manager; `tls` enables https."""

    def __init__(self, *script: Reply, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Received] = []
        self.problems: list[str] = []
        self._script = list(script)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._tls = tls
        self._threads: list[threading.Thread] = []
        self._closed: dict[int, threading.Event] = {}
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.origin = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stopping.set()
        with socket.create_connection(("127.0.0.1", self.port)):
            self._threads[0].join(PATIENCE)  # the connection wakes the accepting thread
        self._listener.close()
        with self._lock:
            sockets = list(self._sockets)
        for connection in sockets:
            _shut(connection)
        for thread in list(self._threads):
            thread.join(PATIENCE)
        if kind is None:
            assert not self.problems, self.problems
            assert not self._script, f"steps never used: {self._script}"

    def wait_closed(self, connection: int) -> None:
        """Wait until the server has closed its side of a connection."""
        assert self._closed[connection].wait(PATIENCE)

    def _start(self, work: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        number = 0
        while True:
            connection, _ = self._listener.accept()
            if self._stopping.is_set():
                connection.close()
                return
            with self._lock:
                self._sockets.append(connection)
            self._closed[number] = threading.Event()
            self._start(self._serve, connection, number)
            number += 1

    def _serve(self, connection: socket.socket, number: int) -> None:
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection, connection.makefile("rb") as stream:
                while (request := _read_request(stream, number)) is not None:
                    if not self._answer(connection, request):
                        return
        except (OSError, ValueError):
            return  # the client disconnected or does not speak HTTP, as some tests intend
        finally:
            self._closed[number].set()

    def _answer(self, connection: socket.socket, request: Received) -> bool:
        """Take the next step. Return whether the connection stays open."""
        with self._lock:
            self.requests.append(request)
            step = self._script.pop(0) if self._script else None
        asked = f"{request.method} {request.path}"
        if step is None or (step.expect is not None and step.expect != asked):
            self.problems.append(f"unexpected request {asked}, expected {step.expect if step else 'none'}")
            connection.sendall(Reply(599, text=self.problems[-1]).rendered())
            return True
        content = step.rendered()
        connection.sendall(content if step.cut is None else content[: step.cut])
        if step.hold:
            self._stopping.wait(PATIENCE)
        if step.reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if step.cut is not None or step.reset or step.close or step.hold:
            if not step.reset:
                _shut(connection)
            return False
        return True


def _read_request(stream: Any, connection: int) -> Received | None:
    line = stream.readline()
    if not line.strip():
        return None
    method, target, _ = line.decode("latin-1").split(" ", 2)
    headers: dict[str, str] = {}
    while (line := stream.readline().decode("latin-1").strip()) != "":
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    body = stream.read(int(headers.get("content-length", "0")))
    return Received(method, target, headers, body, connection)


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
