"""Figures that an operator wants to be woken for: what waits, for how long, what fails, how large the data is."""

from __future__ import annotations

from crmctl.service.store import attempt_counts
from crmctl.service.store.timestamps import to_micros
from crmctl.service.store.tx import Tx, required

DAY = 24 * 3600.0

FIGURES = {
    "events_waiting": "Events that are not handed to endpoints and workflows yet.",
    "events_oldest_seconds": "Age of the oldest of them.",
    "deliveries_pending": "Webhook deliveries that are not settled.",
    "deliveries_oldest_seconds": "Age of the oldest of them.",
    "deliveries_failed_day": "Webhook deliveries that failed for good in the last 24 hours.",
    "delivery_attempts_day": "Attempts of webhook deliveries in the last 24 hours, whatever came of them.",
    "delivery_attempts_failed_day": "Those of them that did not succeed.",
    "endpoints_failing": "Enabled webhook endpoints whose last attempt failed.",
    "workflow_runs_waiting": "Workflow runs that have not ended.",
    "workflow_runs_failed_day": "Workflow runs that failed in the last 24 hours.",
    "database_bytes": "Size of the database.",
    "database_connections": "Connections to the database that are open.",
    "database_connections_used": "Those of them that are in use.",
    "database_requests_waiting": "Transactions that wait for a connection.",
    "request_log_dropped": "Requests that could not be written to the request log.",
}


def read_figures(tx: Tx, *, now: float) -> dict[str, float]:
    """Each from an index, however much there is."""
    at, yesterday = to_micros(now), to_micros(now - DAY)

    def one(sql: str, *params: int) -> float:
        return float(required(tx.one(sql, params))[0])

    def age(sql: str) -> float:
        since = required(tx.one(sql))[0]
        return 0.0 if since is None else max(0.0, (at - since) / 1_000_000)

    days = attempt_counts.last_day(tx, now=now).values()
    return {
        "events_waiting": one("SELECT count(*) FROM change_log WHERE waiting = 1"),
        "events_oldest_seconds": age("SELECT (SELECT at FROM change_log WHERE waiting = 1 ORDER BY sequence LIMIT 1)"),
        "deliveries_pending": one("SELECT count(*) FROM webhook_delivery WHERE state = 'pending'"),
        "deliveries_oldest_seconds": age("SELECT min(created_at) FROM webhook_delivery WHERE state = 'pending'"),
        "deliveries_failed_day": one("SELECT count(*) FROM webhook_delivery WHERE state = 'failed' AND settled_at >= ?", yesterday),
        "delivery_attempts_day": float(sum(day.tries for day in days)),
        "delivery_attempts_failed_day": float(sum(day.tries - day.succeeded for day in days)),
        "endpoints_failing": one("SELECT count(*) FROM webhook_endpoint WHERE enabled = 1 AND failing_since IS NOT NULL"),
        "workflow_runs_waiting": one("SELECT count(*) FROM workflow_run WHERE completed_at IS NULL"),
        "workflow_runs_failed_day": one("SELECT count(*) FROM workflow_run WHERE status = 'failed' AND completed_at >= ?", yesterday),
    }


def create_indexes(tx: Tx) -> None:
    """The migration for them, and for forgetting what is settled."""
    for statement in (
        "CREATE INDEX webhook_delivery_failed ON webhook_delivery (settled_at) WHERE state = 'failed'",
        "CREATE INDEX webhook_delivery_settled ON webhook_delivery (settled_at) WHERE settled_at IS NOT NULL",
        "CREATE INDEX workflow_run_failed ON workflow_run (completed_at) WHERE status = 'failed'",
    ):
        tx.execute(statement)
