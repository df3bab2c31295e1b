"""The public keys of issuers, read through the guarded caller."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from crmctl.errors import reason
from crmctl.models import jsontext
from crmctl.models.jsontext import Json


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
