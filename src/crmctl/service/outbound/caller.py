"""One outgoing HTTP attempt with one deadline."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import certifi
import httpcore

from crmctl.clock import Clock
from crmctl.errors import reason
from crmctl.models.signatures import sign
from crmctl.service.outbound.guard import (
    ATTEMPT_SECONDS,
    USER_AGENT,
    CallFailedError,
    ForbiddenTargetError,
    TargetGuard,
    UnresolvableTargetError,
    VettedAddress,
)
from crmctl.service.store.deliveries import Attempt, Due

MOST_HEAD = 100 * 1024
"""Most bytes before the body of an answer, interim answers such as 100 Continue included."""


class _Deadline:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds until then, more than 0. Raises TimeoutError."""
        left = self._at - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class _Backend(httpcore.NetworkBackend):
    """Connects to the vetted address, whatever the name, for one attempt."""

    def __init__(self, address: str, deadline: _Deadline) -> None:
        self._address = address
        self._deadline = deadline
        self.stream: _Stream | None = None

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
        self.stream = _Stream(connected, self._deadline)
        return self.stream


class _Stream(httpcore.NetworkStream):
    """A connection whose every step obeys the deadline. `is_answered` lifts the limit of MOST_HEAD."""

    def __init__(self, connected: socket.socket, deadline: _Deadline) -> None:
        self._socket = connected
        self._deadline = deadline
        self._received = 0
        self.is_answered = False

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        with _named(self._deadline, httpcore.ConnectTimeout, httpcore.ConnectError):
            self._socket.settimeout(self._deadline.left())
            self._socket = ssl_context.wrap_socket(self._socket, server_hostname=server_hostname)
        return self

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if not self.is_answered and self._received > MOST_HEAD:
            raise httpcore.RemoteProtocolError(f"more than {MOST_HEAD:,} bytes came before the body of an answer")
        with _named(self._deadline, httpcore.ReadTimeout, httpcore.ReadError):
            self._socket.settimeout(self._deadline.left())
            data = self._socket.recv(max_bytes)
        self._received += len(data)
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        with _named(self._deadline, httpcore.WriteTimeout, httpcore.WriteError):
            remaining = memoryview(buffer)
            while remaining:
                self._socket.settimeout(self._deadline.left())
                remaining = remaining[self._socket.send(remaining) :]

    def close(self) -> None:
        self._socket.close()

    def get_extra_info(self, info: str) -> object:
        return self._socket if info in ("socket", "ssl_object") and isinstance(self._socket, ssl.SSLSocket) else None


@contextmanager
def _named(deadline: _Deadline, late: type[Exception], broken: type[Exception]) -> Iterator[None]:
    """Turn the failures of sockets into httpcore's."""
    try:
        yield
    except TimeoutError:
        raise late(f"not done within {deadline.seconds:g} seconds") from None
    except ssl.SSLCertVerificationError as error:
        raise broken(f"the certificate is refused: {error.verify_message}") from error
    except OSError as error:
        raise broken(reason(error)) from error


KEPT_BODY = 16 * 1024
"""Bytes of an answer's body that the history keeps."""

MOST_DOCUMENT = 256 * 1024
"""Most bytes of a document that `get` reads."""


@dataclass(frozen=True)
class Reply:
    """A receiver's answer; the body is cut to KEPT_BODY."""

    status: int
    headers: Mapping[str, str]
    body: str


@cache
def trusted_authorities() -> ssl.SSLContext:
    """Return the authorities of `SSL_CERT_FILE` or `SSL_CERT_DIR`, else the usual ones. Reading them is slow."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    return ssl.create_default_context(cafile=file or (None if folder else certifi.where()), capath=folder)


@dataclass(frozen=True)
class Caller:
    """POSTs to addresses that the guard allows; thread-safe. `seconds` limits a whole call."""

    guard: TargetGuard
    seconds: float = ATTEMPT_SECONDS
    trusted: Callable[[], ssl.SSLContext] = trusted_authorities

    def get(self, url: str) -> bytes:
        """Return the body of a 200. Raises CallFailedError, also for another status or more than MOST_DOCUMENT."""
        status, _, body = self._call("GET", url, {}, b"", MOST_DOCUMENT + 1)
        if status != 200 or len(body) > MOST_DOCUMENT:
            raise CallFailedError(f"status {status}" if status != 200 else "the answer is too large")
        return body

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Return the answer, whatever its status. Raises CallFailedError."""
        status, answered, received = self._call("POST", url, {**headers, "content-length": str(len(body))}, body, KEPT_BODY)
        return Reply(status, answered, received.decode("utf-8", "replace"))

    def _call(self, method: str, url: str, headers: Mapping[str, str], body: bytes, most: int) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers, and the first bytes of the body. Raises CallFailedError."""
        deadline = _Deadline(self.seconds)
        try:
            return self._exchange(method, self.guard.vet(url, deadline.left()), headers, body, (deadline, most))
        except (ForbiddenTargetError, UnresolvableTargetError) as problem:
            raise CallFailedError(str(problem)) from problem
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, OSError, ValueError) as problem:
            raise CallFailedError(f"{type(problem).__name__}: {problem}") from problem

    def _exchange(
        self, method: str, target: VettedAddress, headers: Mapping[str, str], body: bytes, limits: tuple[_Deadline, int]
    ) -> tuple[int, dict[str, str], bytes]:
        own = {"host": _host_header(target), "connection": "close"}
        sent = [(name.encode("ascii"), value.encode("ascii")) for name, value in {**headers, **own}.items()]
        url = httpcore.URL(scheme=target.scheme.encode(), host=target.host.encode(), port=target.port, target=target.path.encode())
        (deadline, most), received = limits, b""
        backend = _Backend(target.address, deadline)
        authorities = self.trusted() if target.scheme == "https" else None
        with (
            httpcore.ConnectionPool(ssl_context=authorities, network_backend=backend) as pool,
            pool.stream(method, url, headers=sent, content=body) as response,
        ):
            if backend.stream is not None:
                backend.stream.is_answered = True
            for piece in response.iter_stream():
                received += piece
                if len(received) >= most:
                    break
        answered = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
        return response.status, answered, received[:most]


class OutboundCaller:
    """Sends signed deliveries; thread-safe."""

    def __init__(self, caller: Caller, clock: Clock) -> None:
        self._caller = caller
        self._clock = clock

    def send(self, due: Due) -> Attempt:
        """Try once. Never raises: the attempt holds the error."""
        at, started = self._clock.now(), time.monotonic()
        signed = sign(due.secrets, due.event_id, int(at), due.body).as_headers()
        headers = {
            "content-type": "application/json",
            "user-agent": USER_AGENT,
            **signed,
            "webhook-event-type": due.event_type,
            "webhook-attempt": str(due.attempt),
        }
        status, reply_headers, body, error = None, {}, "", None
        try:
            reply = self._caller.post(due.url, headers, due.body)
            status, reply_headers, body = reply.status, dict(reply.headers), reply.body
        except CallFailedError as problem:
            error = str(problem)
        return Attempt(at, time.monotonic() - started, status, error, headers, reply_headers, body)


def _host_header(target: VettedAddress) -> str:
    host = f"[{target.host}]" if ":" in target.host else target.host
    return host if target.port == {"https": 443, "http": 80}[target.scheme] else f"{host}:{target.port}"
