"""One attempt over HTTP: to the vetted address only, no redirects, one deadline for all of it.

The service's only importer of httpx; of h11 and httpcore, which it is made of, `connection` knows too.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache

import h11
import httpcore
import httpx

from crmctl.clock import Clock
from crmctl.models.signatures import sign
from crmctl.service.outbound.connection import Deadline, PinnedConnection, exchange
from crmctl.service.outbound.guard import ForbiddenTargetError, TargetGuard, VettedAddress
from crmctl.service.outbound.lookup import UnresolvableTargetError
from crmctl.service.store.delivery_claims import Attempt, Due
from crmctl.version import __version__

ATTEMPT_SECONDS = 15.0
"""For the whole try: looking up the name, connecting, TLS, sending, and the answer's last byte."""

KEPT_BODY = 16 * 1024
"""Bytes of a receiver's answer that the history keeps."""

USER_AGENT = f"crmctl-service/{__version__}"


@dataclass(frozen=True)
class Reply:
    """A receiver's answer, its body cut to what the history keeps."""

    status: int
    headers: Mapping[str, str]
    body: str


class CallFailedError(Exception):
    """There was no answer, or the address must not be called; the text says why. Unless it was refused, the call may have arrived."""


@cache
def trusted_authorities() -> ssl.SSLContext:
    """Of `SSL_CERT_FILE` or `SSL_CERT_DIR` where one is set, else the usual ones."""
    # Reading the certificates takes longer than the rest of a try.
    context = httpx.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


@dataclass(frozen=True)
class Caller:
    """POSTs to addresses that the guard lets through; thread-safe. `seconds` are for each call as a whole."""

    guard: TargetGuard
    seconds: float = ATTEMPT_SECONDS
    trusted: Callable[[], ssl.SSLContext] = trusted_authorities

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """The answer, whatever its status. Raises CallFailedError."""
        deadline = Deadline(self.seconds)
        try:
            return self._post(self.guard.vet(url, deadline.left()), headers, body, deadline)
        except (ForbiddenTargetError, UnresolvableTargetError) as problem:
            raise CallFailedError(str(problem)) from problem
        except (
            httpcore.TimeoutException,
            httpcore.NetworkError,
            httpcore.ProtocolError,
            h11.ProtocolError,
            OSError,
            ValueError,
        ) as problem:
            raise CallFailedError(f"{type(problem).__name__}: {problem}") from problem

    def _post(self, target: VettedAddress, headers: Mapping[str, str], body: bytes, deadline: Deadline) -> Reply:
        own = {"host": _host_header(target), "content-length": str(len(body)), "connection": "close"}
        sent = [(name.encode("ascii"), value.encode("ascii")) for name, value in {**headers, **own}.items()]
        head = h11.Request(method=b"POST", target=target.path.encode(), headers=sent)
        with closing(PinnedConnection(target.address, target.port, deadline)) as connection:
            if target.scheme == "https":
                connection.start_tls(self.trusted(), target.host)
            status, answered, start = exchange(connection, head, body, KEPT_BODY)
        received = {name.decode("latin-1"): value.decode("latin-1") for name, value in answered}
        return Reply(status, received, start.decode("utf-8", "replace"))


class OutboundCaller:
    """Sends signed deliveries; thread-safe."""

    def __init__(self, caller: Caller, clock: Clock, tell: Callable[[Due, Attempt], None] = lambda _due, _attempt: None) -> None:
        """`tell` is told of every try."""
        self._caller = caller
        self._clock = clock
        self._tell = tell

    def send(self, due: Due) -> Attempt:
        """One try. Never raises: what went wrong is in the attempt."""
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
        attempt = Attempt(at, time.monotonic() - started, status, error, headers, reply_headers, body)
        self._tell(due, attempt)
        return attempt


def _host_header(target: VettedAddress) -> str:
    host = f"[{target.host}]" if ":" in target.host else target.host
    return host if target.port == {"https": 443, "http": 80}[target.scheme] else f"{host}:{target.port}"
