"""The interface of databases, how to open one, every table as it is today, and the way there from older databases.

Callers need not know which engine it is. Tables of records are made at run time by record_tables. A published migration never changes its
result; a new layout is a new migration at the end.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from crmctl.errors import ConfigError, RejectedError, install_command
from crmctl.frozen import frozen
from crmctl.service.store import keys
from crmctl.service.store.sqlite import SqliteEngine, place_file
from crmctl.service.store.tx import Tx, required

__all__ = ["Engine", "Tx", "open_engine", "rehearse"]

T = TypeVar("T")

if TYPE_CHECKING:
    from crmctl.service.store.postgres import PostgresEngine

    Engine: TypeAlias = SqliteEngine | PostgresEngine
    """Runs functions in transactions; thread-safe. `read` runs `fn` on one snapshot, `write` isolated from other writes of the same rows.

    An engine may run `fn` more than once before it takes effect, so that `fn` touches only `tx` and asks the clock itself. Its errors roll
    back and reach the caller. Both raise Busy, and stop the database's work, after `within` seconds; `write` raises Unavailable when the
    database cannot be written: then nothing has been written. `single` says that `fn` runs one statement, which may need no transaction;
    unless `helped`, a read takes one processor; `by` is the actor of a write (see logs).
    """
else:
    Engine = SqliteEngine


def rehearse(engine: Engine, fn: Callable[[Tx], T], *, by: str | None = None) -> T:
    """Return or raise what `engine.write(fn)` would, and roll back."""

    def do_and_undo(tx: Tx) -> T:
        raise _Rehearsed(fn(tx))

    try:
        return engine.write(do_and_undo, by=by)
    except _Rehearsed as rehearsed:
        return cast("T", rehearsed.outcome)


class _Rehearsed(Exception):
    def __init__(self, outcome: object) -> None:
        self.outcome = outcome


def open_engine(database_url_or_path: str | Path) -> Engine:
    """Open a database, creating or upgrading it: a path, `sqlite:///path` or `postgresql://...`.

    Raises ConfigError for any other address, for a database that cannot be opened, and for one of a newer version.
    """
    engine = _open(str(database_url_or_path))
    try:
        migrate(engine)
    except BaseException:
        engine.close()
        raise
    return engine


def has_data(address: str) -> bool:
    """Whether a service's database exists, at any version. Creates nothing. Raises ConfigError."""
    if address.startswith("sqlite:"):
        return Path(address.removeprefix("sqlite:///")).exists()
    with contextlib.closing(_open_postgres(address)) as engine:
        return engine.has_tables()


def check_copy(address: str, described: Mapping[str, Any]) -> None:
    """Raise RejectedError for a copy of the other engine or of another version than this program reads."""
    kind = "sqlite" if address.startswith("sqlite:") else "postgresql"
    if described["engine"] != kind:
        names = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
        hint = "--database-url URL" if kind == "sqlite" else "leave out --database-url"
        raise RejectedError(f"this is a backup of a service on {names[described['engine']]}, not {names[kind]}", hint=hint)
    if described["schemaVersion"] < FIRST:
        raise RejectedError("this backup was made before the first release of crmctl", hint="restore it with the crmctl that made it")
    if described["schemaVersion"] > newest_version():
        raise RejectedError("this backup was made by a newer crmctl", hint="upgrade crmctl")


def load_copy(address: str, folder: Path, described: Mapping[str, Any]) -> None:
    """Create a database from a checked copy that `copy_out` made, and bring it to the newest version."""
    if address.startswith("sqlite:"):
        place_file(folder, Path(address.removeprefix("sqlite:///")))
    else:
        with contextlib.closing(_open_postgres(address)) as engine:
            engine.copy_in(folder, described, lambda tx, version: upgrade(tx, MIGRATIONS[: version - FIRST + 1]))
    open_engine(address).close()


def _open(address: str) -> Engine:
    scheme, separator, path = address.partition("://")
    if not separator:
        return SqliteEngine(address)
    if scheme == "sqlite" and path.startswith("/") and path != "/":
        return SqliteEngine(path[1:])
    return _open_postgres(address)


def _open_postgres(address: str) -> PostgresEngine:
    scheme = address.partition("://")[0]
    if scheme not in ("postgresql", "postgres"):
        # Only the scheme: the rest may hold a password.
        raise ConfigError(
            f"cannot open a database at {scheme}://",
            hint="use a path, sqlite:///PATH (four slashes for an absolute one) or postgresql://USER:PASSWORD@HOST/DATABASE",
        )
    try:
        from crmctl.service.store.postgres import PostgresEngine
    except ImportError as error:
        raise ConfigError("PostgreSQL needs a library that is not installed", hint=install_command("postgres")) from error
    return PostgresEngine(address)


_SCHEMA = """
-- The primary key admits one row: of two processes that set up the same database at the same time, one fails.
CREATE TABLE organisation (singleton INTEGER PRIMARY KEY CHECK (singleton = 1), id {text} NOT NULL, name {text} NOT NULL,
    created_at BIGINT NOT NULL);
CREATE TABLE service_value (name {text} PRIMARY KEY, value {text} NOT NULL);
CREATE TABLE member (id {text} PRIMARY KEY, user_id {text} NOT NULL UNIQUE, name {text} NOT NULL, email {text} NOT NULL,
    email_key {text} NOT NULL UNIQUE, image {text}, role {text} NOT NULL, created_at BIGINT NOT NULL);
CREATE TABLE member_password (member_id {text} PRIMARY KEY, hash {text}, link_hash {text} UNIQUE, link_expires_at BIGINT);
CREATE TABLE page_session (token_hash {text} PRIMARY KEY, id {text} NOT NULL UNIQUE, area {text} NOT NULL, member_id {text},
    key_id {text}, address {text} NOT NULL, agent {text} NOT NULL, created_at BIGINT NOT NULL, expires_at BIGINT NOT NULL);
CREATE TABLE used_link (signature {text} PRIMARY KEY, expires_at BIGINT NOT NULL);
CREATE TABLE api_key (id {text} PRIMARY KEY, name {text} NOT NULL, secret_hash {text} NOT NULL UNIQUE,
    scopes {text}, created_by {text}, created_at BIGINT NOT NULL, expires_at BIGINT, revoked_at BIGINT);
CREATE TABLE oidc_trust (id {text} PRIMARY KEY, name {text} NOT NULL UNIQUE, issuer {text} NOT NULL, claims {text} NOT NULL,
    scopes {text} NOT NULL, ttl INTEGER NOT NULL, development INTEGER NOT NULL, created_at BIGINT NOT NULL);
CREATE TABLE device_login (device_hash {text} PRIMARY KEY, user_code {text} NOT NULL UNIQUE, host {text} NOT NULL,
    address {text} NOT NULL, state {text} NOT NULL, member_id {text}, expires_at BIGINT NOT NULL, polled_at BIGINT NOT NULL,
    wait BIGINT NOT NULL);
-- On SQLite the windows are counted in memory, and this table stays empty.
{passing_table} rate_window (key_id {text} NOT NULL, ends_at BIGINT NOT NULL, taken BIGINT NOT NULL,
    PRIMARY KEY (key_id, ends_at));
CREATE TABLE crm_object (number {identity}, id {text} NOT NULL UNIQUE, type {text} NOT NULL,
    plural_name {text} NOT NULL, singular_name {text} NOT NULL, description {text} NOT NULL, slug {text} NOT NULL UNIQUE,
    is_active INTEGER NOT NULL, created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL);
CREATE TABLE attribute (number {identity}, id {text} NOT NULL UNIQUE, object_id {text} NOT NULL, name {text} NOT NULL,
    slug {text} NOT NULL, type {text} NOT NULL, is_required INTEGER NOT NULL, is_unique INTEGER NOT NULL, is_list INTEGER NOT NULL,
    is_active INTEGER NOT NULL, display_order INTEGER NOT NULL, config {text}, created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL, UNIQUE (object_id, slug));
CREATE TABLE attribute_removal (number INTEGER PRIMARY KEY, object_id {text} NOT NULL, object_number INTEGER NOT NULL,
    slug {text} NOT NULL, is_indexed INTEGER NOT NULL, is_unique INTEGER NOT NULL, done BIGINT NOT NULL, last BIGINT NOT NULL,
    is_vacant INTEGER NOT NULL);
-- Beside crm_object and not in it: the total changes with every write, the object almost never.
CREATE TABLE record_total (object_id {text} PRIMARY KEY, total BIGINT NOT NULL);
CREATE TABLE unique_value (attribute INTEGER NOT NULL, key {text} NOT NULL, record_id {text} NOT NULL,
    PRIMARY KEY (attribute, key)){keyed_table};
CREATE TABLE change_log (sequence {sequence}, at BIGINT NOT NULL, type {text} NOT NULL, object_number INTEGER,
    subject {text}, actor {text}, before {text}, event_id {text}, payload {blob}, waiting INTEGER NOT NULL);
CREATE INDEX change_log_at ON change_log (at);
CREATE INDEX change_log_waiting ON change_log (sequence) WHERE waiting = 1;
CREATE UNIQUE INDEX change_log_event ON change_log (event_id) WHERE event_id IS NOT NULL;
-- Without the creations: those are found by their time, which the record itself has.
CREATE INDEX change_log_subject ON change_log (subject, sequence) WHERE before IS NOT NULL;
CREATE TABLE activity (number {identity}, id {text} NOT NULL UNIQUE, title {text} NOT NULL, summary {text} NOT NULL,
    activity_date BIGINT NOT NULL, linked_records {text} NOT NULL, participants {text} NOT NULL, created_by {text} NOT NULL,
    created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL);
CREATE TABLE activity_link (record_id {text} NOT NULL, object_id {text} NOT NULL, activity BIGINT NOT NULL,
    PRIMARY KEY (record_id, object_id, activity)){keyed_table};
CREATE INDEX activity_link_object ON activity_link (object_id, activity);
CREATE INDEX activity_link_activity ON activity_link (activity);
CREATE TABLE report (number {identity}, id {text} NOT NULL UNIQUE, name {text} NOT NULL UNIQUE, description {text} NOT NULL,
    object_id {text} NOT NULL, question {text} NOT NULL, creator {text} NOT NULL, last_run_at BIGINT, created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL);
-- The results come last, so that a list of runs does not read over them; their sizes are in an index for the same reason.
CREATE TABLE report_run (number {identity}, id {text} NOT NULL UNIQUE, report_id {text} NOT NULL, status {text} NOT NULL,
    result_count BIGINT NOT NULL, error {text}, started_at BIGINT NOT NULL, completed_at BIGINT NOT NULL,
    truncated INTEGER NOT NULL, columns {text} NOT NULL, size BIGINT NOT NULL DEFAULT 0, results {text} NOT NULL);
CREATE INDEX report_run_report ON report_run (report_id, number);
CREATE INDEX report_run_size ON report_run (number, size, report_id);
CREATE TABLE webhook_endpoint (number {identity}, id {text} NOT NULL UNIQUE, url {text} NOT NULL, description {text} NOT NULL,
    event_types {text}, enabled INTEGER NOT NULL, secret {text} NOT NULL, old_secret {text}, old_secret_until BIGINT,
    created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL, tried_at BIGINT, succeeded_at BIGINT, failing_since BIGINT,
    problem {text}, disabled_at BIGINT);
CREATE TABLE webhook_delivery (number {identity}, id {text} NOT NULL UNIQUE, endpoint_id {text} NOT NULL,
    event_id {text} NOT NULL, event_type {text} NOT NULL, state {text} NOT NULL, attempts INTEGER NOT NULL, next_try_at BIGINT,
    lease_until BIGINT NOT NULL, created_at BIGINT NOT NULL, settled_at BIGINT);
CREATE INDEX webhook_delivery_endpoint ON webhook_delivery (endpoint_id, number);
CREATE INDEX webhook_delivery_event ON webhook_delivery (event_id);
CREATE INDEX webhook_delivery_state ON webhook_delivery (endpoint_id, state, number);
CREATE INDEX webhook_delivery_waiting ON webhook_delivery (endpoint_id, next_try_at, number) WHERE state = 'pending';
CREATE INDEX webhook_delivery_leased ON webhook_delivery (endpoint_id) WHERE state = 'pending' AND lease_until > 0;
CREATE INDEX webhook_delivery_failed ON webhook_delivery (settled_at) WHERE state = 'failed';
CREATE INDEX webhook_delivery_settled ON webhook_delivery (settled_at) WHERE settled_at IS NOT NULL;
CREATE TABLE webhook_attempt (delivery_id {text} NOT NULL, attempt INTEGER NOT NULL, at BIGINT NOT NULL,
    millis BIGINT NOT NULL, status INTEGER, error {text}, request_headers {text} NOT NULL, response_headers {text} NOT NULL,
    response_body {text} NOT NULL, PRIMARY KEY (delivery_id, attempt));
CREATE TABLE workflow (number {identity}, id {text} NOT NULL UNIQUE, name {text} NOT NULL UNIQUE,
    description {text} NOT NULL, trigger_event {text} NOT NULL, object_id {text}, plan {text} NOT NULL, cron {text},
    timezone {text}, enabled INTEGER NOT NULL, next_due_at BIGINT, created_by {text} NOT NULL, created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL);
CREATE INDEX workflow_trigger ON workflow (trigger_event) WHERE enabled = 1;
-- A run that an event or a schedule started names it, so that neither can start it twice.
CREATE TABLE workflow_run (number {identity}, id {text} NOT NULL UNIQUE, workflow_id {text} NOT NULL,
    status {text} NOT NULL, title {text} NOT NULL, trigger_event {text} NOT NULL, error {text}, event_id {text}, due_at BIGINT,
    chain {text} NOT NULL, actions {text} NOT NULL, input {text} NOT NULL, steps {text} NOT NULL, step INTEGER NOT NULL,
    is_calling INTEGER NOT NULL, attempts INTEGER NOT NULL, lease_until BIGINT NOT NULL, started_at BIGINT, completed_at BIGINT,
    created_at BIGINT NOT NULL, UNIQUE (workflow_id, event_id), UNIQUE (workflow_id, due_at));
CREATE INDEX workflow_run_workflow ON workflow_run (workflow_id, number);
CREATE INDEX workflow_run_ended ON workflow_run (completed_at);
CREATE INDEX workflow_run_waiting ON workflow_run (workflow_id, number) WHERE completed_at IS NULL;
CREATE INDEX workflow_run_leased ON workflow_run (workflow_id) WHERE completed_at IS NULL AND lease_until > 0;
CREATE INDEX workflow_run_failed ON workflow_run (completed_at) WHERE status = 'failed';
-- Which run made an event, until the event has been handed over.
CREATE TABLE workflow_origin (event_id {text} PRIMARY KEY, run_id {text} NOT NULL){keyed_table};
CREATE TABLE audit_log (sequence {identity}, at BIGINT NOT NULL, actor {text} NOT NULL, action {text} NOT NULL,
    subject {text} NOT NULL, about {text} NOT NULL);
CREATE INDEX audit_log_at ON audit_log (at);
CREATE TABLE request_log (sequence {sequence}, at BIGINT NOT NULL, request_id {text} NOT NULL, key_id {text},
    method {text} NOT NULL, route {text} NOT NULL, status INTEGER, micros BIGINT NOT NULL, address {text});
CREATE INDEX request_log_at ON request_log (at);
CREATE INDEX request_log_failed ON request_log (at) WHERE status >= 400;
"""

TABLES: dict[str, list[str]] = {}
"""The statements that make each table and its indexes."""

for _statement in filter(str.strip, _SCHEMA.split(";\n")):
    TABLES.setdefault(re.findall(r"(?:TABLE|table}|ON) (\w+) \(", _statement)[0], []).append(_statement)


def tables(*names: str) -> list[str]:
    """Return the statements of tables that no later migration changes. Whoever changes one writes its old form in its migration."""
    return [statement for name in names for statement in TABLES[name]]


def run(tx: Tx, *statements: str) -> None:
    """Execute statements in which `{text}` and the like stand for the engine's own words."""
    names = ("text", "blob", "identity", "sequence", "keyed_table", "passing_table")
    words = {name: getattr(tx.dialect, name) for name in names}
    for statement in statements:
        tx.execute(statement.format(**words))


@frozen
class Migration:
    """One step: SQL, or functions. The note that it was done commits with it."""

    name: str
    steps: Sequence[str | Callable[[Tx], None]]


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
        run(tx, *tables(*TABLES))
        keys.make_signing_keys(tx)
    for version, migration in enumerate(migrations, start=FIRST):
        if version > current:
            for step in migration.steps if not is_new or version > newest_version() else ():
                if isinstance(step, str):
                    run(tx, step)
                else:
                    step(tx)
            tx.execute("INSERT INTO schema_version (version, name) VALUES (?, ?)", (version, migration.name))


_HOURS = """CREATE TABLE webhook_hour (endpoint_id {text} NOT NULL, hour INTEGER NOT NULL, time_class INTEGER NOT NULL,
    attempts BIGINT NOT NULL, PRIMARY KEY (endpoint_id, hour, time_class))"""
_USED_TOKENS = "CREATE TABLE used_token (digest {text} PRIMARY KEY, expires_at BIGINT NOT NULL)"
_DELETED_OBJECTS = "CREATE TABLE IF NOT EXISTS object_removal (number INTEGER PRIMARY KEY, is_indexed INTEGER NOT NULL)"
_LATER = ("used_link", "oidc_trust", "device_login")


def _drop_deleted_objects(tx: Tx) -> None:
    """Drop the tables of deleted objects that an older version has not emptied yet."""
    for (number,) in tx.all("SELECT number FROM object_removal"):
        attributes = "SELECT number FROM attribute_removal WHERE object_number = ?"
        tx.execute(f"DELETE FROM unique_value WHERE attribute IN ({attributes})", (number,))
        tx.execute("DELETE FROM attribute_removal WHERE object_number = ?", (number,))
        tx.execute(f"DROP TABLE record_{number}")


FIRST = 24
"""The version of the first migration: databases with lower ones were made before any release."""

MIGRATIONS: tuple[Migration, ...] = (
    Migration("first release", [*tables(*(name for name in TABLES if name not in _LATER)), _HOURS, keys.make_signing_keys]),
    Migration("links that work once", tables("used_link")),
    Migration("trust in issuers of tokens", [*tables("oidc_trust"), _USED_TOKENS]),
    Migration("logins of devices", tables("device_login")),
    Migration("no counts of attempts by the hour", ["DROP TABLE webhook_hour"]),
    Migration("one table of what works once", ["DROP TABLE IF EXISTS used_token"]),
    Migration("deleted objects go at once", [_DELETED_OBJECTS, _drop_deleted_objects, "DROP TABLE object_removal"]),
)


def newest_version(migrations: Sequence[Migration] = MIGRATIONS) -> int:
    return FIRST + len(migrations) - 1
