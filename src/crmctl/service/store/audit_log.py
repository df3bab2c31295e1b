"""The audit log: what people and keys did to schema, keys, members, endpoints, reports and workflows. Changes of records have another."""
# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crmctl.clock import SystemClock
from crmctl.models import jsontext
from crmctl.service.store import actors
from crmctl.service.store.timestamps import to_micros, to_wire
from crmctl.service.store.tx import Tx


def create_tables(tx: Tx) -> None:
    """The migration that brings the log."""
    text = tx.dialect.text
    tx.execute(
        f"""CREATE TABLE audit_log (sequence {tx.dialect.identity}, at BIGINT NOT NULL, actor {text} NOT NULL, action {text} NOT NULL,
            subject {text} NOT NULL, about {text} NOT NULL)"""
    )
    tx.execute("CREATE INDEX audit_log_at ON audit_log (at)")


def note(tx: Tx, action: str, subject: str, about: Mapping[str, Any] | None = None, *, now: float | None = None) -> None:
    """`action` is a noun and what was done to it, as `attribute.deleted`; `about` what a reader wants to see, never a secret.

    What the service does by itself to set itself up is not noted.
    """
    if tx.by is not None:
        at = to_micros(SystemClock().now() if now is None else now)
        row = (at, tx.by, action, subject, jsontext.dumps(dict(about or {})))
        tx.execute("INSERT INTO audit_log (at, actor, action, subject, about) VALUES (?, ?, ?, ?, ?)", row)


def list_entries(tx: Tx, limit: int = 50, offset: int = 0, *, action: str | None = None) -> list[dict[str, Any]]:
    """Newest first, as `{at, by, action, id, about}`; `action` is one, or a noun for all that was done to such."""
    where = "WHERE (action = ? OR action LIKE ?) " if action else ""
    given: tuple[str, ...] = (action, f"{action}.%") if action else ()
    rows = tx.all(
        f"SELECT at, actor, action, subject, about FROM audit_log {where}ORDER BY sequence DESC LIMIT ? OFFSET ?", (*given, limit, offset)
    )
    names = actors.described(tx, (row[1] for row in rows))
    return [
        {"at": to_wire(at), "by": names[actor], "action": done, "id": subject, "about": jsontext.loads(about)}
        for at, actor, done, subject, about in rows
    ]


def forget(tx: Tx, before: float, most: int) -> int:
    """Delete up to `most` entries older than this Unix time; how many there were."""
    old = "SELECT sequence FROM audit_log WHERE at < ? ORDER BY at LIMIT ?"
    return tx.execute(f"DELETE FROM audit_log WHERE sequence IN ({old})", (to_micros(before), most))
