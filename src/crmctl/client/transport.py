"""One HTTP exchange over a socket."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING

from crmctl.errors import ConfigError, ServiceError, reason
from crmctl.frozen import frozen
from crmctl.version import __version__

if TYPE_CHECKING:
    import ssl

    import httpcore
    import httpx


VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables in which other programs find a certificate bundle, in order of precedence."""


def trust(ca_bundle: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> ssl.SSLContext:
    """Return the trust from `--ca-bundle`, else the usual variables, else the system's store, else the bundled list. Raises ConfigError for
    an unreadable bundle."""
    import ssl

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


MAX_ANSWER = 128 << 20
"""Most bytes of a decompressed answer: a page of 100 records of 1 MB each fits."""

_PIECE = 256 * 1024

_MEMBER = b"\x1f"
"""The first byte of a gzip member."""


def read_body(raw: Iterable[bytes], headers: Mapping[str, str], status: int, bound: int = MAX_ANSWER) -> bytes:
    """Return the decompressed body of an answer from `raw` pieces.

    Raises ServiceError `answer_too_large` for more than `bound` bytes (at once, by Content-Length, if possible), and `unreadable_answer`
    for an unrequested or broken encoding. The outcome of the request is then unknown.
    """
    encodings = [name for part in headers.get("content-encoding", "").split(",") if (name := part.strip().lower()) not in ("", "identity")]
    stated = headers.get("content-length", "")
    if not encodings and stated.isascii() and stated.isdigit() and len(stated) < 19 and int(stated) > bound:
        raise _too_large(bound, status)
    if encodings not in ([], ["gzip"], ["x-gzip"]):
        raise _unreadable(f"an answer compressed as {', '.join(encodings)[:80]}, which was not asked for", status, headers)
    body = bytearray()
    try:
        for piece in _unpacked(raw) if encodings else raw:
            if len(body) + len(piece) > bound:
                raise _too_large(bound, status)
            body += piece
    except zlib.error as error:
        raise _unreadable("an answer that is not gzip, as it says", status, headers) from error
    return bytes(body)


def _unpacked(raw: Iterable[bytes]) -> Iterator[bytes]:
    """Decompress the members of gzip in pieces of bounded size; ignore what follows them. Raises zlib.error."""
    inflater, is_empty = zlib.decompressobj(31), True
    for piece in raw:
        rest, is_empty = piece, is_empty and not piece
        while rest:
            if inflater.eof:
                if not rest.startswith(_MEMBER):
                    return
                inflater = zlib.decompressobj(31)
            if out := inflater.decompress(rest, _PIECE):
                yield out
            rest = inflater.unconsumed_tail or inflater.unused_data
    yield inflater.flush()
    if not inflater.eof and not is_empty:
        raise zlib.error("incomplete")


def _too_large(bound: int, status: int) -> ServiceError:
    return ServiceError(
        f"the answer is larger than {bound >> 20} MB, the most that is read of one",
        code="answer_too_large",
        status=status,
        hint="ask for less at a time: --limit, --filter",
        outcome_unknown=True,
    )


def _unreadable(what: str, status: int, headers: Mapping[str, str]) -> ServiceError:
    kind = headers.get("content-type", "no content type")
    return ServiceError(f"the service sent {what} (status {status}, {kind})", code="unreadable_answer", status=status, outcome_unknown=True)


@frozen
class Request:
    """`url` is complete and percent-encoded; `timeout` bounds, in seconds, connecting, the head of the answer, and its body, one by one."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    timeout: float = 30.0


@frozen
class Response:
    """Header names are lower case; the body is decompressed."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


USER_AGENT = f"crmctl/{__version__}"
ANONYMOUS = (("User-Agent", USER_AGENT), ("Accept", "*/*"))
"""Headers of requests to other addresses than the service's."""


def send_once(request: Request, *, ca_bundle: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> Response:
    """Send a request over a connection of its own. Raises NetworkError, or ServiceError for an answer that is not HTTP."""
    with closing(HttpTransport(ca_bundle=ca_bundle, environ=environ)) as transport:
        return transport.send(request)


class HttpTransport:
    """HTTP/1.1 with connection reuse; safe for several threads. Proxies come from the usual environment variables.

    Requests raise NetworkError, or ServiceError for an answer that is not HTTP; `outcome_unknown` means that bytes may have left.
    """

    def __init__(self, *, ca_bundle: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> None:
        self._ca_bundle = ca_bundle
        self._environ = os.environ if environ is None else environ
        self._clients: dict[str, httpx.Client] = {}
        self._lock = threading.Lock()

    def send(self, request: Request, body: Iterator[bytes] | None = None) -> Response:
        """Send a request; `body` replaces its own."""
        with self._exchange(request, body) as answer:
            headers = headers_of(answer)
            return Response(answer.status, headers, read_body(answer.iter_stream(), headers, answer.status))

    def download(self, url: str, take: Callable[[bytes], object], timeout: float) -> Response:
        """GET an address without the API key or redirects. The content of a 200 goes to `take`; other answers have their body."""
        with self._exchange(Request("GET", url, ANONYMOUS, timeout=timeout)) as answer:
            headers = headers_of(answer)
            if answer.status == 200 and "content-encoding" not in headers:
                for piece in answer.iter_stream():
                    take(piece)
                return Response(answer.status, headers)
            response = Response(answer.status, headers, read_body(answer.iter_stream(), headers, answer.status))
        if response.status == 200:
            take(response.body)
        return response

    def close(self) -> None:
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def _exchange(self, request: Request, body: Iterator[bytes] | None = None) -> AbstractContextManager[httpcore.Response]:
        """Send a request; the context is its answer, before the body is read."""
        from crmctl.client import http_exchange

        scheme = http_exchange.read_address(request.url).scheme
        with self._lock:
            if (client := self._clients.get(scheme)) is None:
                authorities = trust(self._ca_bundle, self._environ) if self._ca_bundle or scheme == "https" else None
                client = self._clients[scheme] = http_exchange.open_client(authorities)
        return http_exchange.exchange(client, request, body)


def headers_of(answer: httpcore.Response) -> dict[str, str]:
    """Return the headers of an answer with names in lower case; values of one name are joined by commas."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in answer.headers:
        name, value = raw_name.decode("ascii").lower(), _text(raw_value)
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
