"""Links that open the console or the portal: signed, short-lived, void when their key is replaced; and those that set a password, once."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass

from crmctl.service.faults import Forbidden
from crmctl.service.store import passwords
from crmctl.service.store.service_values import LINKS, signing_key
from crmctl.service.store.tx import Tx

CONSOLE, PORTAL = "console", "portal"
LINK_SECONDS = 600
"""How long a link opens new sessions. A session lasts longer than the link that opened it."""

_OPERATOR = "operator"
_TOKEN = re.compile(r"([0-9]{1,12})\.([0-9a-f-]{1,36}|operator)\.([0-9a-f]{64})")


@dataclass(frozen=True)
class SignedLink:
    """`expires_at` in Unix seconds."""

    url: str
    expires_at: int


def make_link(tx: Tx, address: str, area: str, *, key_id: str | None = None, now: float) -> SignedLink:
    """A link to CONSOLE or PORTAL on the service at `address`; a session it opens ends with the key `key_id`, where one is given."""
    expires, subject = int(now) + LINK_SECONDS, key_id or _OPERATOR
    return SignedLink(f"{address}/{area}?link={expires}.{subject}.{_signature(tx, area, expires, subject)}", expires)


def make_password_link(tx: Tx, address: str, member_id: str, *, now: float) -> SignedLink:
    """A link with which a member sets a password, once; it makes the one before void."""
    code = passwords.make_code(tx, member_id, now=now)
    return SignedLink(f"{address}/{CONSOLE}/password?code={code}", int(now) + passwords.LINK_SECONDS)


def read_link(tx: Tx, area: str, token: str, *, now: float) -> str | None:
    """The id of the API key that the link was made for, None for the operator's. Raises Forbidden."""
    parts = _TOKEN.fullmatch(token)
    if parts is None or not hmac.compare_digest(parts[3], _signature(tx, area, int(parts[1]), parts[2])):
        raise Forbidden("this link is not valid")
    if now >= int(parts[1]):
        raise Forbidden("this link has expired")
    if parts[2] == _OPERATOR:
        return None
    return parts[2]


def _signature(tx: Tx, area: str, expires: int, subject: str) -> str:
    return hmac.new(signing_key(tx, LINKS), f"{area}\n{expires}\n{subject}".encode(), hashlib.sha256).hexdigest()
