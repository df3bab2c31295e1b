"""Connections to services and proxies, one HTTP exchange at a time, and what their failures mean. Only requests import it."""

from __future__ import annotations

import os
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from crmctl.client.bodies import ANONYMOUS, Request, Response, read_body
from crmctl.config.settings import origin_of
from crmctl.errors import ConfigError, CrmctlError, NetworkError, ServiceError, UsageError, reason

_UNUSED: dict[str, Any] = dict.fromkeys(name for name in ("trio", "anyio") if name not in sys.modules)
"""Optional imports of httpcore: asynchronous libraries, which take longer than the rest."""

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

_OWN_HEADERS = (("Accept-Encoding", "gzip"), ("Connection", "keep-alive"))

VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables in which other programs find a certificate bundle, in order of precedence."""


def trust(ca_bundle: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> ssl.SSLContext:
    """Return the trust from `--ca-bundle`, else the usual variables, else the system's store, else the bundled list. Raises ConfigError for
    an unreadable bundle."""
    sources = [("--ca-bundle", ca_bundle), *((name, environ.get(name)) for name in VARIABLES)]
    for source, bundle in sources:
        if bundle:
            try:
                is_folder = Path(bundle).is_dir()
                return ssl.create_default_context(capath=str(bundle)) if is_folder else ssl.create_default_context(cafile=str(bundle))
            except OSError as error:
                problem, hint = f"cannot read the CA bundle {bundle}: {reason(error)}", f"{source} takes a PEM file or a directory"
                raise ConfigError(problem, code="ca_bundle", hint=hint) from error
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if not context.get_ca_certs() and not paths.cafile and not paths.capath:
        import certifi

        context.load_verify_locations(certifi.where())
    return context


def send_once(request: Request, *, ca_bundle: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> Response:
    """Send a request over a connection of its own. Raises NetworkError, or ServiceError for an answer that is not HTTP."""
    with closing(HttpTransport(ca_bundle=ca_bundle, environ=environ)) as transport:
        return transport.send(request)


class HttpTransport:
    """HTTP/1.1 with connection reuse; safe for several threads. Proxies come from the usual environment variables.

    Requests raise NetworkError, or ServiceError for an answer that is not HTTP, UsageError for headers that HTTP does not allow, and
    ConfigError for an address or a proxy that cannot be used; `outcome_unknown` means that bytes may have left.
    """

    def __init__(self, *, ca_bundle: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> None:
        self._ca_bundle = ca_bundle
        self._environ = os.environ if environ is None else environ
        self._pools: dict[str, httpcore.ConnectionPool] = {}
        """A pool of connections for each origin."""
        self._authorities: ssl.SSLContext | None = None
        self._lock = threading.Lock()

    def send(self, request: Request, body: Iterator[bytes] | None = None) -> Response:
        """Send a request; `body` replaces its own."""
        with self._exchange(request, body) as (status, headers, raw):
            return Response(status, headers, read_body(raw, headers, status))

    def download(self, url: str, take: Callable[[bytes], object], timeout: float) -> Response:
        """GET an address without the API key or redirects. The content of a 200 goes to `take`; other answers have their body."""
        with self._exchange(Request("GET", url, ANONYMOUS, timeout=timeout)) as (status, headers, raw):
            if status == 200 and "content-encoding" not in headers:
                for piece in raw:
                    take(piece)
                return Response(status, headers)
            response = Response(status, headers, read_body(raw, headers, status))
        if status == 200:
            take(response.body)
        return response

    def close(self) -> None:
        with self._lock:
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()

    @contextmanager
    def _exchange(self, request: Request, body: Iterator[bytes] | None = None) -> Iterator[tuple[int, dict[str, str], Iterator[bytes]]]:
        """Send a request; yield status and headers of the answer, and its body in pieces. Raises also for failures inside the context."""
        _progress.bytes_left = False
        limits = {"connect": min(request.timeout, CONNECT_TIMEOUT), "read": request.timeout, "write": request.timeout, "pool": None}
        try:
            address, origin = read_address(request.url)
            headers = [("Host", origin.partition("://")[2]), *_OWN_HEADERS, *request.headers]
            if body is None and (request.body or request.method in ("POST", "PUT", "PATCH")):
                headers.append(("Content-Length", str(len(request.body or b""))))
            sent = httpcore.Request(
                request.method,
                address,
                headers=[(name.encode("ascii"), value.encode("ascii")) for name, value in headers],
                content=request.body if body is None else body,
                extensions={"timeout": limits},
            )
            answer = self._pool(address, origin).handle_request(sent)
            try:
                stream = answer.extensions.get("network_stream")
                if isinstance(stream, _Stream):
                    stream.until = None  # the body has its own deadline
                yield answer.status, _joined(answer.headers), answer.iter_stream()
            finally:
                answer.close()
        except UnicodeEncodeError as error:
            raise _unsendable() from error
        except _FAILURES as error:
            raise _explain(error, _place(request.url), request.timeout) from error

    def _pool(self, address: httpcore.URL, origin: str) -> httpcore.ConnectionPool:
        with self._lock:
            if origin not in self._pools:
                if self._authorities is None and (self._ca_bundle or address.scheme == b"https"):
                    self._authorities = trust(self._ca_bundle, self._environ)
                self._pools[origin] = httpcore.ConnectionPool(
                    ssl_context=self._authorities,
                    proxy=_proxy_of(address),
                    max_connections=None,
                    max_keepalive_connections=20,
                    keepalive_expiry=KEEPALIVE_SECONDS,
                    network_backend=_Backend(),
                )
            return self._pools[origin]


def _joined(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers with names in lower case; values of one name are joined by commas."""
    joined: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name = raw_name.decode("ascii").lower()
        try:
            value = raw_value.decode()
        except UnicodeDecodeError:
            value = raw_value.decode("latin-1")
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined


def _proxy_of(address: httpcore.URL) -> httpcore.Proxy | None:
    """Return the proxy of the environment for this address. Raises ConfigError for one that cannot be used."""
    host = address.host.decode()
    proxies = getproxies()
    name = proxies.get(address.scheme.decode()) or proxies.get("all")
    if not name or proxy_bypass(host if ":" in host or address.port is None else f"{host}:{address.port}"):
        return None
    try:
        parts = urlsplit(name if "://" in name else f"http://{name}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it must be the address of an HTTP proxy")
        login = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
        return httpcore.Proxy(httpcore.URL(scheme=parts.scheme, host=parts.hostname, port=parts.port), login)
    except ValueError as error:
        raise ConfigError(
            f"the proxy of the environment cannot be used: {reason(error)}",
            code="proxy",
            hint="check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY; NO_PROXY names exceptions",
        ) from error


@lru_cache(maxsize=4)
def read_address(url: str) -> tuple[httpcore.URL, str]:
    """Return a URL, percent-encoded, and its origin; cached because an import sends a thousand requests to one address.

    Raises ConfigError.
    """
    try:
        parts = urlsplit(url)
        origin = urlsplit(origin_of(url))
        if parts.scheme not in ("http", "https") or not origin.hostname or not url.isprintable():
            raise ValueError("not an address of a web server")
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        encoded = re.sub(r"[^!-~]|%(?![0-9A-Fa-f]{2})", lambda match: quote(match[0], safe=""), target)
        return httpcore.URL(scheme=parts.scheme, host=origin.hostname, port=parts.port, target=encoded), origin.geturl()
    except ValueError as error:
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
