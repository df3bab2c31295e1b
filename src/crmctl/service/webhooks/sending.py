"""One delivery attempt over HTTP: to the vetted address only, no redirects, one time limit for all of it.

The service's only importer of httpx.
"""

from __future__ import annotations

import ipaddress
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import httpx

from crmctl import __version__
from crmctl.clock import Clock
from crmctl.models.signatures import sign
from crmctl.service.store.deliveries import Attempt, Due
from crmctl.service.webhooks.guard import ForbiddenTargetError, Target, TargetGuard, UnresolvableTargetError

ATTEMPT_SECONDS = 15.0
"""For the whole try: looking up the name, connecting, sending, and the answer's last byte."""

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


class Sender:
    """Sends signed deliveries; thread-safe."""

    def __init__(self, guard: TargetGuard, clock: Clock, *, attempt_seconds: float = ATTEMPT_SECONDS) -> None:
        self._guard = guard
        self._clock = clock
        self._attempt_seconds = attempt_seconds

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
            reply = call(self._guard, due.url, headers, due.body, self._attempt_seconds)
            status, reply_headers, body = reply.status, dict(reply.headers), reply.body
        except CallFailedError as problem:
            error = str(problem)
        return Attempt(at, time.monotonic() - started, status, error, headers, reply_headers, body)


def call(guard: TargetGuard, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> Reply:
    """POST to an URL, if the guard lets it. Raises CallFailedError."""
    try:
        return post(guard.vet(url), headers, body, seconds)
    except (ForbiddenTargetError, UnresolvableTargetError) as problem:
        raise CallFailedError(str(problem)) from problem
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as problem:
        raise CallFailedError(f"{type(problem).__name__}: {problem}") from problem


def post(target: Target, headers: Mapping[str, str], body: bytes, seconds: float) -> Reply:
    """POST to the vetted address under its own name. Raises httpx.HTTPError for everything that is no answer."""
    deadline = time.monotonic() + seconds
    literal = ipaddress.ip_address(target.address.partition("%")[0])
    address = f"[{target.address}]" if literal.version == 6 else target.address
    host = f"[{target.host}]" if ":" in target.host else target.host
    is_usual_port = target.port == {"https": 443, "http": 80}[target.scheme]
    named = {**headers, "host": host if is_usual_port else f"{host}:{target.port}"}
    with httpx.Client(timeout=seconds, trust_env=False, follow_redirects=False, verify=_trusted()) as client:
        request = client.build_request(
            "POST",
            f"{target.scheme}://{address}:{target.port}{target.path}",
            headers=named,
            content=body,
            extensions={"sni_hostname": target.host} if target.scheme == "https" else {},
        )
        answer = client.send(request, stream=True)
        try:
            return Reply(answer.status_code, dict(answer.headers), _start_of_body(answer, deadline))
        finally:
            answer.close()


@cache
def _trusted() -> ssl.SSLContext:
    # Reading the certificates takes longer than the rest of a try.
    return httpx.create_ssl_context(trust_env=False)


def _start_of_body(answer: httpx.Response, deadline: float) -> str:
    received = b""
    for chunk in answer.iter_raw():
        received += chunk
        if len(received) > KEPT_BODY:
            break
        if time.monotonic() > deadline:
            raise httpx.ReadTimeout("the answer did not end in time")
    return received[:KEPT_BODY].decode("utf-8", "replace")
