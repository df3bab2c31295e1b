"""Trusts in the identity tokens of other issuers, used tokens, and logins of devices (RFC 8628)."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any, Unpack

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.scopes import SCOPES
from crmctl.service.faults import BadRequest, Body, Conflict, NotFound
from crmctl.service.store import keys, logs, members
from crmctl.service.store.members import MemberRole, role_of
from crmctl.service.store.record_tables import require_name
from crmctl.service.store.tx import Rows, Stamp, Tx, insert, to_micros, update

SHORTEST, LONGEST = 5 * 60, 24 * 3600  # life of the keys of a trust
WAIT_SECONDS, INTERVAL = 600, 5  # of a login for approval, and of its device between two polls
KEPT_SECONDS = 3600  # then the service forgets an expired login
KEY_SECONDS = 12 * 3600
LETTERS = "BCDFGHJKLMNPQRSTVWXZ"  # no vowels, which make words, and no digits, which look like letters
PENDING, APPROVED, DENIED = "pending", "approved", "denied"

PULL_REQUESTS = {
    "event_name": ("pull_request", "pull_request_target", "pull_request_review", "pull_request_review_comment"),
    "pipeline_source": ("merge_request_event", "external_pull_request_event"),
}
"""Claims of runs that strangers can start. A trust that names the claim decides itself."""

_COLUMNS = "id, name, issuer, ttl, claims, scopes, development, created_at"
_TRUSTS = Rows("oidc_trust", "trust", _COLUMNS, claims=jsontext.loads, scopes=jsontext.loads, development=bool)
_LOGIN_COLUMNS = "device_hash, user_code, host, address, state, member_id, expires_at, polled_at, wait"
_LOGINS = Rows("device_login", "login", _LOGIN_COLUMNS, expires_at=int, polled_at=int)
_OF_MEMBERS = ("records:write", "activities:write", "files:write", "reports:run", "workflows:run")


class Trust(Body, extra="ignore"):
    """Tokens of `issuer` with these claims get keys with these scopes for `ttl` seconds. A `development` issuer needs no TLS."""

    name: str
    issuer: str
    claims: dict[str, str]
    scopes: list[str]
    ttl: int
    development: bool = False

    def mismatch(self, claims: Mapping[str, Any]) -> str | None:
        """Return the first rule that the claims of a token break."""
        for name, expected in {"iss": self.issuer, **self.claims}.items():
            text = value if isinstance(value := claims.get(name), str) else jsontext.dumps(value)
            # The workflow is followed by the branch it is taken from.
            fits = text.startswith(f"{expected}@") if name == "workflow_ref" and "@" not in expected else text == expected
            if name not in claims or not fits:
                return f"{self.name}: {name} is not {expected}"
        for name, values in PULL_REQUESTS.items():
            if name not in self.claims and claims.get(name) in values:
                return f"{self.name}: {name} is {claims[name]}"
        return None


def add_trust(tx: Tx, trust: Trust, **stamp: Unpack[Stamp]) -> Json:
    """Store a trust. Raises BadRequest for one that is too wide, Conflict for a name in use."""
    require_name(trust.name, "name")
    if _TRUSTS.find(tx, "name = ?", trust.name) is not None:
        raise Conflict(f"there is a trust called {trust.name!r} already", {"field": "name"})
    if not any(name.endswith("_id") for name in trust.claims):
        raise BadRequest("one claim must be an immutable id, such as repository_id or project_id", {"field": "claims"})
    keys.check_scopes(trust.scopes)
    if not SHORTEST <= trust.ttl <= LONGEST:
        raise BadRequest("the key must last from 5 minutes to 24 hours", {"field": "ttl"})
    row = trust.model_dump() | {"claims": jsontext.dumps(trust.claims), "scopes": jsontext.dumps(sorted(trust.scopes))}
    row |= {"id": stamp["ids"](), "development": int(trust.development), "created_at": to_micros(stamp["now"])}
    insert(tx, "oidc_trust", row)
    logs.note(tx, "trust.added", row["id"], {"name": trust.name, "issuer": trust.issuer, "claims": trust.claims}, now=stamp["now"])
    return _TRUSTS.get(tx, row["id"])


def list_trusts(tx: Tx) -> list[Json]:
    return _TRUSTS.all(tx, "ORDER BY created_at, id")


def remove_trust(tx: Tx, name: str, *, now: float) -> Json:
    """Remove a trust; its keys work until they expire. Raises NotFound."""
    wire = _TRUSTS.find(tx, "name = ?", name)
    if wire is None:
        raise NotFound(f"there is no trust called {name!r}")
    tx.execute("DELETE FROM oidc_trust WHERE id = ?", (wire["id"],))
    logs.note(tx, "trust.removed", wire["id"], {"name": name}, now=now)
    return wire


def scopes_of(role: MemberRole) -> frozenset[str] | None:
    """Return the scopes of a key with this role, None for full access."""
    if role >= MemberRole.ADMIN:
        return None
    return frozenset(name for name in SCOPES if name.endswith(":read") or (role is MemberRole.MEMBER and name in _OF_MEMBERS))


def start_login(tx: Tx, host: str, address: str, *, now: float) -> tuple[str, str]:
    """Return the code with which a device polls, and the one that its user enters. `host` is its own statement, `address` is not."""
    tx.execute("DELETE FROM device_login WHERE expires_at < ?", (to_micros(now - KEPT_SECONDS),))
    device_code, letters = secrets.token_urlsafe(32), "".join(secrets.choice(LETTERS) for _ in range(8))
    row: Json = {"device_hash": keys.secret_hash(device_code), "user_code": letters, "host": host, "address": address, "state": PENDING}
    insert(tx, "device_login", row | {"expires_at": to_micros(now + WAIT_SECONDS), "polled_at": 0, "wait": to_micros(INTERVAL)})
    return device_code, f"{letters[:4]}-{letters[4:]}"


def find_login(tx: Tx, user_code: str, *, now: float) -> Json:
    """Return the login that waits for this code, however it is written. Raises NotFound."""
    letters = re.sub("[^A-Z]", "", user_code.upper())
    login = _LOGINS.find(tx, "user_code = ? AND state = ? AND expires_at > ?", letters, PENDING, to_micros(now))
    if login is None:
        raise NotFound("no login waits for this code; it may be misspelt, answered or too old")
    return login


def answer_login(tx: Tx, *, user_code: str, member_id: str, state: str, now: float) -> None:
    """Let a login be APPROVED or DENIED. Raises NotFound."""
    login = find_login(tx, user_code, now=now)
    answered = {"state": state, "member_id": member_id}
    if not update(tx, "device_login", answered, "device_hash = ? AND state = ?", login["deviceHash"], PENDING):
        raise NotFound("another member has just answered this login")
    logs.note(tx, f"key.{state}", "", {"host": login["host"], "address": login["address"]}, now=now)


def poll_login(tx: Tx, device_code: str, **stamp: Unpack[Stamp]) -> Json:
    """Return the answer to a device: its key, once, if a member with a role approved it, else the reason as `error`."""
    now = to_micros(stamp["now"])
    login = _LOGINS.find(tx, "device_hash = ?", keys.secret_hash(device_code))
    if login is None:
        return {"error": "invalid_grant"}
    if now >= login["expiresAt"]:
        return {"error": "expired_token"}
    is_early = now < login["polledAt"] + login["wait"]
    wait = login["wait"] + to_micros(INTERVAL) * is_early
    update(tx, "device_login", {"polled_at": now, "wait": wait}, "device_hash = ?", login["deviceHash"])
    if is_early or login["state"] == PENDING:
        return {"error": "slow_down" if is_early else "authorization_pending"}
    if not tx.execute("DELETE FROM device_login WHERE device_hash = ?", (login["deviceHash"],)):
        return {"error": "invalid_grant"}  # another request was faster
    member = next((member for member in members.list_members(tx) if member["id"] == login["memberId"]), None)
    if login["state"] == DENIED or member is None:
        return {"error": "access_denied"}
    scopes, end = scopes_of(role_of(member["role"])), stamp["now"] + KEY_SECONDS
    name = f"{member['user']['name'][:90]} on {login['host']}"
    _, secret = keys.create_key(tx, name=name, scopes=scopes, expires_at=end, created_by=member["id"], **stamp)
    return key_answer(secret, KEY_SECONDS, SCOPES if scopes is None else scopes)


def key_answer(secret: str, seconds: int, scopes: Any) -> Json:
    return {"access_token": secret, "token_type": "Bearer", "expires_in": seconds, "scope": " ".join(sorted(scopes))}
