"""The database's versions, in order. A published migration is never changed; a change of layout is a new one at the end.

The tables of the records themselves are made at run time, one per object, by record_tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from crmctl.errors import ConfigError
from crmctl.service.store import (
    activities,
    attempt_counts,
    attribute_removals,
    audit_log,
    change_log,
    deliveries,
    delivery_claims,
    figures,
    object_removals,
    passwords,
    rates,
    record_tables,
    reports,
    request_log,
    service_values,
    sessions,
    webhooks,
    workflow_runs,
    workflows,
)
from crmctl.service.store.tx import Tx, required


class _Writer(Protocol):
    def write(self, fn: Callable[[Tx], None]) -> None: ...


@dataclass(frozen=True)
class Migration:
    """One step; runs in the same transaction as the note that it was done."""

    name: str
    apply: Callable[[Tx], None]


def migrate(engine: _Writer, migrations: Sequence[Migration] | None = None) -> None:
    """Bring the database to the newest version, all steps in one transaction; raises ConfigError when it is newer than this program."""
    engine.write(lambda tx: upgrade(tx, MIGRATIONS if migrations is None else migrations))


def upgrade(tx: Tx, steps: Sequence[Migration]) -> None:
    """The same inside a transaction."""
    for statement in tx.dialect.before_migration:
        tx.execute(statement)
    tx.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, name TEXT NOT NULL)")
    current = _version(tx)
    if current > len(steps):
        raise ConfigError(
            f"the database has version {current}, this program knows versions up to {len(steps)}",
            hint="upgrade crmctl, or point it at another data directory",
        )
    for version, step in enumerate(steps[current:], start=current + 1):
        step.apply(tx)
        tx.execute("INSERT INTO schema_version (version, name) VALUES (?, ?)", (version, step.name))


def _version(tx: Tx) -> int:
    version: int = required(tx.one("SELECT coalesce(max(version), 0) FROM schema_version"))[0]
    return version


def _first_release(tx: Tx) -> None:
    dialect = tx.dialect
    text = dialect.text
    for statement in (
        # The primary key admits one row: a second process that sets up the same database at the same time fails.
        f"""CREATE TABLE organisation (singleton INTEGER PRIMARY KEY CHECK (singleton = 1), id {text} NOT NULL, name {text} NOT NULL,
            created_at BIGINT NOT NULL)""",
        f"""CREATE TABLE member (id {text} PRIMARY KEY, user_id {text} NOT NULL UNIQUE, name {text} NOT NULL, email {text} NOT NULL,
            email_key {text} NOT NULL UNIQUE, image {text}, role {text} NOT NULL, created_at BIGINT NOT NULL)""",
        f"""CREATE TABLE api_key (id {text} PRIMARY KEY, name {text} NOT NULL, secret_hash {text} NOT NULL UNIQUE,
            scopes {text}, created_by {text}, created_at BIGINT NOT NULL, expires_at BIGINT, revoked_at BIGINT)""",
        f"""CREATE TABLE crm_object (number {dialect.identity}, id {text} NOT NULL UNIQUE, type {text} NOT NULL,
            plural_name {text} NOT NULL, singular_name {text} NOT NULL, description {text} NOT NULL, slug {text} NOT NULL UNIQUE,
            is_active INTEGER NOT NULL, created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL)""",
        f"""CREATE TABLE attribute (number {dialect.identity}, id {text} NOT NULL UNIQUE, object_id {text} NOT NULL, name {text} NOT NULL,
            slug {text} NOT NULL, type {text} NOT NULL, is_required INTEGER NOT NULL, is_unique INTEGER NOT NULL, is_list INTEGER NOT NULL,
            is_active INTEGER NOT NULL, display_order INTEGER NOT NULL, config {text}, created_at BIGINT NOT NULL,
            updated_at BIGINT NOT NULL, UNIQUE (object_id, slug))""",
        # Beside crm_object and not in it: the total changes with every write, the object almost never.
        f"CREATE TABLE record_total (object_id {text} PRIMARY KEY, total BIGINT NOT NULL)",
        f"""CREATE TABLE unique_value (attribute INTEGER NOT NULL, key {text} NOT NULL, record_id {text} NOT NULL,
            PRIMARY KEY (attribute, key)){dialect.keyed_table}""",
        f"""CREATE TABLE outbox (sequence {dialect.identity}, id {text} NOT NULL UNIQUE, type {text} NOT NULL,
            payload {dialect.blob} NOT NULL, created_at BIGINT NOT NULL)""",
    ):
        tx.execute(statement)


def _places(tx: Tx) -> None:
    delivery_claims.create_tables(tx)
    workflow_runs.create_places(tx)


def _members_sign_in(tx: Tx) -> None:
    passwords.create_tables(tx)
    sessions.add_owners(tx)


MIGRATIONS: tuple[Migration, ...] = (
    Migration("first release", _first_release),
    Migration("activities", activities.create_tables),
    Migration("webhook endpoints", webhooks.create_tables),
    Migration("webhook deliveries", deliveries.create_tables),
    Migration("reports", reports.create_tables),
    Migration("shared values", service_values.create_tables),
    Migration("page sessions", sessions.create_tables),
    Migration("rate windows", rates.create_tables),
    Migration("workflows", workflows.create_tables),
    Migration("workflow runs", workflow_runs.create_tables),
    Migration("places of endpoints and workflows", _places),
    Migration("log of changes", change_log.create_tables),
    Migration("members sign in", _members_sign_in),
    Migration("audit log", audit_log.create_tables),
    Migration("request log", request_log.create_tables),
    Migration("indexes of figures", figures.create_indexes),
    Migration("sizes of report runs", reports.add_sizes),
    Migration("endpoints that are given up", delivery_claims.add_disabling),
    Migration("counts of attempts", attempt_counts.create_tables),
    Migration("what deleted attributes leave behind", attribute_removals.create_table),
    Migration("what deleted objects leave behind", object_removals.create_table),
    Migration("waiting deliveries in their order", delivery_claims.order_waiting),
    Migration("index of failed requests", request_log.create_index_of_failures),
    Migration("tables of records that are vacuumed sooner", record_tables.let_tables_grow),
)
