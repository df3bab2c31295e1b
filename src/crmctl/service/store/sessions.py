"""Sessions of the console and the portal: opened by a signed link, kept as a hash, ended by time, by hand or with their API key."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from crmctl.service.store.timestamps import to_micros
from crmctl.service.store.tx import Tx

SESSION_SECONDS = 8 * 3600


@dataclass(frozen=True)
class ConsoleSession:
    """`token` is the cookie's value; `form_token` goes into every form and proves that a page of this session sent it."""

    token: str

    @property
    def form_token(self) -> str:
        return hmac.new(self.token.encode(), b"form", hashlib.sha256).hexdigest()

    def owns(self, form_token: str) -> bool:
        return hmac.compare_digest(self.form_token.encode(), form_token.encode(errors="replace"))


def create_tables(tx: Tx) -> None:
    """The part of the migration for sessions."""
    text = tx.dialect.text
    tx.execute(
        f"""CREATE TABLE page_session (token_hash {text} PRIMARY KEY, area {text} NOT NULL, key_id {text},
            created_at BIGINT NOT NULL, expires_at BIGINT NOT NULL)"""
    )


def open_session(tx: Tx, area: str, key_id: str | None, *, now: float) -> ConsoleSession:
    """A session for the pages of an area; one that came from an API key ends with that key. Forgets the sessions that are over."""
    tx.execute("DELETE FROM page_session WHERE expires_at <= ?", (to_micros(now),))
    session = ConsoleSession(secrets.token_urlsafe(32))
    tx.execute(
        "INSERT INTO page_session (token_hash, area, key_id, created_at, expires_at) VALUES (?, ?, ?, ?, ?)",
        (_hash(session.token), area, key_id, to_micros(now), to_micros(now + SESSION_SECONDS)),
    )
    return session


def find_session(tx: Tx, area: str, token: str, *, now: float) -> ConsoleSession | None:
    """The session with this token unless it is over, or the key it came from is revoked or expired."""
    at = to_micros(now)
    row = tx.one(
        "SELECT 1 FROM page_session AS s LEFT JOIN api_key AS k ON k.id = s.key_id "
        "WHERE s.token_hash = ? AND s.area = ? AND s.expires_at > ? AND (s.key_id IS NULL OR "
        "(k.id IS NOT NULL AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > ?)))",
        (_hash(token), area, at, at),
    )
    return None if row is None else ConsoleSession(token)


def close_session(tx: Tx, session: ConsoleSession) -> None:
    tx.execute("DELETE FROM page_session WHERE token_hash = ?", (_hash(session.token),))


def close_all_sessions(tx: Tx) -> None:
    """Sign out every browser of the console and of the portal."""
    tx.execute("DELETE FROM page_session")


def count_sessions(tx: Tx, *, now: float) -> int:
    row = tx.one("SELECT count(*) FROM page_session WHERE expires_at > ?", (to_micros(now),))
    return 0 if row is None else int(row[0])


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()
