"""Passwords of members, as hashes, and the one-time links through which they are set. How a password is hashed is not decided here."""

from __future__ import annotations

import hashlib
import secrets

from crmctl.service.store import audit_log
from crmctl.service.store.members import get_member
from crmctl.service.store.timestamps import to_micros
from crmctl.service.store.tx import Tx

LINK_SECONDS = 3 * 86400
"""How long a link waits to be used; a new one makes the one before void."""


def create_tables(tx: Tx) -> None:
    """The part of the migration for passwords."""
    text = tx.dialect.text
    tx.execute(f"CREATE TABLE member_password (member_id {text} PRIMARY KEY, hash {text}, link_hash {text} UNIQUE, link_expires_at BIGINT)")


def make_code(tx: Tx, member_id: str, *, now: float) -> str:
    """The code of a new link for the member. A password that is there stays until the link is used."""
    code = secrets.token_urlsafe(32)
    tx.execute(
        "INSERT INTO member_password (member_id, link_hash, link_expires_at) VALUES (?, ?, ?) "
        "ON CONFLICT (member_id) DO UPDATE SET link_hash = excluded.link_hash, link_expires_at = excluded.link_expires_at",
        (member_id, _hash(code), to_micros(now + LINK_SECONDS)),
    )
    audit_log.note(tx, "member.link_made", member_id, {"name": get_member(tx, member_id)["user"]["name"]}, now=now)
    return code


def find_by_code(tx: Tx, code: str, *, now: float) -> str | None:
    """The id of the member whose link this is, unless it was used, replaced, or is too old."""
    row = tx.one("SELECT member_id FROM member_password WHERE link_hash = ? AND link_expires_at > ?", (_hash(code), to_micros(now)))
    return None if row is None else str(row[0])


def put_password(tx: Tx, member_id: str, hashed: str) -> None:
    """The member's password from now on; an open link becomes void."""
    tx.execute(
        "INSERT INTO member_password (member_id, hash) VALUES (?, ?) "
        "ON CONFLICT (member_id) DO UPDATE SET hash = excluded.hash, link_hash = NULL, link_expires_at = NULL",
        (member_id, hashed),
    )


def get_password(tx: Tx, member_id: str) -> str | None:
    row = tx.one("SELECT hash FROM member_password WHERE member_id = ?", (member_id,))
    return None if row is None else row[0]


def drop_password(tx: Tx, member_id: str) -> None:
    """The member cannot sign in any more, until there is another link."""
    tx.execute("DELETE FROM member_password WHERE member_id = ?", (member_id,))
    audit_log.note(tx, "member.access_taken_away", member_id, {"name": get_member(tx, member_id)["user"]["name"]})


def access_of_members(tx: Tx, *, now: float) -> dict[str, str]:
    """By member: `active` with a password, `invited` with a link that can be used; nobody else is in it."""
    rows = tx.all("SELECT member_id, hash, link_expires_at FROM member_password")
    states = {member: "active" if hashed else "invited" if until and until > to_micros(now) else "" for member, hashed, until in rows}
    return {member: state for member, state in states.items() if state}


def _hash(code: str) -> str:
    return hashlib.sha256(code.encode(errors="replace")).hexdigest()
