"""Workflows: what they react to and when they are due. What they do is opaque here; their runs are in workflow_runs."""
# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack

from crmctl.models import jsontext
from crmctl.service.faults import NotFound
from crmctl.service.store import audit_log
from crmctl.service.store.checks import require_description, require_name
from crmctl.service.store.members import author
from crmctl.service.store.stamp import Stamp
from crmctl.service.store.timestamps import to_micros, to_wire
from crmctl.service.store.tx import Tx, required
from crmctl.service.values.choices import canonical_uuid

Ids = Callable[[], str]


class _Row(NamedTuple):
    """The columns of a workflow that the machinery needs."""

    id: str
    name: str
    trigger_event: str
    object_id: str | None
    plan: str
    cron: str | None
    timezone: str | None
    next_due_at: int | None

    def workflow(self) -> StoredWorkflow:
        return StoredWorkflow(
            self.id,
            self.name,
            self.trigger_event,
            self.object_id,
            jsontext.loads(self.plan),
            self.cron,
            self.timezone,
            None if self.next_due_at is None else self.next_due_at / 1_000_000,
        )


_COLUMNS = ", ".join(_Row._fields)
_WIRE = (
    "w.id, w.name, w.description, w.trigger_event, w.enabled, w.created_at, w.created_by, o.id, o.plural_name, o.slug "
    "FROM workflow AS w LEFT JOIN crm_object AS o ON o.id = w.object_id"
)


@dataclass(frozen=True)
class StoredWorkflow:
    """As the machinery needs it. `plan` is `{conditions, actions}`; `due_at` is Unix seconds, for one with a schedule that is enabled."""

    id: str
    name: str
    trigger: str
    object_id: str | None
    plan: dict[str, Any]
    cron: str | None
    timezone: str | None
    due_at: float | None


@dataclass(frozen=True)
class WorkflowDraft:
    """What a workflow is to be. `timezone` goes with `cron`; `due_at`, Unix seconds, is when its schedule is due next."""

    name: str
    description: str | None
    trigger: str
    object_id: str | None
    plan: Mapping[str, Any]
    cron: str | None = None
    timezone: str | None = None
    enabled: bool = True
    due_at: float | None = None


def create_tables(tx: Tx) -> None:
    """The migration that brings workflows."""
    text = tx.dialect.text
    tx.execute(
        f"""CREATE TABLE workflow (number {tx.dialect.identity}, id {text} NOT NULL UNIQUE, name {text} NOT NULL UNIQUE,
            description {text} NOT NULL, trigger_event {text} NOT NULL, object_id {text}, plan {text} NOT NULL, cron {text},
            timezone {text}, enabled INTEGER NOT NULL, next_due_at BIGINT, created_by {text} NOT NULL, created_at BIGINT NOT NULL,
            updated_at BIGINT NOT NULL)"""
    )
    tx.execute("CREATE INDEX workflow_trigger ON workflow (trigger_event) WHERE enabled = 1")


def list_workflows(tx: Tx) -> list[dict[str, Any]]:
    """Oldest first."""
    return [_WireRow(*row).wire() for row in tx.all(f"SELECT {_WIRE} ORDER BY w.number")]


def get_workflow(tx: Tx, workflow_id: str) -> dict[str, Any]:
    """With its `conditions`, `actions`, and `cron` and `timezone` where it has a schedule. Raises NotFound."""
    row = tx.one(f"SELECT {_WIRE} WHERE w.id = ?", (canonical_uuid(workflow_id) or "",))
    if row is None:
        raise NotFound(f"there is no workflow with the id {workflow_id}")
    plan, cron, timezone = required(tx.one("SELECT plan, cron, timezone FROM workflow WHERE id = ?", (row[0],)))
    schedule = {"cron": cron, "timezone": timezone} if cron else {}
    decided: dict[str, Any] = jsontext.loads(plan)
    return _WireRow(*row).wire() | schedule | decided


def load_workflow(tx: Tx, workflow_id: str) -> StoredWorkflow:
    """Raises NotFound."""
    row = tx.one(f"SELECT {_COLUMNS} FROM workflow WHERE id = ?", (canonical_uuid(workflow_id) or "",))
    if row is None:
        raise NotFound(f"there is no workflow with the id {workflow_id}")
    return _Row(*row).workflow()


def triggered_by(tx: Tx, event: str) -> list[StoredWorkflow]:
    """The enabled ones with this trigger, oldest first."""
    rows = tx.all(f"SELECT {_COLUMNS} FROM workflow WHERE trigger_event = ? AND enabled = 1 ORDER BY number", (event,))
    return [_Row(*row).workflow() for row in rows]


def next_due(tx: Tx) -> float | None:
    """Unix time at which the next schedule is due."""
    at = required(tx.one("SELECT min(next_due_at) FROM workflow WHERE enabled = 1"))[0]
    return None if at is None else at / 1_000_000


def claim_due(tx: Tx, *, now: float) -> list[StoredWorkflow]:
    """The schedules that are due and that no other process is taking. The caller says when they are due next."""
    sql = f"SELECT {_COLUMNS} FROM workflow WHERE enabled = 1 AND next_due_at <= ? ORDER BY number{tx.dialect.for_claim('workflow')}"
    return [_Row(*row).workflow() for row in tx.all(sql, (to_micros(now),))]


def set_next_due(tx: Tx, workflow_id: str, at: float | None) -> None:
    tx.execute("UPDATE workflow SET next_due_at = ? WHERE id = ?", (None if at is None else to_micros(at), workflow_id))


def set_enabled(tx: Tx, workflow_id: str, enabled: bool, *, due_at: float | None, now: float) -> None:
    """`due_at`: when a schedule that is enabled is due next. Raises NotFound."""
    workflow = load_workflow(tx, workflow_id)
    tx.execute("UPDATE workflow SET enabled = ?, updated_at = ? WHERE id = ?", (int(enabled), to_micros(now), workflow.id))
    set_next_due(tx, workflow.id, due_at if enabled else None)
    audit_log.note(tx, f"workflow.{'enabled' if enabled else 'disabled'}", workflow.id, {"name": workflow.name}, now=now)


def save_workflow(tx: Tx, draft: WorkflowDraft, created_by: str | None = None, **stamp: Unpack[Stamp]) -> str:
    """Create the workflow of this name, or make it do this. Says `created`, `updated` or `unchanged`. Raises BadRequest.

    The draft's `due_at` counts where the schedule is new or has changed; an unchanged one keeps its next time.
    """
    schedule = (draft.cron, draft.timezone, int(draft.enabled))
    plan = jsontext.dumps(dict(draft.plan), sort_keys=True)
    values = (require_description(draft.description), draft.trigger, draft.object_id, plan)
    columns = ("description", "trigger_event", "object_id", "plan", "cron", "timezone", "enabled")
    known = tx.one(f"SELECT {', '.join(columns)} FROM workflow WHERE name = ?", (require_name(draft.name, "name"),))
    if known == (*values, *schedule):
        return "unchanged"
    at = to_micros(stamp["now"])
    if known is None:
        tx.execute(
            f"INSERT INTO workflow (id, name, {', '.join(columns)}, created_by, created_at, updated_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (stamp["ids"](), draft.name, *values, *schedule, jsontext.dumps(author(tx, created_by)), at, at),
        )
    else:
        assignments = ", ".join(f"{column} = ?" for column in columns)
        tx.execute(f"UPDATE workflow SET {assignments}, updated_at = ? WHERE name = ?", (*values, *schedule, at, draft.name))
    if known is None or known[4:] != schedule:
        due = to_micros(draft.due_at) if draft.due_at is not None and draft.enabled else None
        tx.execute("UPDATE workflow SET next_due_at = ? WHERE name = ?", (due, draft.name))
    done = "created" if known is None else "updated"
    audit_log.note(tx, f"workflow.{done}", draft.name, {"enabled": draft.enabled}, now=stamp["now"])
    return done


def rename_workflow(tx: Tx, workflow_id: str, name: str) -> None:
    """The caller has seen to it that no other one has this name. Raises NotFound, BadRequest."""
    known = load_workflow(tx, workflow_id)
    tx.execute("UPDATE workflow SET name = ? WHERE id = ?", (require_name(name, "name"), known.id))


def delete_workflow(tx: Tx, workflow_id: str) -> None:
    """With its runs; one that is under way does no further step. Raises NotFound."""
    known = load_workflow(tx, workflow_id)
    tx.execute("DELETE FROM workflow_run WHERE workflow_id = ?", (known.id,))
    tx.execute("DELETE FROM workflow WHERE id = ?", (known.id,))
    audit_log.note(tx, "workflow.deleted", known.id, {"name": known.name})


class _WireRow(NamedTuple):
    """What is read of a workflow and its object to show it: see _WIRE."""

    id: str
    name: str
    description: str
    trigger: str
    enabled: int
    created_at: int
    created_by: str
    object_id: str | None
    plural_name: str | None
    slug: str | None

    def wire(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "description": self.description,
            "trigger": self.trigger,
            "enabled": bool(self.enabled),
            "createdAt": to_wire(self.created_at),
            "object": None if self.object_id is None else {"id": self.object_id, "pluralName": self.plural_name, "slug": self.slug},
            "createdBy": jsontext.loads(self.created_by),
        }
