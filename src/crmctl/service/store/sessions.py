"""Sessions of the console and the portal: opened by a password or a link, kept as a hash, ended by time, by hand, with their API key."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from crmctl.service.roles import MemberRole, role_of
from crmctl.service.store.timestamps import to_micros, to_wire
from crmctl.service.store.tx import Tx

SESSION_SECONDS = 8 * 3600

MOST_SESSIONS = 20
"""Open at once for one member, one API key, or the operator; a further one ends the oldest."""


@dataclass(frozen=True)
class SessionOwner:
    """Whose session it is: a member's, an API key's (the portal), or the operator's, who has neither. `address` and `agent`: from where."""

    member_id: str | None = None
    key_id: str | None = None
    address: str = ""
    agent: str = ""


@dataclass(frozen=True)
class ConsoleSession:
    """`token` is the cookie's value; `form_token` goes into every form and proves that a page of this session sent it.

    `name` is the member's, empty for the operator and for the portal. Without an `id` nobody has signed in yet.
    """

    token: str
    id: str = ""
    role: MemberRole = MemberRole.NOBODY
    member_id: str | None = None
    name: str = ""
    key_id: str | None = None

    @property
    def form_token(self) -> str:
        return hmac.new(self.token.encode(), b"form", hashlib.sha256).hexdigest()

    def owns(self, form_token: str) -> bool:
        return hmac.compare_digest(self.form_token.encode(), form_token.encode(errors="replace"))


def new_token() -> str:
    """256 random bits."""
    return secrets.token_urlsafe(32)


def create_tables(tx: Tx) -> None:
    """The part of the migration for sessions."""
    text = tx.dialect.text
    tx.execute(
        f"""CREATE TABLE page_session (token_hash {text} PRIMARY KEY, area {text} NOT NULL, key_id {text},
            created_at BIGINT NOT NULL, expires_at BIGINT NOT NULL)"""
    )


def add_owners(tx: Tx) -> None:
    """The part of the migration with which members sign in. It ends the sessions that are open."""
    text = tx.dialect.text
    tx.execute("DROP TABLE page_session")
    tx.execute(
        f"""CREATE TABLE page_session (token_hash {text} PRIMARY KEY, id {text} NOT NULL UNIQUE, area {text} NOT NULL, member_id {text},
            key_id {text}, address {text} NOT NULL, agent {text} NOT NULL, created_at BIGINT NOT NULL, expires_at BIGINT NOT NULL)"""
    )


def open_session(tx: Tx, area: str, owner: SessionOwner, *, now: float) -> str:
    """The token of a new session for the pages of an area. Forgets the sessions that are over, and the owner's oldest beyond the most."""
    tx.execute("DELETE FROM page_session WHERE expires_at <= ?", (to_micros(now),))
    whose, keys = _whose(owner)
    tx.execute(
        f"DELETE FROM page_session WHERE token_hash IN (SELECT token_hash FROM page_session WHERE {whose} "  # noqa: S608 - own names
        "ORDER BY created_at DESC, id LIMIT 100000 OFFSET ?)",
        (*keys, MOST_SESSIONS - 1),
    )
    token = new_token()
    tx.execute(
        "INSERT INTO page_session (token_hash, id, area, member_id, key_id, address, agent, created_at, expires_at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            _hash(token),
            str(uuid4()),
            area,
            owner.member_id,
            owner.key_id,
            owner.address,
            owner.agent[:300],
            to_micros(now),
            to_micros(now + SESSION_SECONDS),
        ),
    )
    return token


def find_session(tx: Tx, area: str, token: str, *, now: float) -> ConsoleSession | None:
    """The session with this token unless it is over, or the key it came from is revoked or expired, or its member is gone."""
    at = to_micros(now)
    row = tx.one(
        "SELECT s.id, s.key_id, m.id, m.name, m.role FROM page_session AS s LEFT JOIN api_key AS k ON k.id = s.key_id "
        "LEFT JOIN member AS m ON m.id = s.member_id WHERE s.token_hash = ? AND s.area = ? AND s.expires_at > ? "
        "AND (s.member_id IS NULL OR m.id IS NOT NULL) AND (s.key_id IS NULL OR "
        "(k.id IS NOT NULL AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > ?)))",
        (_hash(token), area, at, at),
    )
    if row is None:
        return None
    session_id, key_id, member_id, name, role = row
    if member_id is None:
        return ConsoleSession(token, session_id, MemberRole.OWNER, key_id=key_id)
    return ConsoleSession(token, session_id, role_of(role), member_id, name)


def list_sessions(tx: Tx, member_id: str | None = None, *, now: float) -> list[dict[str, Any]]:
    """The open sessions, of one member or all, newest first: `{id, area, memberId, name, address, agent, createdAt, expiresAt}`."""
    mine, keys = ("AND s.member_id = ? ", (member_id,)) if member_id else ("", ())
    rows = tx.all(
        "SELECT s.id, s.area, s.member_id, m.name, s.address, s.agent, s.created_at, s.expires_at FROM page_session AS s "  # noqa: S608
        f"LEFT JOIN member AS m ON m.id = s.member_id WHERE s.expires_at > ? {mine}ORDER BY s.created_at DESC, s.id LIMIT 200",
        (to_micros(now), *keys),
    )
    names = ("id", "area", "memberId", "name", "address", "agent")
    return [dict(zip(names, row, strict=False)) | {"createdAt": to_wire(row[6]), "expiresAt": to_wire(row[7])} for row in rows]


def end_session(tx: Tx, session_id: str, member_id: str | None = None) -> bool:
    """End one session, with `member_id` only if it is that member's; whether there was one."""
    if member_id is None:
        return tx.execute("DELETE FROM page_session WHERE id = ?", (session_id,)) > 0
    return tx.execute("DELETE FROM page_session WHERE id = ? AND member_id = ?", (session_id, member_id)) > 0


def end_sessions_of(tx: Tx, member_id: str, *, but: str = "") -> None:
    """End the member's sessions, all but the one with this id."""
    tx.execute("DELETE FROM page_session WHERE member_id = ? AND id <> ?", (member_id, but))


def close_all_sessions(tx: Tx) -> None:
    """Sign out every browser of the console and of the portal."""
    tx.execute("DELETE FROM page_session")


def count_sessions(tx: Tx, *, now: float) -> int:
    row = tx.one("SELECT count(*) FROM page_session WHERE expires_at > ?", (to_micros(now),))
    return 0 if row is None else int(row[0])


def _whose(owner: SessionOwner) -> tuple[str, tuple[str, ...]]:
    """The condition for sessions of the same owner, with its parameters."""
    if owner.member_id:
        return "member_id = ?", (owner.member_id,)
    if owner.key_id:
        return "key_id = ?", (owner.key_id,)
    return "member_id IS NULL AND key_id IS NULL", ()


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()
