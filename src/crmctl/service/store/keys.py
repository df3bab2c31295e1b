"""API keys: made once, shown once, kept as a SHA-256. Whether a key may do something is decided at the HTTP edge."""

# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack

from crmctl.models import jsontext
from crmctl.models.scopes import SCOPES
from crmctl.service.faults import BadRequest, NotFound
from crmctl.service.store import audit_log
from crmctl.service.store.checks import require_name
from crmctl.service.store.stamp import Stamp
from crmctl.service.store.timestamps import optional_to_wire, to_micros, to_wire
from crmctl.service.store.tx import Tx
from crmctl.service.values.choices import canonical_uuid

PREFIX = "crs_"


class _Row(NamedTuple):
    """The columns of a key, its secret left out."""

    id: str
    name: str
    scopes: str | None
    created_by: str | None
    created_at: int
    expires_at: int | None
    revoked_at: int | None

    def key(self) -> ApiKey:
        allowed = None if self.scopes is None else frozenset(jsontext.loads(self.scopes))
        return ApiKey(self.id, self.name, allowed, self.created_by, self.created_at, self.expires_at, self.revoked_at)


_COLUMNS = ", ".join(_Row._fields)


@dataclass(frozen=True)
class ApiKey:
    """`scopes` None means full access. Times are microseconds since the epoch."""

    id: str
    name: str
    scopes: frozenset[str] | None
    created_by: str | None
    created_at: int
    expires_at: int | None
    revoked_at: int | None

    def is_expired(self, now: float) -> bool:
        return self.expires_at is not None and to_micros(now) >= self.expires_at

    def allows(self, scope: str) -> bool:
        return self.scopes is None or scope in self.scopes

    def wire(self) -> dict[str, Any]:
        """`{id, name, scopes, createdBy, createdAt, expiresAt, revokedAt}`, scopes sorted, null for full access."""
        return {
            "id": self.id,
            "name": self.name,
            "scopes": None if self.scopes is None else sorted(self.scopes),
            "createdBy": self.created_by,
            "createdAt": to_wire(self.created_at),
            "expiresAt": optional_to_wire(self.expires_at),
            "revokedAt": optional_to_wire(self.revoked_at),
        }


def create_key(
    tx: Tx,
    *,
    name: str,
    scopes: frozenset[str] | None,
    expires_at: float | None = None,
    created_by: str | None = None,
    **stamp: Unpack[Stamp],
) -> tuple[ApiKey, str]:
    """A new key and its secret, which nothing can show again. `expires_at` in Unix seconds. Raises BadRequest."""
    require_name(name, "name")
    unknown = sorted((scopes or frozenset()) - SCOPES.keys())
    if unknown:
        raise BadRequest(
            f"unknown scope {', '.join(unknown)}; the scopes are: {', '.join(SCOPES)}", {"field": "scopes", "unknown": unknown}
        )
    if scopes is not None and not scopes:
        raise BadRequest("scopes must name at least one scope", {"field": "scopes"})
    if expires_at is not None and expires_at <= stamp["now"]:
        raise BadRequest("expiresAt must be in the future", {"field": "expiresAt"})
    secret = PREFIX + secrets.token_urlsafe(32)
    key = ApiKey(
        stamp["ids"](), name, scopes, created_by, to_micros(stamp["now"]), None if expires_at is None else to_micros(expires_at), None
    )
    tx.execute(
        "INSERT INTO api_key (id, name, secret_hash, scopes, created_by, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            key.id,
            name,
            _hash(secret),
            None if scopes is None else jsontext.dumps(sorted(scopes)),
            created_by,
            key.created_at,
            key.expires_at,
        ),
    )
    audit_log.note(tx, "key.created", key.id, {"name": name, "scopes": key.wire()["scopes"]}, now=stamp["now"])
    return key, secret


def find_key(tx: Tx, secret: str) -> ApiKey | None:
    """The key with this secret unless it was revoked; an expired one is returned, ask `is_expired`."""
    row = tx.one(f"SELECT {_COLUMNS} FROM api_key WHERE secret_hash = ? AND revoked_at IS NULL", (_hash(secret),))
    return None if row is None else _Row(*row).key()


def list_keys(tx: Tx) -> list[ApiKey]:
    """All keys, oldest first, revoked ones included."""
    return [_Row(*row).key() for row in tx.all(f"SELECT {_COLUMNS} FROM api_key ORDER BY created_at, id")]


def revoke_key(tx: Tx, key_id: str, *, now: float) -> ApiKey:
    """Takes effect with the commit; revoking again changes nothing. Raises NotFound."""
    known_id = canonical_uuid(key_id) or ""
    revoked = tx.execute("UPDATE api_key SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL", (to_micros(now), known_id))
    row = tx.one(f"SELECT {_COLUMNS} FROM api_key WHERE id = ?", (known_id,))
    if row is None:
        raise NotFound(f"there is no key with the id {key_id}")
    if revoked:
        audit_log.note(tx, "key.revoked", known_id, {"name": row[1]}, now=now)
    return _Row(*row).key()


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
