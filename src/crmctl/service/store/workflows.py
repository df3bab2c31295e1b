"""Workflows: their triggers and due times. Their actions are opaque here; their runs are in workflow_runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.faults import NotFound
from crmctl.service.store import logs
from crmctl.service.store.members import author
from crmctl.service.store.record_tables import require_description, require_name
from crmctl.service.store.tx import Stamp, Tx, required, to_micros, to_wire
from crmctl.values.value_readers import canonical_uuid

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
    """A workflow as the machinery needs it. `plan` is `{conditions, actions}`; `due_at` is Unix seconds, for an enabled schedule."""

    id: str
    name: str
    trigger: str
    object_id: str | None
    plan: Json
    cron: str | None
    timezone: str | None
    due_at: float | None


@dataclass(frozen=True)
class WorkflowDraft:
    """A workflow to store. `timezone` goes with `cron`; `due_at`, Unix seconds, is when its schedule is due next."""

    name: str
    description: str | None
    trigger: str
    object_id: str | None
    plan: Mapping[str, Any]
    cron: str | None = None
    timezone: str | None = None
    enabled: bool = True
    due_at: float | None = None


def list_workflows(tx: Tx) -> list[Json]:
    return [_WireRow(*row).wire() for row in tx.all(f"SELECT {_WIRE} ORDER BY w.number")]


def get_workflow(tx: Tx, workflow_id: str) -> Json:
    """Return a workflow with its `conditions` and `actions`, and the `cron` and `timezone` of a schedule. Raises NotFound."""
    row = tx.one(f"SELECT {_WIRE} WHERE w.id = ?", (canonical_uuid(workflow_id) or "",))
    if row is None:
        raise NotFound(f"there is no workflow with the id {workflow_id}")
    plan, cron, timezone = required(tx.one("SELECT plan, cron, timezone FROM workflow WHERE id = ?", (row[0],)))
    schedule = {"cron": cron, "timezone": timezone} if cron else {}
    decided: Json = jsontext.loads(plan)
    return _WireRow(*row).wire() | schedule | decided


def load_workflow(tx: Tx, workflow_id: str) -> StoredWorkflow:
    row = tx.one(f"SELECT {_COLUMNS} FROM workflow WHERE id = ?", (canonical_uuid(workflow_id) or "",))
    if row is None:
        raise NotFound(f"there is no workflow with the id {workflow_id}")
    return _Row(*row).workflow()


def triggered_by(tx: Tx, event: str) -> list[StoredWorkflow]:
    """Return the enabled workflows with this trigger, oldest first."""
    rows = tx.all(f"SELECT {_COLUMNS} FROM workflow WHERE trigger_event = ? AND enabled = 1 ORDER BY number", (event,))
    return [_Row(*row).workflow() for row in rows]


def next_due(tx: Tx) -> float | None:
    """Return the Unix time at which the next schedule is due."""
    at = required(tx.one("SELECT min(next_due_at) FROM workflow WHERE enabled = 1"))[0]
    return None if at is None else at / 1_000_000


def claim_due(tx: Tx, *, now: float) -> list[StoredWorkflow]:
    """Take the due schedules that no other process is taking. The caller says when they are due next."""
    sql = f"SELECT {_COLUMNS} FROM workflow WHERE enabled = 1 AND next_due_at <= ? ORDER BY number{tx.dialect.for_claim('workflow')}"
    return [_Row(*row).workflow() for row in tx.all(sql, (to_micros(now),))]


def set_next_due(tx: Tx, workflow_id: str, at: float | None) -> None:
    tx.execute("UPDATE workflow SET next_due_at = ? WHERE id = ?", (None if at is None else to_micros(at), workflow_id))


def set_enabled(tx: Tx, workflow_id: str, enabled: bool, *, due_at: float | None, now: float) -> None:
    """Enable or disable a workflow; `due_at` is when an enabled schedule is due next. Raises NotFound."""
    workflow = load_workflow(tx, workflow_id)
    tx.execute("UPDATE workflow SET enabled = ?, updated_at = ? WHERE id = ?", (int(enabled), to_micros(now), workflow.id))
    set_next_due(tx, workflow.id, due_at if enabled else None)
    logs.note(tx, f"workflow.{'enabled' if enabled else 'disabled'}", workflow.id, {"name": workflow.name}, now=now)


def save_workflow(tx: Tx, draft: WorkflowDraft, created_by: str | None = None, **stamp: Unpack[Stamp]) -> str:
    """Create or change the workflow of this name. Returns `created`, `updated` or `unchanged`; raises BadRequest.

    The draft's `due_at` counts for a new or changed schedule; an unchanged one keeps its next time.
    """
    schedule = (draft.cron, draft.timezone, int(draft.enabled))
    plan = jsontext.dumps(dict(draft.plan), sort_keys=True)
    values = (require_description(draft.description), draft.trigger, draft.object_id, plan)
    columns = ("description", "trigger_event", "object_id", "plan", "cron", "timezone", "enabled")
    existing = tx.one(f"SELECT {', '.join(columns)} FROM workflow WHERE name = ?", (require_name(draft.name, "name"),))
    if existing == (*values, *schedule):
        return "unchanged"
    at = to_micros(stamp["now"])
    if existing is None:
        tx.execute(
            f"INSERT INTO workflow (id, name, {', '.join(columns)}, created_by, created_at, updated_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (stamp["ids"](), draft.name, *values, *schedule, jsontext.dumps(author(tx, created_by)), at, at),
        )
    else:
        assignments = ", ".join(f"{column} = ?" for column in columns)
        tx.execute(f"UPDATE workflow SET {assignments}, updated_at = ? WHERE name = ?", (*values, *schedule, at, draft.name))
    if existing is None or existing[4:] != schedule:
        due = to_micros(draft.due_at) if draft.due_at is not None and draft.enabled else None
        tx.execute("UPDATE workflow SET next_due_at = ? WHERE name = ?", (due, draft.name))
    done = "created" if existing is None else "updated"
    logs.note(tx, f"workflow.{done}", draft.name, {"enabled": draft.enabled}, now=stamp["now"])
    return done


def rename_workflow(tx: Tx, workflow_id: str, name: str) -> None:
    """Rename a workflow. The caller has checked that the name is free. Raises NotFound, BadRequest."""
    workflow = load_workflow(tx, workflow_id)
    tx.execute("UPDATE workflow SET name = ? WHERE id = ?", (require_name(name, "name"), workflow.id))


def delete_workflow(tx: Tx, workflow_id: str) -> None:
    """Delete a workflow with its runs. A run under way does no further step. Raises NotFound."""
    workflow = load_workflow(tx, workflow_id)
    tx.execute("DELETE FROM workflow_run WHERE workflow_id = ?", (workflow.id,))
    tx.execute("DELETE FROM workflow WHERE id = ?", (workflow.id,))
    logs.note(tx, "workflow.deleted", workflow.id, {"name": workflow.name})


class _WireRow(NamedTuple):
    """Columns that showing a workflow and its object needs: see _WIRE."""

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

    def wire(self) -> Json:
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
