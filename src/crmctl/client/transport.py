"""One HTTP exchange over a socket. The only importer of httpx."""

from __future__ import annotations

import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crmctl.errors import ConfigError, CrmctlError, NetworkError, ServiceError, UsageError, reason

if TYPE_CHECKING:
    import ssl

    import httpx


VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables in which other programs find a certificate bundle, in order of precedence."""


def trust(ca_bundle: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> ssl.SSLContext:
    """Return the trust from `--ca-bundle`, else the usual variables, else the system's store, else the bundled list. Raises ConfigError for
    an unreadable bundle."""
    import ssl

    bundle = ca_bundle or next((environ[name] for name in VARIABLES if environ.get(name)), None)
    if bundle:
        return _trust_only(Path(bundle))
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if not context.get_ca_certs() and not paths.cafile and not paths.capath:
        import certifi

        context.load_verify_locations(certifi.where())
    return context


def trust_nobody() -> ssl.SSLContext:
    """Return an empty trust for plain http: reading a certificate store takes longer than a request to a local service."""
    import ssl

    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _trust_only(path: Path) -> ssl.SSLContext:
    import ssl

    try:
        if path.is_dir():
            return ssl.create_default_context(capath=str(path))
        return ssl.create_default_context(cafile=str(path))
    except OSError as error:
        raise ConfigError(
            f"cannot read the CA bundle {path}: {reason(error)}",
            code="ca_bundle",
            hint="--ca-bundle takes a PEM file or a directory",
        ) from error


MAX_ANSWER_MB = 128
"""Most MB of a decompressed answer: a page of 100 records of 1 MB each fits."""

VARIABLE = "CRMCTL_MAX_ANSWER_MB"

_PIECE = 256 * 1024
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


def answer_bound(environ: Mapping[str, str]) -> int:
    """Return the bound in bytes. Raises ConfigError for a setting that is not a natural number."""
    text = environ.get(VARIABLE, "").strip()
    if not text:
        return MAX_ANSWER_MB << 20
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:9]) <= 1 << 20 or len(text) > 9:
        raise ConfigError(f"{VARIABLE} must be a number of MB from 1 to {1 << 20}, not {text!r}")
    return int(text) << 20


def read_body(raw: Iterable[bytes], headers: Mapping[str, str], bound: int, status: int, in_time: Callable[[], None]) -> bytes:
    """Return the decompressed body of an answer from `raw` pieces; `in_time` is called with every piece.

    Raises ServiceError `answer_too_large` for more than `bound` bytes (at once, by Content-Length, if possible), and `unreadable_answer`
    for an unrequested or broken encoding. The outcome of the request is then unknown.
    """
    encodings = [name for part in headers.get("content-encoding", "").split(",") if (name := part.strip().lower()) not in ("", "identity")]
    stated = headers.get("content-length", "")
    if not encodings and stated.isascii() and stated.isdigit() and len(stated) < 19 and int(stated) > bound:
        raise _too_large(bound, status)
    if len(encodings) > 1 or any(name not in _WINDOWS for name in encodings):
        raise _unreadable(f"an answer compressed as {', '.join(encodings)[:80]}, which was not asked for", status)
    body, timely = bytearray(), _timely(raw, in_time)
    try:
        for piece in _inflated(timely, encodings[0]) if encodings else timely:
            if len(body) + len(piece) > bound:
                raise _too_large(bound, status)
            body += piece
    except zlib.error as error:
        raise _unreadable(f"an answer that is not {encodings[0]}, as it says", status) from error
    return bytes(body)


def _timely(raw: Iterable[bytes], in_time: Callable[[], None]) -> Iterator[bytes]:
    for piece in raw:
        yield piece
        in_time()


def _inflated(raw: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Decompress in pieces of bounded size. Raises zlib.error."""
    pieces, start = iter(raw), b""
    while len(start) < 2 and (piece := next(pieces, None)) is not None:
        start += piece
    if not start:
        return
    # some servers omit the two header bytes of deflate, whose sum 31 divides
    bare = encoding == "deflate" and (start[0] & 15 != 8 or int.from_bytes(start[:2], "big") % 31)
    inflater = zlib.decompressobj(-15 if bare else _WINDOWS[encoding])
    for piece in chain([start], pieces):
        rest = piece
        while rest and not inflater.eof:
            if out := inflater.decompress(rest, _PIECE):
                yield out
            rest = inflater.unconsumed_tail
    yield inflater.flush()
    if not inflater.eof:
        raise zlib.error("incomplete")


def _too_large(bound: int, status: int) -> ServiceError:
    return ServiceError(
        f"the answer is larger than {bound >> 20} MB, the most that is read of one",
        code="answer_too_large",
        status=status,
        hint=f"ask for less at a time (--limit, --filter), or allow more: {VARIABLE}={(bound >> 20) * 4}",
        outcome_unknown=True,
    )


def _unreadable(what: str, status: int) -> ServiceError:
    return ServiceError(f"the service sent {what}", code="unreadable_answer", status=status, outcome_unknown=True)


CONNECT_TIMEOUT = 10.0
"""Most seconds to wait for a connection, whatever `--timeout` says."""

KEEPALIVE_SECONDS = 1.5
"""An idle connection is not reused after this time: servers close them after 2 s or more, which leaves a POST in doubt."""


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


class HttpxTransport:
    """HTTP/1.1 with connection reuse; safe for several threads. Proxies come from the usual environment variables.

    Requests raise NetworkError, or ServiceError for an answer that is not HTTP; `outcome_unknown` means that bytes may have left.
    """

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
        """PUT a file to a signed URL, without the API key or redirects."""
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
            # Half the time of `client.send`, without its redirects, cookies and authentication.
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
        """Return the client of the URL's scheme."""
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
    """Parse a URL; cached because an import sends a thousand requests to one address. Raises httpx.InvalidURL."""
    import httpx

    return httpx.URL(url)


_OWN_HEADERS = (("Accept-Encoding", "gzip, deflate"), ("Connection", "keep-alive"))

_importing = threading.Lock()
_UNUSED = ("httpx._main", "trio", "anyio")
"""Optional imports of httpx and httpcore: a command line (35 ms) and the asynchronous libraries (80 ms). Modules that are already imported
stay."""


def prepare_httpx() -> None:
    """Import httpx without its optional imports."""
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
    """The progress of one exchange. A proxy's CONNECT is not the request itself."""

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
        # A body that drips byte by byte keeps within each read's limit, but must not hold the program for ever.
        if time.monotonic() > deadline:
            raise httpx.ReadTimeout("the body did not end")

    # httpx's own decoders decompress everything that arrived at once.
    return read_body(answer.iter_raw(), answer.headers, bound, answer.status_code, in_time)


def _explain(error: Exception, url: str, timeout: float, progress: _Progress) -> CrmctlError:
    """Return the NetworkError or ServiceError for an error of httpx."""
    import httpx

    place = _place(url)
    causes = tuple(_causes(error))
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        hint = "addresses look like https://crm.example.com"
        return ConfigError(f"{place} is not an address that can be called", code="bad_address", hint=hint)
    if isinstance(error, httpx.LocalProtocolError):
        # the exception's text may quote the header with the key
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
    """Return code, message, hint, and whether the failure may pass by itself."""
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
    """Yield the error and its causes, outermost first."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _first(causes: Sequence[BaseException], kind: type[BaseException]) -> BaseException | None:
    return next((cause for cause in causes if isinstance(cause, kind)), None)


def _place(url: str) -> str:
    """Return scheme and host for messages, without path and query, which may be signed."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.partition('/')[0].partition('?')[0].rpartition('@')[2]}"
