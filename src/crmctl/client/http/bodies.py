"""The body of an answer: read and decompressed piece by piece, and never more of it than the bound."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain

from crmctl.errors import ConfigError, ServiceError

MAX_ANSWER_MB = 128
"""Most MB of an answer, decompressed: a page of 100 records of 1 MB each fits, and no answer exhausts a machine."""

VARIABLE = "CRMCTL_MAX_ANSWER_MB"

_PIECE = 256 * 1024
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


def answer_bound(environ: Mapping[str, str]) -> int:
    """The bound in bytes. Raises ConfigError for a setting that is no whole number from 1 on."""
    text = environ.get(VARIABLE, "").strip()
    if not text:
        return MAX_ANSWER_MB << 20
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:9]) <= 1 << 20 or len(text) > 9:
        raise ConfigError(f"{VARIABLE} must be a number of MB from 1 to {1 << 20}, not {text!r}")
    return int(text) << 20


def read_body(raw: Iterable[bytes], headers: Mapping[str, str], bound: int, status: int, in_time: Callable[[], None]) -> bytes:
    """The decompressed body of an answer that comes as `raw` pieces; `in_time` is called with every one.

    Raises ServiceError `answer_too_large` for more than `bound` bytes (by its Content-Length, before any is read), and
    `unreadable_answer` for an encoding that was not asked for or does not hold; a request that was answered so may have been carried out.
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
    """Decompressed in pieces of bounded size, however much a few bytes stand for. Raises zlib.error."""
    pieces, start = iter(raw), b""
    while len(start) < 2 and (piece := next(pieces, None)) is not None:
        start += piece
    if not start:
        return
    # Some servers send the bare stream and call it deflate: without the two bytes before it, whose sum 31 divides.
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
