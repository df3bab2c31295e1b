"""The connection of one attempt: to the vetted address whatever the name, and every wait on it is cut by one deadline."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import httpcore

from crmctl.errors import reason


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


class PinnedBackend(httpcore.NetworkBackend):
    """Connects to one address, whichever host is asked for; the host stays the one that is spoken to, TLS included."""

    def __init__(self, address: str, deadline: Deadline) -> None:
        self._address = address
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        with _named(self._deadline, httpcore.ConnectTimeout, httpcore.ConnectError):
            connected = socket.create_connection((self._address, port), self._deadline.left())
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return _Stream(connected, self._deadline)


class _Stream(httpcore.NetworkStream):
    """The timeouts it is given are for single waits, which a peer can have any number of: the deadline stands in for them."""

    def __init__(self, connected: socket.socket, deadline: Deadline) -> None:
        self._socket = connected
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with _named(self._deadline, httpcore.ReadTimeout, httpcore.ReadError):
            self._socket.settimeout(self._deadline.left())
            return self._socket.recv(max_bytes)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        with _named(self._deadline, httpcore.WriteTimeout, httpcore.WriteError):
            remaining = memoryview(buffer)
            while remaining:
                self._socket.settimeout(self._deadline.left())
                remaining = remaining[self._socket.send(remaining) :]

    def close(self) -> None:
        self._socket.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        try:
            with _named(self._deadline, httpcore.ConnectTimeout, httpcore.ConnectError):
                self._socket.settimeout(self._deadline.left())
                return _Stream(ssl_context.wrap_socket(self._socket, server_hostname=server_hostname), self._deadline)
        except BaseException:
            self.close()
            raise

    def get_extra_info(self, info: str) -> object:
        return None


@contextmanager
def _named(deadline: Deadline, late: type[Exception], broken: type[Exception]) -> Iterator[None]:
    """Failures of sockets as httpcore names them."""
    try:
        yield
    except TimeoutError:
        raise late(f"not done within {deadline.seconds:g} seconds") from None
    except ssl.SSLCertVerificationError as error:
        raise broken(f"the certificate is refused: {error.verify_message}") from error
    except OSError as error:
        raise broken(reason(error)) from error
