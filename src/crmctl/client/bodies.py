"""Requests and answers of HTTP, and bounded reading of their bodies. Sessions need them before they connect."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping

from crmctl.errors import ServiceError
from crmctl.frozen import frozen
from crmctl.version import __version__

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
