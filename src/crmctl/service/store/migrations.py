"""Bring an older database to the tables of today. A published migration never changes its result; a new layout is a new one at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from crmctl.clock import SystemClock
from crmctl.errors import ConfigError
from crmctl.service.store import keys, record_tables
from crmctl.service.store.change_log import note_known_since
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
    """Bring the database of an engine to the newest version in one transaction. Raises ConfigError when it is newer than this program."""
    engine.write(lambda tx: upgrade(tx, MIGRATIONS if migrations is None else migrations))


def upgrade(tx: Tx, migrations: Sequence[Migration]) -> None:
    """Do what `migrate` does, inside a transaction. An empty database gets the tables of today at once."""
    for statement in tx.dialect.before_migration:
        tx.execute(statement)
    tx.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, name TEXT NOT NULL)")
    current: int = required(tx.one("SELECT coalesce(max(version), 0) FROM schema_version"))[0]
    if current > len(migrations):
        raise ConfigError(
            f"the database has version {current}, this program knows versions up to {len(migrations)}",
            hint="upgrade crmctl, or point it at another data directory",
        )
    is_new = current == 0 and len(migrations) >= len(MIGRATIONS)
    if is_new:
        create(tx, *TABLES)
        keys.make_signing_keys(tx)
    for version, migration in enumerate(migrations[current:], start=current + 1):
        if not is_new or version > len(MIGRATIONS):
            migration.apply(tx)
        tx.execute("INSERT INTO schema_version (version, name) VALUES (?, ?)", (version, migration.name))


def _tables(*names: str) -> Callable[[Tx], None]:
    """Create tables that no later migration changes. Whoever changes one writes its old form here."""
    return lambda tx: create(tx, *names)


def _begin_change_log(tx: Tx) -> None:
    if tx.one("SELECT 1 FROM organisation") is not None:
        note_known_since(tx, SystemClock().now())


_ATTEMPTS = "FROM webhook_attempt AS a JOIN webhook_delivery AS d ON d.id = a.delivery_id WHERE d.endpoint_id = webhook_endpoint.id"
_NEEDED = "dispatched = 0 OR EXISTS (SELECT 1 FROM webhook_delivery AS d WHERE d.event_id = outbox.id)"

MIGRATIONS: tuple[Migration, ...] = (
    Migration(
        "first release",
        (
            _tables("organisation", "member", "api_key", "crm_object", "attribute", "record_total", "unique_value"),
            """CREATE TABLE outbox (sequence {identity}, id {text} NOT NULL UNIQUE, type {text} NOT NULL,
                payload {blob} NOT NULL, created_at BIGINT NOT NULL)""",
        ),
    ),
    Migration("activities", [_tables("activity", "activity_link")]),
    Migration(
        "webhook endpoints",
        [
            """CREATE TABLE webhook_endpoint (number {identity}, id {text} NOT NULL UNIQUE, url {text} NOT NULL,
                description {text} NOT NULL, event_types {text}, enabled INTEGER NOT NULL, secret {text} NOT NULL,
                old_secret {text}, old_secret_until BIGINT, created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL)"""
        ],
    ),
    Migration(
        "webhook deliveries",
        (
            # Events written before have no endpoint to go to and count as dispatched.
            "ALTER TABLE outbox ADD COLUMN dispatched INTEGER NOT NULL DEFAULT 0",
            "UPDATE outbox SET dispatched = 1",
            "CREATE INDEX outbox_waiting ON outbox (sequence) WHERE dispatched = 0",
            TABLES["webhook_delivery"][0],
            "CREATE INDEX webhook_delivery_due ON webhook_delivery (next_try_at) WHERE state = 'pending'",
            "CREATE INDEX webhook_delivery_endpoint ON webhook_delivery (endpoint_id, number)",
            "CREATE INDEX webhook_delivery_event ON webhook_delivery (event_id)",
            _tables("webhook_attempt"),
        ),
    ),
    Migration(
        "reports",
        (
            _tables("report"),
            """CREATE TABLE report_run (number {identity}, id {text} NOT NULL UNIQUE, report_id {text} NOT NULL, status {text} NOT NULL,
                result_count BIGINT NOT NULL, error {text}, started_at BIGINT NOT NULL, completed_at BIGINT NOT NULL,
                truncated INTEGER NOT NULL, columns {text} NOT NULL, results {text} NOT NULL)""",
            "CREATE INDEX report_run_report ON report_run (report_id, number)",
        ),
    ),
    Migration("shared values", (_tables("service_value"), keys.make_signing_keys)),
    Migration(
        "page sessions",
        [
            """CREATE TABLE page_session (token_hash {text} PRIMARY KEY, area {text} NOT NULL, key_id {text},
                created_at BIGINT NOT NULL, expires_at BIGINT NOT NULL)"""
        ],
    ),
    Migration("rate windows", [_tables("rate_window")]),
    Migration("workflows", [_tables("workflow")]),
    Migration(
        "workflow runs",
        (
            TABLES["workflow_run"][0],
            "CREATE INDEX workflow_run_workflow ON workflow_run (workflow_id, number)",
            "CREATE INDEX workflow_run_open ON workflow_run (lease_until) WHERE completed_at IS NULL",
            "CREATE INDEX workflow_run_ended ON workflow_run (completed_at)",
            _tables("workflow_origin"),
        ),
    ),
    Migration(
        "places of endpoints and workflows",
        (
            "ALTER TABLE webhook_endpoint ADD COLUMN tried_at BIGINT",
            "ALTER TABLE webhook_endpoint ADD COLUMN succeeded_at BIGINT",
            "ALTER TABLE webhook_endpoint ADD COLUMN failing_since BIGINT",
            "ALTER TABLE webhook_endpoint ADD COLUMN problem {text}",
            f"UPDATE webhook_endpoint SET tried_at = (SELECT max(a.at) {_ATTEMPTS}), "
            f"succeeded_at = (SELECT max(a.at) {_ATTEMPTS} AND a.status BETWEEN 200 AND 299)",
            f"UPDATE webhook_endpoint SET failing_since = (SELECT min(a.at) {_ATTEMPTS} AND a.at > coalesce(succeeded_at, 0)), "
            f"problem = (SELECT coalesce(a.error, 'answered with status ' || a.status) {_ATTEMPTS} AND a.at > coalesce(succeeded_at, 0) "
            "ORDER BY a.at DESC LIMIT 1)",
            "CREATE INDEX webhook_delivery_waiting ON webhook_delivery (endpoint_id, next_try_at) WHERE state = 'pending'",
            "CREATE INDEX webhook_delivery_leased ON webhook_delivery (endpoint_id) WHERE state = 'pending' AND lease_until > 0",
            "DROP INDEX webhook_delivery_due",
            "CREATE INDEX workflow_run_waiting ON workflow_run (workflow_id, number) WHERE completed_at IS NULL",
            "CREATE INDEX workflow_run_leased ON workflow_run (workflow_id) WHERE completed_at IS NULL AND lease_until > 0",
            "DROP INDEX workflow_run_open",
        ),
    ),
    Migration(
        "log of changes",
        (
            _tables("change_log"),
            # Only the events that deliveries still need go over.
            "INSERT INTO change_log (at, type, event_id, payload, waiting) "
            f"SELECT created_at, type, id, payload, 1 - dispatched FROM outbox WHERE {_NEEDED} ORDER BY sequence",
            "DROP TABLE outbox",
            _begin_change_log,
        ),
    ),
    # Open sessions end: they name no member.
    Migration("members sign in", (_tables("member_password"), "DROP TABLE page_session", _tables("page_session"))),
    Migration("audit log", [_tables("audit_log")]),
    Migration("request log", TABLES["request_log"][:2]),
    Migration(
        "indexes of figures",
        (
            "CREATE INDEX webhook_delivery_failed ON webhook_delivery (settled_at) WHERE state = 'failed'",
            "CREATE INDEX webhook_delivery_settled ON webhook_delivery (settled_at) WHERE settled_at IS NOT NULL",
            "CREATE INDEX workflow_run_failed ON workflow_run (completed_at) WHERE status = 'failed'",
        ),
    ),
    Migration(
        "sizes of report runs",
        (
            "ALTER TABLE report_run ADD COLUMN size BIGINT NOT NULL DEFAULT 0",
            "UPDATE report_run SET size = length(results)",
            "CREATE INDEX report_run_size ON report_run (number, size, report_id)",
        ),
    ),
    Migration("endpoints that are given up", ["ALTER TABLE webhook_endpoint ADD COLUMN disabled_at BIGINT"]),
    Migration(
        "counts of attempts",
        (_tables("webhook_hour"), "CREATE INDEX webhook_delivery_state ON webhook_delivery (endpoint_id, state, number)"),
    ),
    Migration("what deleted attributes leave behind", [_tables("attribute_removal")]),
    Migration("what deleted objects leave behind", [_tables("object_removal")]),
    Migration(
        "waiting deliveries in their order",
        (
            "DROP INDEX webhook_delivery_waiting",
            "CREATE INDEX webhook_delivery_waiting ON webhook_delivery (endpoint_id, next_try_at, number) WHERE state = 'pending'",
        ),
    ),
    Migration("index of failed requests", ["CREATE INDEX request_log_failed ON request_log (at) WHERE status >= 400"]),
    Migration("tables of records that are vacuumed sooner", [record_tables.let_tables_grow]),
    Migration("links that work once", [_tables("used_link")]),
    Migration("trust in issuers of tokens", [_tables("oidc_trust", "used_token")]),
)
