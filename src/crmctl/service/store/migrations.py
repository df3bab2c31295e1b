"""Bring an older database to the tables of today. A published migration never changes its result; a new layout is a new one at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from crmctl.errors import ConfigError
from crmctl.service.store import keys
from crmctl.service.store.tables import TABLES, create, run
from crmctl.service.store.tx import Tx, required


@dataclass(frozen=True)
class Migration:
    """One step: SQL, or functions. The note that it was done commits with it."""

    name: str
    steps: Sequence[str | Callable[[Tx], None]]

    def apply(self, tx: Tx) -> None:
        for step in self.steps:
            if isinstance(step, str):
                run(tx, step)
            else:
                step(tx)


def migrate(engine: Any, migrations: Sequence[Migration] | None = None) -> None:
    """Bring the database of an engine to the newest version in one transaction. Raises ConfigError when it is newer than this program, or
    older than FIRST."""
    engine.write(lambda tx: upgrade(tx, MIGRATIONS if migrations is None else migrations))


def upgrade(tx: Tx, migrations: Sequence[Migration]) -> None:
    """Do what `migrate` does, inside a transaction. An empty database gets the tables of today at once."""
    for statement in tx.dialect.before_migration:
        tx.execute(statement)
    tx.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, name TEXT NOT NULL)")
    current: int = required(tx.one("SELECT coalesce(max(version), 0) FROM schema_version"))[0]
    newest = newest_version(migrations)
    if current > newest:
        raise ConfigError(
            f"the database has version {current}, this program knows versions up to {newest}",
            hint="upgrade crmctl, or point it at another data directory",
        )
    if 0 < current < FIRST:
        raise ConfigError(
            f"the database has version {current}, and this program upgrades databases from version {FIRST} on",
            hint="move the data with the crmctl that wrote it: crmctl org pull, then crmctl org apply",
        )
    is_new = current == 0 and len(migrations) >= len(MIGRATIONS)
    if is_new:
        create(tx, *TABLES)
        keys.make_signing_keys(tx)
    for version, migration in enumerate(migrations, start=FIRST):
        if version > current:
            if not is_new or version > newest_version():
                migration.apply(tx)
            tx.execute("INSERT INTO schema_version (version, name) VALUES (?, ?)", (version, migration.name))


def _tables(*names: str) -> Callable[[Tx], None]:
    """Create tables that no later migration changes. Whoever changes one writes its old form here."""
    return lambda tx: create(tx, *names)


_LINKS = ("used_link",)
_TRUSTS = ("oidc_trust", "used_token")

FIRST = 24
"""The version of the first migration: databases with lower ones were made before any release."""

MIGRATIONS: tuple[Migration, ...] = (
    Migration("first release", (_tables(*(name for name in TABLES if name not in _LINKS + _TRUSTS)), keys.make_signing_keys)),
    Migration("links that work once", [_tables(*_LINKS)]),
    Migration("trust in issuers of tokens", [_tables(*_TRUSTS)]),
)


def newest_version(migrations: Sequence[Migration] = MIGRATIONS) -> int:
    return FIRST + len(migrations) - 1
