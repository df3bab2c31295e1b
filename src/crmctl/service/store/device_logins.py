"""Logins of devices that wait for a member's approval (RFC 8628)."""

from __future__ import annotations

import re
import secrets
from typing import Any, Unpack

from crmctl.models.jsontext import Json
from crmctl.models.scopes import SCOPES
from crmctl.service.faults import NotFound
from crmctl.service.store import keys, logs, members
from crmctl.service.store.members import MemberRole, role_of
from crmctl.service.store.tx import Rows, Stamp, Tx, insert, to_micros, update

WAIT_SECONDS, INTERVAL, KEY_SECONDS = 600, 5, 12 * 3600
"""How long a login waits for approval, how long its device waits between two polls, and how long its key lasts."""

KEPT_SECONDS = 3600
"""How long an expired login can still be told from an unknown one."""

LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
"""Without vowels, which make words, and without digits, which look like letters."""

PENDING, APPROVED, DENIED = "pending", "approved", "denied"

_LOGINS = Rows(
    "device_login",
    "login",
    "device_hash, user_code, host, address, state, member_id, expires_at, polled_at, wait",
    expires_at=int,
    polled_at=int,
)
_OF_MEMBERS = ("records:write", "activities:write", "files:write", "reports:run", "workflows:run")


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


def answer_login(tx: Tx, user_code: str, member_id: str, *, is_approved: bool, now: float) -> None:
    """Approve or deny a login. Raises NotFound."""
    login = find_login(tx, user_code, now=now)
    state = APPROVED if is_approved else DENIED
    waits = "device_hash = ? AND state = ?"
    if not update(tx, "device_login", {"state": state, "member_id": member_id}, waits, login["deviceHash"], PENDING):
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
    if is_early:
        return {"error": "slow_down"}
    if login["state"] == PENDING:
        return {"error": "authorization_pending"}
    if not tx.execute("DELETE FROM device_login WHERE device_hash = ?", (login["deviceHash"],)):
        return {"error": "invalid_grant"}
    member = next((member for member in members.list_members(tx) if member["id"] == login["memberId"]), None)
    if login["state"] == DENIED or member is None:
        return {"error": "access_denied"}
    scopes, end = scopes_of(role_of(member["role"])), stamp["now"] + KEY_SECONDS
    name = f"{member['user']['name'][:90]} on {login['host']}"
    _, secret = keys.create_key(tx, name=name, scopes=scopes, expires_at=end, created_by=member["id"], **stamp)
    return key_answer(secret, KEY_SECONDS, SCOPES if scopes is None else scopes)


def key_answer(secret: str, seconds: int, scopes: Any) -> Json:
    """Return the answer of a token endpoint that gives a key."""
    return {"access_token": secret, "token_type": "Bearer", "expires_in": seconds, "scope": " ".join(sorted(scopes))}
