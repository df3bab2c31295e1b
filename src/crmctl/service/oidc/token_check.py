"""Check the identity token of another issuer by its public keys. The only importer of PyJWT."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from crmctl.errors import reason
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.store.oidc_trusts import Trust


class TokenRefused(Exception):
    """The message names the rule that failed. It goes to the audit log, never to the caller."""


KEPT_SECONDS = 3600.0
AGAIN_SECONDS = 60.0
"""An unknown key id reads the keys of its issuer again at most this often."""

Read = Callable[[str], bytes]
"""Returns the body of a GET; raises CallFailedError."""


class IssuerKeys:
    """Keeps the keys of each issuer for an hour; thread-safe."""

    def __init__(self, read: Read, monotonic: Callable[[], float]) -> None:
        self._read = read
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, list[Json]]] = {}

    def find(self, issuer: str, key_id: str) -> Json:
        with self._lock:
            at, keys = self._kept.get(issuer, (-KEPT_SECONDS, []))
            found = [key for key in keys if key.get("kid") == key_id]
            age = self._monotonic() - at
            if age >= KEPT_SECONDS or (not found and age >= AGAIN_SECONDS):
                # Noted before the reading, so that an issuer that does not answer is not asked again at once.
                self._kept[issuer] = (self._monotonic(), [] if age >= KEPT_SECONDS else keys)
                keys = self._fetch(issuer)
                self._kept[issuer] = (self._monotonic(), keys)
                found = [key for key in keys if key.get("kid") == key_id]
        if len(found) != 1:
            raise TokenRefused("the issuer has no key with this id")
        return found[0]

    def _fetch(self, issuer: str) -> list[Json]:
        from crmctl.service.outbound.guard import CallFailedError

        try:
            about = self._document(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            address = about.get("jwks_uri")
            if about.get("issuer") != issuer or not isinstance(address, str) or urlsplit(address).scheme != urlsplit(issuer).scheme:
                raise TokenRefused("the issuer's metadata does not fit it")
            keys = self._document(address).get("keys")
        except (CallFailedError, ValueError) as error:
            raise TokenRefused(f"the issuer's keys cannot be read: {reason(error)}") from error
        return [key for key in keys if isinstance(key, dict)] if isinstance(keys, list) else []

    def _document(self, address: str) -> Json:
        document: Any = jsontext.loads(self._read(address))
        return document if isinstance(document, dict) else {}


ALGORITHMS = {"RS256": "RSA", "ES256": "EC", "EdDSA": "OKP"}
"""The accepted signatures with the type of their keys."""

LEEWAY = 60
LONGEST = 16 * 1024
LATEST = 10**12
"""Times from here on are no Unix seconds."""

_UNCHECKED = {f"verify_{name}": False for name in ("exp", "nbf", "iat", "aud", "sub")}
_OPTIONS: Any = {"require": ["iss", "aud", "exp", "iat", "jti"], **_UNCHECKED}
"""PyJWT checks the signature and most claims, but times by the machine's clock, and an audience among others is enough for it."""


def check_token(
    token: str, audience: str, trusts: Sequence[Trust], keys: IssuerKeys, *, now: float
) -> tuple[Trust, float, Mapping[str, Any]]:
    """Return the trust that accepts a token, the end of the token in Unix seconds, and its claims, among them `jti`. Raises TokenRefused
    naming the rule that failed."""
    import jwt

    try:
        header = jwt.get_unverified_header(token)
        issuer = jwt.decode(token, options={"verify_signature": False}).get("iss")
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise TokenRefused("it is no signed token") from None
    if len(token) > LONGEST:
        raise TokenRefused("it is too long")
    candidates = [trust for trust in trusts if trust.issuer == issuer]
    if not candidates:
        raise TokenRefused("no trust names its issuer")
    algorithm = str(header.get("alg"))
    if algorithm not in ALGORITHMS or "crit" in header:
        raise TokenRefused("its algorithm is not accepted")
    key = keys.find(candidates[0].issuer, header.get("kid") or "")
    if key.get("kty") != ALGORITHMS[algorithm] or key.get("alg", algorithm) != algorithm or key.get("use", "sig") != "sig":
        raise TokenRefused("its key is for another algorithm")
    try:
        public = jwt.PyJWK(key, algorithm).key
        claims = jwt.decode(token, public, algorithms=[algorithm], issuer=candidates[0].issuer, options=_OPTIONS)
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise TokenRefused(reason(error)) from error
    if claims["aud"] not in (audience, [audience]):
        raise TokenRefused("its audience is another service")
    expires_at = _check_times(claims, now)
    problems = [trust.mismatch(claims) for trust in candidates]
    if None not in problems:
        raise TokenRefused("; ".join(map(str, problems)))
    return candidates[problems.index(None)], expires_at, claims


def _check_times(claims: Mapping[str, Any], now: float) -> float:
    """Return when the token ends, with the leeway. Raises TokenRefused."""
    expires, issued, begins = times = [claims.get(name, now) for name in ("exp", "iat", "nbf")]
    if not all(isinstance(time, int | float) and not isinstance(time, bool) and abs(time) < LATEST for time in times):
        raise TokenRefused("its exp, iat or nbf is no time")
    if expires + LEEWAY <= now:
        raise TokenRefused("it has expired")
    if max(issued, begins) - LEEWAY > now:
        raise TokenRefused("it is not valid yet")
    return float(expires + LEEWAY)
