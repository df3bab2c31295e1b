"""Connections to services and proxies, and what their failures mean. The only importer of httpx."""

from __future__ import annotations

import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from crmctl.errors import ConfigError, CrmctlError, NetworkError, ServiceError, UsageError, reason

if TYPE_CHECKING:
    from crmctl.client.transport import Request

_UNUSED: dict[str, Any] = dict.fromkeys(name for name in ("httpx._main", "trio", "anyio") if name not in sys.modules)
"""Optional imports of httpx and httpcore: a command line (35 ms) and the asynchronous libraries (80 ms)."""

sys.modules.update(_UNUSED)
try:
    import httpcore
    import httpx
finally:
    for _name in _UNUSED:
        del sys.modules[_name]

CONNECT_TIMEOUT = 10.0
"""Most seconds to wait for a connection, whatever `--timeout` says."""

KEEPALIVE_SECONDS = 1.5
"""An idle connection is not reused after this time: servers close them after 2 s or more, which leaves a POST in doubt."""

_OWN_HEADERS = (("Accept-Encoding", "gzip"), ("Connection", "keep-alive"))


def open_client(authorities: ssl.SSLContext | None) -> httpx.Client:
    """Return a client that uses the proxies of the environment; without authorities it trusts nobody, which suffices for plain http.

    Raises ConfigError for a proxy that cannot be used.
    """
    try:
        client = httpx.Client(
            verify=authorities or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=KEEPALIVE_SECONDS),
        )
    except (ValueError, ImportError, httpx.InvalidURL) as error:
        raise ConfigError(
            f"the proxy of the environment cannot be used: {reason(error)}",
            code="proxy",
            hint="check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY; NO_PROXY names exceptions",
        ) from error
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx.HTTPTransport):
            transport._pool._network_backend = _Backend()  # httpx has no public way to bound the time of an answer's head
    return client


@lru_cache(maxsize=4)
def read_address(url: str) -> httpx.URL:
    """Parse a URL; cached because an import sends a thousand requests to one address. Raises ConfigError."""
    try:
        address = httpx.URL(url)
        if address.scheme in ("http", "https") and address.host:
            return address
        raise httpx.InvalidURL("not an address of a web server")
    except httpx.InvalidURL as error:
        hint = "addresses look like https://crm.example.com"
        raise ConfigError(f"{_place(url)} is not an address that can be called", code="bad_address", hint=hint) from error


def _place(url: str) -> str:
    """Return scheme and host for messages, without path and query, which may be signed."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.partition('/')[0].partition('?')[0].rpartition('@')[2]}"


class _Backend(httpcore.NetworkBackend):
    def __init__(self) -> None:
        self._backend = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        return _Stream(self._backend.connect_tcp(host, port, timeout, local_address, socket_options))


class _Stream(httpcore.NetworkStream):
    """A connection with a deadline for each answer: a server that drips bytes must not hold the program for ever."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream
        self.until: float | None = None
        """The deadline, from the first read on."""

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        now = time.monotonic()
        if self.until is None:
            self.until = now + (timeout or CONNECT_TIMEOUT)
        if now >= self.until:
            raise httpcore.ReadTimeout("the answer did not end")
        return self._stream.read(max_bytes, self.until - now)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.until = None
        if buffer and not buffer.startswith(b"CONNECT "):  # a proxy's tunnel is not the request itself
            _progress.bytes_left = True
        self._stream.write(buffer, timeout)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Progress(threading.local):
    """The progress of this thread's exchange."""

    bytes_left: bool = False


_progress = _Progress()

OTHER_HOST = (62, 64)
"""OpenSSL's codes for a certificate of another host name or IP address."""

_FAILURES = (httpcore.ProtocolError, httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProxyError, httpcore.UnsupportedProtocol)


@contextmanager
def exchange(client: httpx.Client, request: Request, body: Iterator[bytes] | None) -> Iterator[httpcore.Response]:
    """Send a request and yield the answer before its body is read. `body` replaces the request's own.

    Raises NetworkError, ServiceError, UsageError and ConfigError, also for failures inside the context.
    """
    _progress.bytes_left = False
    connect = min(request.timeout, CONNECT_TIMEOUT)
    limits = {"connect": connect, "read": request.timeout, "write": request.timeout, "pool": None}
    try:
        address = read_address(request.url)
        transport = client._transport_for_url(address)
        assert isinstance(transport, httpx.HTTPTransport)
        # httpx picks the proxy; its own requests and answers would double the time, and their redirects and cookies are unwanted.
        answer = transport._pool.handle_request(
            httpcore.Request(
                request.method,
                httpcore.URL(scheme=address.raw_scheme, host=address.raw_host, port=address.port, target=address.raw_path),
                headers=_headers(request, address, sized=body is None),
                content=request.body if body is None else body,
                extensions={"timeout": limits},
            )
        )
        try:
            stream = answer.extensions.get("network_stream")
            if isinstance(stream, _Stream):
                stream.until = None  # the body has its own deadline
            yield answer
        finally:
            answer.close()
    except UnicodeEncodeError as error:
        raise _unsendable() from error
    except _FAILURES as error:
        raise _explain(error, _place(request.url), request.timeout) from error


def _headers(request: Request, address: httpx.URL, *, sized: bool) -> list[tuple[bytes, bytes]]:
    """Return the headers as sent. Raises UnicodeEncodeError for characters outside ASCII."""
    pairs = [("Host", address.netloc.decode("ascii")), *_OWN_HEADERS, *request.headers]
    if sized and (request.body or request.method in ("POST", "PUT", "PATCH")):
        pairs.append(("Content-Length", str(len(request.body or b""))))
    return [(name.encode("ascii"), value.encode("ascii")) for name, value in pairs]


def _unsendable() -> UsageError:
    # the exception's text may quote the header with the key
    return UsageError("the request cannot be sent: a header or the path holds characters that HTTP does not allow")


def _explain(error: Exception, place: str, timeout: float) -> CrmctlError:
    """Return the error that a failure of httpcore means."""
    causes = tuple(_causes(error))
    if isinstance(error, httpcore.LocalProtocolError):
        return _unsendable()
    malformed = isinstance(error, httpcore.RemoteProtocolError) and any(type(cause).__module__.startswith("h11") for cause in causes)
    if malformed and " closed connection" not in str(error):
        return ServiceError(
            f"{place} sent an answer that is not readable HTTP",
            code="unreadable_answer",
            hint="does the base URL name the service itself?",
            outcome_unknown=_progress.bytes_left,
        )
    code, message, way_out, transient = _network_failure(error, causes, place, timeout)
    return NetworkError(message, code=code, hint=way_out, retryable=transient, outcome_unknown=_progress.bytes_left)


def _network_failure(error: Exception, causes: Sequence[BaseException], place: str, timeout: float) -> tuple[str, str, str | None, bool]:
    """Return code, message, hint, and whether the failure may pass by itself."""
    cause = _first(causes, ssl.SSLCertVerificationError)
    if cause is not None:
        is_other = getattr(cause, "verify_code", 0) in OTHER_HOST
        hint = "the base URL must use a host name of the certificate" if is_other else "--ca-bundle FILE names the certificates to trust"
        untrusted = str(getattr(cause, "verify_message", "")).rstrip(".")
        return "tls", f"the certificate of {place} is not trusted: {untrusted}", hint, False
    if isinstance(error, httpcore.ConnectError) and _first(causes, ssl.SSLError):
        return "tls", f"no secure connection to {place}: {reason(error)}", "does the service speak https on this port?", False
    cause = _first(causes, socket.gaierror)
    if cause is not None:
        passing = getattr(cause, "errno", None) == socket.EAI_AGAIN
        return "dns", f"the host name of {place} cannot be found", "check the base URL, and the network", passing
    if isinstance(error, httpcore.ProxyError):
        return "proxy", f"the proxy on the way to {place} refused: {reason(error)}", "check HTTPS_PROXY and NO_PROXY", False
    if isinstance(error, httpcore.ConnectTimeout):
        return "timeout", f"no connection to {place} within {min(timeout, CONNECT_TIMEOUT):g} s", None, True
    if isinstance(error, httpcore.TimeoutException):
        return "timeout", f"{place} did not answer within {timeout:g} s", "--timeout SECONDS allows more", True
    if isinstance(error, httpcore.ConnectError):
        hint = "is the service running, and is the base URL right?"
        return "connection_failed", f"cannot connect to {place}: {reason(error)}", hint, True
    return "connection_lost", f"the connection to {place} was lost: {reason(error)}", None, True


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, outermost first."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _first(causes: Sequence[BaseException], kind: type[BaseException]) -> BaseException | None:
    return next((cause for cause in causes if isinstance(cause, kind)), None)
