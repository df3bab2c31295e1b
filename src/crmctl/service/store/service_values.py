"""Small facts that all processes of one service share: the keys that sign links, and the address clients use."""

from __future__ import annotations

import secrets

from crmctl.service.store.tx import Tx, required

LINKS = "links"
UPLOADS = "uploads"

_ADDRESS = "address"
_PROBE = "probe"


def create_tables(tx: Tx) -> None:
    """The part of the migration for shared values; makes the signing keys, so that they are always there."""
    text = tx.dialect.text
    tx.execute(f"CREATE TABLE service_value (name {text} PRIMARY KEY, value {text} NOT NULL)")
    for purpose in (LINKS, UPLOADS):
        replace_signing_key(tx, purpose)


def signing_key(tx: Tx, purpose: str) -> bytes:
    """256 random bits for LINKS or UPLOADS."""
    return bytes.fromhex(required(tx.one("SELECT value FROM service_value WHERE name = ?", (_key_name(purpose),)))[0])


def replace_signing_key(tx: Tx, purpose: str) -> None:
    """A new key: everything signed with the old one is void."""
    _put(tx, _key_name(purpose), secrets.token_hex(32))


def get_address(tx: Tx) -> str | None:
    """The base address of the service that was started last; None before the first start."""
    row = tx.one("SELECT value FROM service_value WHERE name = ?", (_ADDRESS,))
    return None if row is None else str(row[0])


def put_address(tx: Tx, address: str) -> None:
    _put(tx, _ADDRESS, address)


def put_probe(tx: Tx, now: float) -> None:
    """Write something that means nothing, to find out whether writing works."""
    _put(tx, _PROBE, str(now))


def _put(tx: Tx, name: str, value: str) -> None:
    tx.execute(
        "INSERT INTO service_value (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", (name, value)
    )


def _key_name(purpose: str) -> str:
    return f"signing_key.{purpose}"
