"""API keys, their request rates, and values that all processes share."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import math
import secrets
import threading
from collections.abc import Callable, Collection
from dataclasses import astuple
from typing import Any, Unpack

from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.scopes import SCOPES
from crmctl.service.faults import BadRequest, Busy, NotFound
from crmctl.service.store import logs
from crmctl.service.store.record_tables import require_name
from crmctl.service.store.tx import Row, Rows, Stamp, Tx, micros_of, required, to_micros, to_wire
from crmctl.values.moments import read_span
from crmctl.values.value_readers import Invalid, canonical_uuid, parse_instant

PREFIX = "crs_"

_COLUMNS = "id, name, scopes, created_by, created_at, expires_at, revoked_at"
_KEYS = Rows("api_key", "key", _COLUMNS, scopes=sorted)


@frozen
class ApiKey:
    """`scopes` None means full access. Times are microseconds since the epoch."""

    id: str
    name: str
    scopes: frozenset[str] | None
    created_by: str | None
    created_at: int
    expires_at: int | None
    revoked_at: int | None

    @classmethod
    def of(cls, row: Row) -> ApiKey:
        key_id, name, scopes, *rest = row
        return cls(key_id, name, None if scopes is None else frozenset(jsontext.loads(scopes)), *rest)

    def is_expired(self, now: float) -> bool:
        return self.expires_at is not None and to_micros(now) >= self.expires_at

    def allows(self, scope: str) -> bool:
        return self.scopes is None or scope in self.scopes

    def wire(self) -> Json:
        """Return `{id, name, scopes, createdBy, createdAt, expiresAt, revokedAt}`, scopes sorted, null for full access."""
        return _KEYS.show(astuple(self))


def create_key(
    tx: Tx,
    *,
    name: str,
    scopes: frozenset[str] | None,
    expires_at: float | None = None,
    created_by: str | None = None,
    **stamp: Unpack[Stamp],
) -> tuple[ApiKey, str]:
    """Create a key. Returns it with its secret, which nothing can show again. `expires_at` in Unix seconds. Raises BadRequest."""
    require_name(name, "name")
    if scopes is not None:
        check_scopes(scopes)
    if expires_at is not None and expires_at <= stamp["now"]:
        raise BadRequest("expiresAt must be in the future", {"field": "expiresAt"})
    secret = PREFIX + secrets.token_urlsafe(32)
    texts = None if scopes is None else jsontext.dumps(sorted(scopes))
    at, end = to_micros(stamp["now"]), None if expires_at is None else to_micros(expires_at)
    key = ApiKey(stamp["ids"](), name, scopes, created_by, at, end, None)
    row = (key.id, name, texts, created_by, at, end, None, secret_hash(secret))
    tx.execute(f"INSERT INTO api_key ({_COLUMNS}, secret_hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    logs.note(tx, "key.created", key.id, {"name": name, "scopes": key.wire()["scopes"]}, now=stamp["now"])
    return key, secret


def check_scopes(scopes: Collection[str]) -> None:
    """Raise BadRequest for unknown scopes, or for none at all."""
    if unknown := sorted(set(scopes) - SCOPES.keys()):
        message = f"unknown scope {', '.join(unknown)}; the scopes are: {', '.join(SCOPES)}"
        raise BadRequest(message, {"field": "scopes", "unknown": unknown})
    if not scopes:
        raise BadRequest("scopes must name at least one scope", {"field": "scopes"})


def find_key(tx: Tx, secret: str) -> ApiKey | None:
    """Return the key with this secret unless it was revoked. It may have expired."""
    digest = secret_hash(secret)

    def read() -> ApiKey | None:
        row = tx.one(f"SELECT {_COLUMNS} FROM api_key WHERE secret_hash = ? AND revoked_at IS NULL", (digest,))
        return None if row is None else ApiKey.of(row)

    return tx.remembered(f"key {digest}", read)


def list_keys(tx: Tx) -> list[ApiKey]:
    """Return all keys, oldest first, revoked ones included."""
    return [ApiKey.of(row) for row in tx.all(f"SELECT {_COLUMNS} FROM api_key ORDER BY created_at, id")]


def get_key(tx: Tx, key_id: str) -> ApiKey:
    row = tx.one(f"SELECT {_COLUMNS} FROM api_key WHERE id = ?", (canonical_uuid(key_id) or "",))
    if row is None:
        raise NotFound(f"there is no key with the id {key_id}")
    return ApiKey.of(row)


def revoke_key(tx: Tx, key_id: str, *, now: float) -> ApiKey:
    """Revoke a key with the commit; again is harmless. Raises NotFound."""
    key = get_key(tx, key_id)
    if tx.execute("UPDATE api_key SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL", (to_micros(now), key.id)):
        logs.note(tx, "key.revoked", key.id, {"name": key.name}, now=now)
    return get_key(tx, key.id)


def rotate_key(tx: Tx, key_id: str, *, until: float, created_by: str | None, **stamp: Unpack[Stamp]) -> tuple[ApiKey, str]:
    """Create a key with the same name, scopes and end. The old one expires at `until`, in Unix seconds, unless it ends earlier. Raises
    NotFound, and BadRequest for a key that works no more."""
    old = get_key(tx, key_id)
    if old.revoked_at is not None or old.is_expired(stamp["now"]):
        raise BadRequest("this key does not work any more; create a new one")
    end = None if old.expires_at is None else old.expires_at / 1_000_000
    fresh, secret = create_key(tx, name=old.name, scopes=old.scopes, expires_at=end, created_by=created_by, **stamp)
    ends = to_micros(until) if end is None else to_micros(min(until, end))
    tx.execute("UPDATE api_key SET expires_at = ? WHERE id = ?", (ends, old.id))
    logs.note(tx, "key.rotated", old.id, {"name": old.name, "newKey": fresh.id, "expiresAt": to_wire(ends)}, now=stamp["now"])
    return fresh, secret


def secret_hash(secret: str) -> str:
    """Return the form in which keys, codes and tokens are stored."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


UNLIMITED = 2_147_483_647
"""The limit of unlimited keys. Clients get this figure too, so that those which pace themselves never wait."""

_KEPT_SECONDS = 3600
"""How long ended windows are kept: longer than the clocks of two machines can differ."""


@frozen
class RateState:
    """The window after a request: `remaining` requests, and its end `reset` in whole Unix seconds."""

    allowed: bool
    remaining: int
    reset: int


class RateWindows:
    """Requests by key and window: with `write` in the database, for all processes that share it, otherwise in memory."""

    def __init__(self, write: Callable[..., Any] | None = None) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._here: dict[int, dict[str, int]] = {}
        """Requests by key, by the end of their window."""
        self._current = 0

    def take(self, key_id: str, limit: int, window_seconds: int, now: float, within: float | None = None) -> RateState:
        """Count a request of the key. Refused ones do not count. Raises Busy after `within` seconds, and has counted nothing then."""
        end = (math.floor(now / window_seconds) + 1) * window_seconds
        if limit >= UNLIMITED:
            return RateState(True, limit, end)
        taken = self._count(key_id, limit, end, now) if self._write is None else self._count_shared(self._write, key_id, limit, end, within)
        return RateState(taken is not None, 0 if taken is None else limit - taken, end)

    def forget(self) -> None:
        with self._lock:
            self._here.clear()

    def _count(self, key_id: str, limit: int, end: int, now: float) -> int | None:
        """Return the number of requests, None when the limit is reached."""
        with self._lock:
            if end not in self._here:
                self._here = {other: window for other, window in self._here.items() if other > now} | {end: {}}
            taken = self._here[end].get(key_id, 0) + 1
            if taken > limit:
                return None
            self._here[end][key_id] = taken
            return taken

    def _count_shared(self, write: Callable[..., Any], key_id: str, limit: int, end: int, within: float | None) -> int | None:
        taken = write(
            lambda tx: tx.one(
                "INSERT INTO rate_window (key_id, ends_at, taken) VALUES (?, ?, 1) ON CONFLICT (key_id, ends_at) "
                "DO UPDATE SET taken = rate_window.taken + 1 WHERE rate_window.taken < ? RETURNING taken",
                (key_id, end, limit),
            ),
            single=True,
            within=within,
        )
        if end > self._current:
            self._current = end
            # The request is counted: a sweep that finds the table in use waits for the next window.
            with contextlib.suppress(Busy):
                write(lambda tx: tx.execute("DELETE FROM rate_window WHERE ends_at < ?", (end - _KEPT_SECONDS,)), within=within)
        return None if taken is None else int(taken[0])


LINKS, UPLOADS = "signing_key.links", "signing_key.uploads"
"""Names of the keys that sign links, of 256 random bits each."""

ADDRESS = "address"
"""Name of the value with the base address of the service that started last."""


def make_signing_keys(tx: Tx) -> None:
    """Make the keys of a new service, so that they always exist."""
    for purpose in (LINKS, UPLOADS):
        put_value(tx, purpose, secrets.token_hex(32))


def use_once(tx: Tx, signature: str, expires_at: int, *, now: float) -> bool:
    """Note that a link or token was used. Returns False if it was used before. `expires_at` in Unix seconds."""
    tx.execute("DELETE FROM used_link WHERE expires_at < ?", (int(now) - _KEPT_SECONDS,))
    return tx.execute("INSERT INTO used_link (signature, expires_at) VALUES (?, ?) ON CONFLICT DO NOTHING", (signature, expires_at)) == 1


def is_used(tx: Tx, signature: str) -> bool:
    return tx.one("SELECT 1 FROM used_link WHERE signature = ?", (signature,)) is not None


def sign(tx: Tx, purpose: str, *parts: str | int) -> str:
    """Return the signature of these parts by the key LINKS or UPLOADS."""
    key = required(tx.one("SELECT value FROM service_value WHERE name = ?", (purpose,)))[0]
    # With the length of each part, no other parts give the same text.
    text = "\n".join(f"{len(str(part))}:{part}" for part in parts)
    return hmac.new(bytes.fromhex(key), text.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()


def get_value(tx: Tx, name: str) -> str | None:
    row = tx.one("SELECT value FROM service_value WHERE name = ?", (name,))
    return None if row is None else str(row[0])


def values_below(tx: Tx, prefix: str) -> dict[str, str]:
    """Return the values whose names begin so, by the rest of their names."""
    rows = tx.all("SELECT name, value FROM service_value WHERE name >= ? AND name < ?", (prefix, f"{prefix}~"))
    return {name.removeprefix(prefix): value for name, value in rows}


def put_value(tx: Tx, name: str, value: str) -> None:
    tx.execute(
        "INSERT INTO service_value (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", (name, value)
    )


def parse_expiry(text: str, now: float) -> float:
    """Return Unix seconds of `30d`, `12h`, `2027-01-31` (its midnight, UTC) or a timestamp. Raises BadRequest, also for the past."""
    try:
        end = now + read_span(text.strip())
    except ValueError:
        try:
            end = micros_of(parse_instant(text.strip())) / 1_000_000
        except Invalid:
            message = f"{text!r} is neither a date (2027-01-31), a timestamp, nor a span such as 30d or 12h"
            raise BadRequest(message, {"field": "expires"}) from None
    if end <= now:
        raise BadRequest(f"{text} is in the past", {"field": "expires"})
    return end
