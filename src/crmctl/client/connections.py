"""Connections to services and proxies, and what their failures mean. The only importer of httpcore on the client's side."""

from __future__ import annotations

import os
import socket
import ssl
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from crmctl.errors import ConfigError, CrmctlError, NetworkError, ServiceError, UsageError, reason

if TYPE_CHECKING:
    from crmctl.client.transport import Request

_UNUSED: dict[str, Any] = dict.fromkeys(name for name in ("trio", "anyio") if name not in sys.modules)
"""Optional imports of httpcore for asynchronous programs, which take 80 ms."""

sys.modules.update(_UNUSED)
try:
    import httpcore
finally:
    for _name in _UNUSED:
        del sys.modules[_name]

CONNECT_TIMEOUT = 10.0
"""Most seconds to wait for a connection, whatever `--timeout` says."""

KEEPALIVE_SECONDS = 1.5
"""An idle connection is not reused after this time: servers close them after 2 s or more, which leaves a POST in doubt."""

_OWN_HEADERS = (("Accept-Encoding", "gzip, deflate"), ("Connection", "keep-alive"))
_DEFAULT_PORTS = {"http": 80, "https": 443}
_KEPT = "%/:?[]@!$&'()*+,;=~"
_FAILURES = (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, httpcore.ProxyError)


@dataclass(frozen=True)
class Address:
    """`place` is scheme and host, for messages: paths and queries may be signed. `host` is the Host header."""

    url: httpcore.URL
    place: str
    host: str


@lru_cache(maxsize=4)
def read_address(url: str) -> Address:
    """Parse a URL; cached because an import sends a thousand requests to one address. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("ascii" if url.isascii() else "idna")
        port = parts.port
        if parts.scheme not in _DEFAULT_PORTS or not host:
            raise ValueError("not an address of a web server")
    except ValueError as error:
        start, separator, rest = url.partition("://")
        place = f"{start}{separator}{rest.partition('/')[0].partition('?')[0].rpartition('@')[2]}"
        hint = "addresses look like https://crm.example.com"
        raise ConfigError(f"{place} is not an address that can be called", code="bad_address", hint=hint) from error
    shown = f"[{host.decode()}]" if b":" in host else host.decode()
    if port not in (None, _DEFAULT_PORTS[parts.scheme]):
        shown = f"{shown}:{port}"
    target = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_KEPT)
    parsed = httpcore.URL(scheme=parts.scheme.encode(), host=host, port=port, target=target.encode())
    return Address(parsed, f"{parts.scheme}://{shown}", shown)


def open_pool(address: Address, authorities: ssl.SSLContext | None) -> httpcore.ConnectionPool:
    """Return a pool for one place, through the proxy of the environment. Raises ConfigError for a proxy that cannot be used."""
    try:
        return httpcore.ConnectionPool(
            ssl_context=authorities,
            proxy=_proxy(address, authorities),
            max_connections=None,
            max_keepalive_connections=20,
            keepalive_expiry=KEEPALIVE_SECONDS,
            network_backend=_Backend(),
        )
    except ValueError as error:
        raise ConfigError(
            f"the proxy of the environment cannot be used: {reason(error)}",
            code="proxy",
            hint="check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY; NO_PROXY names exceptions",
        ) from error


def _proxy(address: Address, authorities: ssl.SSLContext | None) -> httpcore.Proxy | None:
    """Return the proxy of the environment or the system, None without one. Raises ValueError."""
    if sys.platform not in ("darwin", "win32") and not any(name.lower().endswith("_proxy") for name in os.environ):
        return None  # without importing urllib.request, which takes 20 ms
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    url = proxies.get(address.url.scheme.decode()) or proxies.get("all")
    if not url or any(proxy_bypass(name) for name in (address.host, address.url.host.decode())):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError(f"{parts.scheme} is not http or https")
    if not parts.hostname:
        raise ValueError("it has no host")
    server = httpcore.URL(scheme=parts.scheme, host=parts.hostname, port=parts.port or _DEFAULT_PORTS[parts.scheme], target="/")
    name = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
    return httpcore.Proxy(server, auth=name, ssl_context=authorities if parts.scheme == "https" else None)


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
        self._stream.write(buffer, timeout)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


@dataclass
class _Progress:
    """The progress of one exchange. A proxy's CONNECT is not the request itself."""

    bytes_left: bool = False
    is_answering: bool = False

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event == "http11.send_request_headers.started" and info["request"].method != b"CONNECT":
            self.bytes_left = True


@contextmanager
def exchange(
    pool: httpcore.ConnectionPool, address: Address, request: Request, body: Iterator[bytes] | None
) -> Iterator[tuple[int, Mapping[str, str], Iterable[bytes]]]:
    """Send a request and yield status, headers and body of the answer. `body` replaces the request's own.

    Raises NetworkError, ServiceError and UsageError, also for failures inside the context.
    """
    progress, timeout = _Progress(), request.timeout
    limits = {"connect": min(timeout, CONNECT_TIMEOUT), "read": timeout, "write": timeout}
    headers = [("Host", address.host), *_OWN_HEADERS, *request.headers]
    if body is None and (request.body is not None or request.method in ("POST", "PUT", "PATCH")):
        headers.append(("Content-Length", str(len(request.body or b""))))
    try:
        sent = httpcore.Request(
            request.method,
            address.url,
            headers=[(name.encode("ascii"), value.encode("ascii")) for name, value in headers],
            content=request.body if body is None else body,
            extensions={"timeout": limits, "trace": progress.trace},
        )
        response = pool.handle_request(sent)
        try:
            progress.is_answering = True
            stream = response.extensions.get("network_stream")
            if isinstance(stream, _Stream):
                stream.until = None  # the body has its own deadline
            yield response.status, _headers(response.headers), response.iter_stream()
        finally:
            response.close()
    except UnicodeEncodeError as error:
        raise _unsendable() from error
    except _FAILURES as error:
        raise _explain(error, address.place, timeout, progress) from error


def _headers(pairs: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by name in lower case. Values of repeated headers are joined."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in pairs:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("utf-8", "replace")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _unsendable() -> UsageError:
    # the exception's text may quote the header with the key
    return UsageError("the request cannot be sent: a header or the path holds characters that HTTP does not allow")


def _explain(error: Exception, place: str, timeout: float, progress: _Progress) -> CrmctlError:
    """Return the error that a failure of httpcore means."""
    causes = tuple(_causes(error))
    if isinstance(error, httpcore.LocalProtocolError):
        return _unsendable()
    malformed = isinstance(error, httpcore.RemoteProtocolError) and any(type(cause).__module__.startswith("h11") for cause in causes)
    if malformed and not progress.is_answering:
        return ServiceError(
            f"{place} sent an answer that is not readable HTTP",
            code="unreadable_answer",
            hint="does the base URL name the service itself?",
            outcome_unknown=progress.bytes_left,
        )
    code, message, way_out, transient = _network_failure(error, causes, place, timeout)
    return NetworkError(message, code=code, hint=way_out, retryable=transient, outcome_unknown=progress.bytes_left)


def _network_failure(error: Exception, causes: Sequence[BaseException], place: str, timeout: float) -> tuple[str, str, str | None, bool]:
    """Return code, message, hint, and whether the failure may pass by itself."""
    cause = _first(causes, ssl.SSLCertVerificationError)
    if cause is not None:
        untrusted = getattr(cause, "verify_message", "")
        hint = "--ca-bundle FILE names the certificates to trust"
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
