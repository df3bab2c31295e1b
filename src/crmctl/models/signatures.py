"""Webhook signatures as Standard Webhooks defines them (https://www.standardwebhooks.com): made by the service, checked by receivers.

Pure: no clock, no I/O. Header names in the standard's spelling and in Svix's older one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping

from crmctl.frozen import frozen

PREFIX = "whsec_"
TOLERANCE = 300.0
"""Seconds by which a signed timestamp may differ from the receiver's clock, as the published libraries have it."""


class SignatureError(ValueError):
    """A secret, headers or a signature that does not verify. The message names the reason."""


@frozen
class SignedHeaders:
    """The signed headers of a delivery."""

    id: str
    timestamp: str
    signatures: str

    def as_headers(self) -> dict[str, str]:
        return {"webhook-id": self.id, "webhook-timestamp": self.timestamp, "webhook-signature": self.signatures}


def new_secret() -> str:
    """Return a signing secret of 192 random bits, the size the standard recommends."""
    return PREFIX + base64.b64encode(secrets.token_bytes(24)).decode("ascii")


def key_of(secret: str) -> bytes:
    """Return the key inside a secret, with or without its `whsec_`. Raises SignatureError when it is not base64."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise SignatureError("the signing secret is not base64") from error
    if not key:
        raise SignatureError("the signing secret is empty")
    return key


def sign(secrets_in_use: list[str], message_id: str, timestamp: int, body: bytes) -> SignedHeaders:
    """Sign a body with every secret in use (two of them while a rotation lasts). `timestamp` is Unix seconds."""
    signatures = " ".join(f"v1,{_digest(key_of(secret), message_id, str(timestamp), body)}" for secret in secrets_in_use)
    return SignedHeaders(message_id, str(timestamp), signatures)


def read_headers(headers: Mapping[str, str]) -> SignedHeaders:
    """The signed headers under the standard's or Svix's names, whatever their case. Raises SignatureError naming what is missing."""
    lowered = {name.lower(): value for name, value in headers.items()}
    for family in ("webhook", "svix"):
        values = [lowered.get(f"{family}-{part}") for part in ("id", "timestamp", "signature")]
        if all(values):
            return SignedHeaders(*(str(value) for value in values))
    missing = [f"webhook-{part}" for part in ("id", "timestamp", "signature") if not lowered.get(f"webhook-{part}")]
    raise SignatureError(f"missing header {', '.join(missing)}")


def verify(secret: str, headers: SignedHeaders, body: bytes, now: float, tolerance: float = TOLERANCE) -> None:
    """Raise SignatureError unless one signature of the body fits and its timestamp is within `tolerance` seconds of `now`."""
    key = key_of(secret)
    try:
        age = now - int(headers.timestamp)
    except ValueError as error:
        raise SignatureError("the timestamp is not a number of seconds") from error
    if age > tolerance:
        raise SignatureError(f"the timestamp is {age:.0f} seconds old")
    if age < -tolerance:
        raise SignatureError(f"the timestamp is {-age:.0f} seconds in the future")
    expected = _digest(key, headers.id, headers.timestamp, body).encode("ascii")
    for candidate in headers.signatures.split():
        version, _, signature = candidate.partition(",")
        if version == "v1" and hmac.compare_digest(expected, signature.encode("utf-8", "surrogatepass")):
            return
    raise SignatureError("no signature fits the body and the secret")


def _digest(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    content = f"{message_id}.{timestamp}.".encode() + body
    return base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode("ascii")
