"""One HTTP exchange with a vetted address. The only importer of httpcore, which takes long to import: the first call loads it."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping

import httpcore

from crmctl.errors import reason
from crmctl.frozen import frozen
from crmctl.service.outbound.guard import CallFailedError, ForbiddenTargetError, TargetGuard, VettedAddress

MOST_HEAD = 100 * 1024
"""Most bytes before the body of an answer, interim answers such as 100 Continue included."""

PIECE = 8 * 1024
"""Most bytes of one write, which the system takes at once."""


class _Stream(httpcore.NetworkStream):
    """A connection whose every step ends at the deadline, on the monotonic clock. `is_answered` lifts the limit of MOST_HEAD."""

    def __init__(self, inner: httpcore.NetworkStream, deadline: float) -> None:
        self._inner = inner
        self._deadline = deadline
        self._received = 0
        self.is_answered = False

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        self._inner = self._inner.start_tls(ssl_context, server_hostname, _left(self._deadline, httpcore.ConnectTimeout))
        return self

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if not self.is_answered and self._received > MOST_HEAD:
            raise httpcore.RemoteProtocolError(f"more than {MOST_HEAD:,} bytes came before the body of an answer")
        data = self._inner.read(max_bytes, _left(self._deadline, httpcore.ReadTimeout))
        self._received += len(data)
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), PIECE):
            self._inner.write(buffer[start : start + PIECE], _left(self._deadline, httpcore.WriteTimeout))

    def close(self) -> None:
        self._inner.close()

    def get_extra_info(self, info: str) -> object:
        return self._inner.get_extra_info(info)


class _Backend(httpcore.SyncBackend):
    """Connects to the vetted address, whatever the name, for one attempt."""

    def __init__(self, address: str, deadline: float) -> None:
        self._address = address
        self._deadline = deadline
        self.stream: _Stream | None = None

    def connect_tcp(self, host: str, port: int, *_: object, **_more: object) -> httpcore.NetworkStream:
        inner = super().connect_tcp(self._address, port, _left(self._deadline, httpcore.ConnectTimeout), socket_options=())
        self.stream = _Stream(inner, self._deadline)
        return self.stream


def _left(deadline: float, late: type[Exception]) -> float:
    seconds_left = deadline - time.monotonic()
    if seconds_left <= 0:
        raise late
    return seconds_left


@frozen
class VettedExchange:
    """A request and its answer within `seconds`, at an address that the guard allows."""

    guard: TargetGuard
    trusted: Callable[[], ssl.SSLContext]
    seconds: float

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes, most: int) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers, and the first `most` bytes of the body. Raises CallFailedError, also when the time is over."""
        received, deadline = b"", time.monotonic() + self.seconds
        try:
            target = self.guard.vet(url, self.seconds)
            own = {"host": _host_header(target), "connection": "close"}
            sent = [(name.encode("ascii"), value.encode("ascii")) for name, value in {**headers, **own}.items()]
            address = httpcore.URL(scheme=target.scheme.encode(), host=target.host.encode(), port=target.port, target=target.path.encode())
            backend = _Backend(target.address, deadline)
            authorities = self.trusted() if target.scheme == "https" else None
            with (
                httpcore.ConnectionPool(ssl_context=authorities, network_backend=backend) as pool,
                pool.stream(method, address, headers=sent, content=body) as response,
            ):
                if backend.stream is not None:
                    backend.stream.is_answered = True
                for piece in response.iter_stream():
                    received += piece
                    if len(received) >= most:
                        break
            answered = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
            return response.status, answered, received[:most]
        except ForbiddenTargetError as problem:
            raise CallFailedError(str(problem)) from problem
        except httpcore.TimeoutException as problem:
            raise CallFailedError(f"{type(problem).__name__}: not done within {self.seconds:g} seconds") from problem
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError, ValueError) as problem:
            raise CallFailedError(f"{type(problem).__name__}: {_why(problem)}") from problem


def _why(problem: Exception) -> str:
    """Return why a connection failed, which httpcore says as the error of a socket."""
    cause = problem.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the certificate is refused: {cause.verify_message}"
    return reason(cause if isinstance(cause, OSError) else problem)


def _host_header(target: VettedAddress) -> str:
    host = f"[{target.host}]" if ":" in target.host else target.host
    return host if target.port == {"https": 443, "http": 80}[target.scheme] else f"{host}:{target.port}"
