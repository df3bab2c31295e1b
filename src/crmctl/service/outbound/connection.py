"""The connection of one attempt: to the vetted address whatever the name, and every wait on it is cut by one deadline.

HTTP is h11's; failures have httpcore's names.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus

import h11
import httpcore

from crmctl.errors import reason

_AT_ONCE = 64 * 1024
_LARGEST_HEAD = 100 * 1024


class Deadline:
    """A moment by which everything must be done."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds until then, more than 0. Raises TimeoutError."""
        left = self._at - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class PinnedConnection:
    """To one address, whatever the name: who is spoken to, TLS included, is for whoever speaks."""

    def __init__(self, address: str, port: int, deadline: Deadline) -> None:
        self._deadline = deadline
        with _named(deadline, httpcore.ConnectTimeout, httpcore.ConnectError):
            self._socket = socket.create_connection((address, port), deadline.left())
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start_tls(self, authorities: ssl.SSLContext, host: str) -> None:
        with _named(self._deadline, httpcore.ConnectTimeout, httpcore.ConnectError):
            self._socket.settimeout(self._deadline.left())
            self._socket = authorities.wrap_socket(self._socket, server_hostname=host)

    def receive(self) -> bytes:
        with _named(self._deadline, httpcore.ReadTimeout, httpcore.ReadError):
            self._socket.settimeout(self._deadline.left())
            return self._socket.recv(_AT_ONCE)

    def send(self, data: bytes) -> None:
        with _named(self._deadline, httpcore.WriteTimeout, httpcore.WriteError):
            remaining = memoryview(data)
            while remaining:
                self._socket.settimeout(self._deadline.left())
                remaining = remaining[self._socket.send(remaining) :]

    def close(self) -> None:
        self._socket.close()


def exchange(connection: PinnedConnection, head: h11.Request, body: bytes, most: int) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Status and headers of the answer, and the first `most` bytes of its body. Raises h11.ProtocolError, and errors of httpcore."""
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LARGEST_HEAD)
    sent = [http.send(event) or b"" for event in (head, h11.Data(data=body), h11.EndOfMessage())]
    # Some answer and close before they have read everything.
    with suppress(httpcore.WriteError):
        connection.send(b"".join(sent))
    answer = _next_event(http, connection)
    while not isinstance(answer, h11.Response):
        if isinstance(answer, h11.InformationalResponse) and answer.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            break
        answer = _next_event(http, connection)
    received = b""
    while len(received) < most and isinstance(data := _next_event(http, connection), h11.Data):
        received += data.data
    return answer.status_code, list(answer.headers), received[:most]


def _next_event(http: h11.Connection, connection: PinnedConnection) -> object:
    while (event := http.next_event()) is h11.NEED_DATA:
        data = connection.receive()
        if not data and http.their_state is h11.SEND_RESPONSE:
            raise httpcore.RemoteProtocolError("Server disconnected without sending a response.")
        http.receive_data(data)
    return event


@contextmanager
def _named(deadline: Deadline, late: type[Exception], broken: type[Exception]) -> Iterator[None]:
    """Failures of sockets."""
    try:
        yield
    except TimeoutError:
        raise late(f"not done within {deadline.seconds:g} seconds") from None
    except ssl.SSLCertVerificationError as error:
        raise broken(f"the certificate is refused: {error.verify_message}") from error
    except OSError as error:
        raise broken(reason(error)) from error
