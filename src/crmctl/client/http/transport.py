"""One HTTP exchange over a socket: connections, TLS, proxies, time limits, and what a failure says about the outcome.

The only importer of httpx, and only when the first request is made. Retries, the key and the meaning of statuses belong to `session`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from crmctl.client.http.bodies import answer_bound, read_body
from crmctl.client.http.trust import trust, trust_nobody
from crmctl.errors import ConfigError, CrmctlError, NetworkError, ServiceError, UsageError, reason

if TYPE_CHECKING:
    import httpx

CONNECT_TIMEOUT = 10.0
"""Most seconds to wait for a connection, whatever `--timeout` allows for the answer."""

KEEPALIVE_SECONDS = 1.5
"""A connection idle for longer is not used again: servers close idle ones after 2 s or more, and a POST caught by that is in doubt."""


@dataclass(frozen=True)
class Request:
    """`url` is complete and percent-encoded; `timeout` bounds, in seconds, each wait for the service and the reading of the body."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    timeout: float = 30.0


@dataclass(frozen=True)
class Response:
    """Header names are lower case; the body is decompressed."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True)
class UploadBody:
    """The bytes of one file for a signed URL. `progress` is called with the number of bytes just sent."""

    url: str
    content: Iterable[bytes]
    length: int
    content_type: str
    timeout: float = 60.0
    progress: Callable[[int], None] | None = None


class Transport(Protocol):
    """Raises NetworkError, or ServiceError for an answer that is not HTTP; `outcome_unknown` in both says that bytes may have left."""

    def send(self, request: Request) -> Response: ...

    def upload(self, upload: UploadBody) -> Response:
        """PUT a file to a signed URL: no API key, no redirect."""
        ...

    def close(self) -> None: ...


class HttpxTransport:
    """HTTP/1.1 with connection reuse; safe for several threads. Proxies come from the usual environment variables."""

    def __init__(
        self, *, ca_bundle: str | os.PathLike[str] | None = None, user_agent: str = "crmctl", environ: Mapping[str, str] | None = None
    ) -> None:
        self._ca_bundle = ca_bundle
        self._user_agent = user_agent
        self._environ = os.environ if environ is None else environ
        self._bound = answer_bound(self._environ)
        self._clients: dict[str, httpx.Client] = {}
        self._lock = threading.Lock()

    def send(self, request: Request) -> Response:
        return self._exchange(request.method, request.url, request.headers, request.body, request.timeout)

    def upload(self, upload: UploadBody) -> Response:
        headers = (
            ("User-Agent", self._user_agent),
            ("Accept", "*/*"),
            ("Content-Type", upload.content_type),
            ("Content-Length", str(upload.length)),
        )
        return self._exchange("PUT", upload.url, headers, _reported(upload.content, upload.progress), upload.timeout)

    def close(self) -> None:
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def _exchange(
        self, method: str, url: str, headers: Iterable[tuple[str, str]], body: bytes | Iterator[bytes] | None, timeout: float
    ) -> Response:
        prepare_httpx()
        import httpx

        client = self._client(url)
        progress = _Progress()
        limits = httpx.Timeout(timeout, connect=min(timeout, CONNECT_TIMEOUT), pool=None)
        try:
            extensions = {"timeout": limits.as_dict(), "trace": progress.trace}
            request = httpx.Request(method, _parsed(url), headers=[*_OWN_HEADERS, *headers], content=body, extensions=extensions)
            # Half the time of `client.send`, whose redirects, cookies and authentication are not wanted.
            answer = client._transport_for_url(request.url).handle_request(request)
            try:
                progress.answering = True
                content = _read_body(answer, self._bound, timeout)
            finally:
                answer.close()
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise _explain(error, url, timeout, progress) from error
        return Response(answer.status_code, {name.lower(): value for name, value in answer.headers.items()}, content)

    def _client(self, url: str) -> httpx.Client:
        """One client per scheme."""
        scheme = url.partition(":")[0].lower()
        with self._lock:
            client = self._clients.get(scheme) or self._new_client(secure=scheme == "https")
            self._clients[scheme] = client
        return client

    def _new_client(self, *, secure: bool) -> httpx.Client:
        from http.cookiejar import CookieJar, DefaultCookiePolicy

        import httpx

        try:
            return httpx.Client(
                verify=trust(self._ca_bundle, self._environ) if secure or self._ca_bundle else trust_nobody(),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=KEEPALIVE_SECONDS),
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            )
        except (ValueError, ImportError, httpx.InvalidURL) as error:
            raise ConfigError(
                f"the proxy of the environment cannot be used: {reason(error)}",
                code="proxy",
                hint="check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY; NO_PROXY names exceptions",
            ) from error


@lru_cache(maxsize=4)
def _parsed(url: str) -> httpx.URL:
    """An import sends a thousand requests to one address. Raises httpx.InvalidURL."""
    import httpx

    return httpx.URL(url)


_OWN_HEADERS = (("Accept-Encoding", "gzip, deflate"), ("Connection", "keep-alive"))

_importing = threading.Lock()
_UNUSED = ("httpx._main", "trio", "anyio")
"""What httpx and httpcore import where it is installed, and do without where it is not: a command line (Click, rich and pygments, 35 ms)
and the asynchronous libraries (80 ms). A process that has one of them already keeps it."""


def prepare_httpx() -> None:
    """Import httpx without what only other programs need of it."""
    with _importing:
        if "httpx" in sys.modules:
            return
        absent: dict[str, Any] = dict.fromkeys(name for name in _UNUSED if name not in sys.modules)
        sys.modules.update(absent)
        try:
            import httpcore  # noqa: F401 - httpx would import it with its first client
            import httpx  # noqa: F401
        finally:
            for name in absent:
                del sys.modules[name]


class _Progress:
    """How far one exchange has come. A proxy's CONNECT is not yet our request."""

    def __init__(self) -> None:
        self.bytes_left = False
        self.answering = False

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event == "http11.send_request_headers.started" and info["request"].method != b"CONNECT":
            self.bytes_left = True


def _reported(content: Iterable[bytes], progress: Callable[[int], None] | None) -> Iterator[bytes]:
    for chunk in content:
        yield chunk
        if progress is not None:
            progress(len(chunk))


def _read_body(answer: httpx.Response, bound: int, timeout: float) -> bytes:
    import httpx

    deadline = time.monotonic() + timeout

    def in_time() -> None:
        # Each read has its own limit; a body that drips byte by byte must not hold the program for ever.
        if time.monotonic() > deadline:
            raise httpx.ReadTimeout("the body did not end")

    # Not httpx's own decoders: they decompress whatever arrived at once, and one after another.
    return read_body(answer.iter_raw(), answer.headers, bound, answer.status_code, in_time)


def _explain(error: Exception, url: str, timeout: float, progress: _Progress) -> CrmctlError:
    """The error of the contract for a failure inside httpx."""
    import httpx

    place = _place(url)
    causes = tuple(_causes(error))
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        hint = "addresses look like https://crm.example.com"
        return ConfigError(f"{place} is not an address that can be called", code="bad_address", hint=hint)
    if isinstance(error, httpx.LocalProtocolError):
        # The text of the exception may quote the header that holds the key.
        return UsageError("the request cannot be sent: a header or the path holds characters that HTTP does not allow")
    malformed = isinstance(error, httpx.RemoteProtocolError) and any(type(cause).__module__.startswith("h11") for cause in causes)
    if isinstance(error, httpx.DecodingError) or (malformed and not progress.answering):
        return ServiceError(
            f"{place} sent an answer that is not readable HTTP",
            code="unreadable_answer",
            hint="does the base URL name the service itself?",
            outcome_unknown=progress.bytes_left,
        )
    code, message, way_out, transient = _network_failure(error, causes, place, timeout)
    return NetworkError(message, code=code, hint=way_out, retryable=transient, outcome_unknown=progress.bytes_left)


def _network_failure(error: Exception, causes: Sequence[BaseException], place: str, timeout: float) -> tuple[str, str, str | None, bool]:
    """Code, message, hint, and whether the failure may pass by itself."""
    import socket
    import ssl

    import httpx

    cause = _first(causes, ssl.SSLCertVerificationError)
    if cause is not None:
        untrusted = getattr(cause, "verify_message", "")
        hint = "--ca-bundle FILE names the certificates to trust"
        return "tls", f"the certificate of {place} is not trusted: {untrusted}", hint, False
    if isinstance(error, httpx.ConnectError) and _first(causes, ssl.SSLError):
        return "tls", f"no secure connection to {place}: {reason(error)}", "does the service speak https on this port?", False
    cause = _first(causes, socket.gaierror)
    if cause is not None:
        passing = getattr(cause, "errno", None) == socket.EAI_AGAIN
        return "dns", f"the host name of {place} cannot be found", "check the base URL, and the network", passing
    if isinstance(error, httpx.ProxyError):
        return "proxy", f"the proxy on the way to {place} refused: {reason(error)}", "check HTTPS_PROXY and NO_PROXY", False
    if isinstance(error, httpx.ConnectTimeout):
        return "timeout", f"no connection to {place} within {min(timeout, CONNECT_TIMEOUT):g} s", None, True
    if isinstance(error, httpx.TimeoutException):
        return "timeout", f"{place} did not answer within {timeout:g} s", "--timeout SECONDS allows more", True
    if isinstance(error, httpx.ConnectError):
        hint = "is the service running, and is the base URL right?"
        return "connection_failed", f"cannot connect to {place}: {reason(error)}", hint, True
    return "connection_lost", f"the connection to {place} was lost: {reason(error)}", None, True


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from, outermost first."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _first(causes: Sequence[BaseException], kind: type[BaseException]) -> BaseException | None:
    return next((cause for cause in causes if isinstance(cause, kind)), None)


def _place(url: str) -> str:
    """Scheme and host for messages: never a path or query, which may be signed."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.partition('/')[0].partition('?')[0].rpartition('@')[2]}"
