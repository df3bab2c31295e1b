"""One outgoing HTTP attempt with one deadline."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Mapping
from functools import cache

import certifi

from crmctl.frozen import frozen
from crmctl.models.signatures import sign
from crmctl.service.outbound.guard import ATTEMPT_SECONDS, USER_AGENT, CallFailedError, TargetGuard
from crmctl.service.store.webhooks import Attempt, Due

KEPT_BODY = 16 * 1024
"""Bytes of an answer's body that the history keeps."""

MOST_DOCUMENT = 256 * 1024
"""Most bytes of a document that `get` reads."""


@cache
def trusted_authorities() -> ssl.SSLContext:
    """Return the authorities of `SSL_CERT_FILE` or `SSL_CERT_DIR`, else the usual ones. Reading them is slow."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    return ssl.create_default_context(cafile=file or (None if folder else certifi.where()), capath=folder)


@frozen
class Caller:
    """POSTs to addresses that the guard allows; thread-safe. `seconds` limits a whole call."""

    guard: TargetGuard
    seconds: float = ATTEMPT_SECONDS
    trusted: Callable[[], ssl.SSLContext] = trusted_authorities

    def get(self, url: str) -> bytes:
        """Return the body of a 200. Raises CallFailedError, also for another status or more than MOST_DOCUMENT."""
        status, _, body = self._call("GET", url, {}, b"", MOST_DOCUMENT + 1)
        if status != 200 or len(body) > MOST_DOCUMENT:
            raise CallFailedError(f"status {status}" if status != 200 else "the answer is too large")
        return body

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str], str]:
        """Return the status, the headers and the first KEPT_BODY bytes of the answer. Raises CallFailedError."""
        status, answered, received = self._call("POST", url, {**headers, "content-length": str(len(body))}, body, KEPT_BODY)
        return status, answered, received.decode("utf-8", "replace")

    def send(self, due: Due, at: float) -> Attempt:
        """Try a signed delivery once. Never raises CallFailedError: the attempt holds the error."""
        started = time.monotonic()
        headers = {
            "content-type": "application/json",
            "user-agent": USER_AGENT,
            **sign(due.secrets, due.event_id, int(at), due.body).as_headers(),
            "webhook-event-type": due.event_type,
            "webhook-attempt": str(due.attempt),
        }
        status, error, answered, body = None, None, dict[str, str](), ""
        try:
            status, answered, body = self.post(due.url, headers, due.body)
        except CallFailedError as problem:
            error = str(problem)
        return Attempt(due, at, time.monotonic() - started, status, error, headers, answered, body)

    def _call(self, method: str, url: str, headers: Mapping[str, str], body: bytes, most: int) -> tuple[int, dict[str, str], bytes]:
        from crmctl.service.outbound.exchange import VettedExchange

        return VettedExchange(self.guard, self.trusted, self.seconds).send(method, url, headers, body, most)
