"""Workflows: their triggers and due times. Their actions are opaque here; their runs are in workflow_runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.faults import NotFound
from crmctl.service.store import logs
from crmctl.service.store.members import author
from crmctl.service.store.record_tables import require_description, require_name
from crmctl.service.store.tx import Row, Rows, Stamp, Tx, insert, required, to_micros, to_wire, update
from crmctl.values.value_readers import canonical_uuid

_COLUMNS = "id, name, trigger_event, object_id, plan, cron, timezone, next_due_at"
_WORKFLOWS = Rows(
    "workflow AS w LEFT JOIN crm_object AS o ON o.id = w.object_id",
    "workflow",
    "w.id, w.name, w.description, w.trigger_event AS trigger, o.id AS object_id, o.plural_name, o.slug",
    enabled=bool,
    created_by=jsontext.loads,
    **{"w.created_at": to_wire},
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

    @classmethod
    def of(cls, row: Row) -> StoredWorkflow:
        workflow_id, name, trigger, object_id, plan, cron, timezone, at = row
        return cls(workflow_id, name, trigger, object_id, jsontext.loads(plan), cron, timezone, None if at is None else at / 1_000_000)


def list_workflows(tx: Tx) -> list[Json]:
    return [_shown(row) for row in _WORKFLOWS.all(tx, "ORDER BY w.number")]


def _shown(row: Json) -> Json:
    """Return a workflow with its object nested, None without one."""
    of_object = {"id": row.pop("objectId"), "pluralName": row.pop("pluralName"), "slug": row.pop("slug")}
    return row | {"object": of_object if of_object["id"] else None}


def get_workflow(tx: Tx, workflow_id: str) -> Json:
    """Return a workflow with its `conditions` and `actions`, and the `cron` and `timezone` of a schedule. Raises NotFound."""
    workflow = _shown(_WORKFLOWS.get(tx, workflow_id))
    plan, cron, timezone = required(tx.one("SELECT plan, cron, timezone FROM workflow WHERE id = ?", (workflow["id"],)))
    decided: Json = jsontext.loads(plan)
    return workflow | ({"cron": cron, "timezone": timezone} if cron else {}) | decided


def load_workflow(tx: Tx, workflow_id: str) -> StoredWorkflow:
    row = tx.one(f"SELECT {_COLUMNS} FROM workflow WHERE id = ?", (canonical_uuid(workflow_id) or "",))
    if row is None:
        raise NotFound(f"there is no workflow with the id {workflow_id}")
    return StoredWorkflow.of(row)


def triggered_by(tx: Tx, event: str) -> list[StoredWorkflow]:
    rows = tx.all(f"SELECT {_COLUMNS} FROM workflow WHERE trigger_event = ? AND enabled = 1 ORDER BY number", (event,))
    return [StoredWorkflow.of(row) for row in rows]


def next_due(tx: Tx) -> float | None:
    """Return the Unix time at which the next schedule is due."""
    at = required(tx.one("SELECT min(next_due_at) FROM workflow WHERE enabled = 1"))[0]
    return None if at is None else at / 1_000_000


def claim_due(tx: Tx, *, now: float) -> list[StoredWorkflow]:
    """Take the due schedules that no other process is taking. The caller says when they are due next."""
    sql = f"SELECT {_COLUMNS} FROM workflow WHERE enabled = 1 AND next_due_at <= ? ORDER BY number{tx.dialect.for_claim('workflow')}"
    return [StoredWorkflow.of(row) for row in tx.all(sql, (to_micros(now),))]


def set_next_due(tx: Tx, workflow_id: str, at: float | None) -> None:
    tx.execute("UPDATE workflow SET next_due_at = ? WHERE id = ?", (None if at is None else to_micros(at), workflow_id))


def set_enabled(tx: Tx, workflow_id: str, enabled: bool, *, due_at: float | None, now: float) -> None:
    """Enable or disable a workflow; `due_at` is when an enabled schedule is due next. Raises NotFound."""
    workflow = load_workflow(tx, workflow_id)
    tx.execute("UPDATE workflow SET enabled = ?, updated_at = ? WHERE id = ?", (int(enabled), to_micros(now), workflow.id))
    set_next_due(tx, workflow.id, due_at if enabled else None)
    logs.note(tx, f"workflow.{'enabled' if enabled else 'disabled'}", workflow.id, {"name": workflow.name}, now=now)


def save_workflow(tx: Tx, name: str, columns: Json, due_at: float | None, created_by: str | None = None, **stamp: Unpack[Stamp]) -> str:
    """Create or change the workflow of this name, of which `columns` are description, trigger_event, object_id, plan, cron, timezone and
    enabled. Returns `created`, `updated` or `unchanged`; raises BadRequest.

    `due_at`, in Unix seconds, counts for a new or changed schedule; an unchanged one keeps its next time.
    """
    values = columns | {"plan": jsontext.dumps(columns["plan"], sort_keys=True), "enabled": int(columns["enabled"])}
    values["description"] = require_description(columns["description"])
    row = tx.one(f"SELECT {', '.join(values)} FROM workflow WHERE name = ?", (require_name(name, "name"),))
    existing = None if row is None else dict(zip(values, row, strict=True))
    if existing == values:
        return "unchanged"
    changed = values | {"updated_at": to_micros(stamp["now"])}
    if existing is None or any(existing[part] != values[part] for part in ("cron", "timezone", "enabled")):
        changed["next_due_at"] = to_micros(due_at) if due_at is not None and columns["enabled"] else None
    if existing is None:
        made = {"id": stamp["ids"](), "created_by": jsontext.dumps(author(tx, created_by)), "created_at": changed["updated_at"]}
        insert(tx, "workflow", made | {"name": name} | changed)
    else:
        update(tx, "workflow", changed, "name = ?", name)
    done = "created" if existing is None else "updated"
    was = logs.differences(existing, values) if existing else {}
    logs.note(tx, f"workflow.{done}", name, {"enabled": columns["enabled"]} | was, now=stamp["now"])
    return done


def rename_workflow(tx: Tx, workflow_id: str, name: str) -> None:
    """Rename a workflow. The caller has checked that the name is free. Raises NotFound, BadRequest."""
    workflow = load_workflow(tx, workflow_id)
    tx.execute("UPDATE workflow SET name = ? WHERE id = ?", (require_name(name, "name"), workflow.id))


def delete_workflow(tx: Tx, workflow_id: str) -> None:
    """Delete a workflow with its runs. A run under way does no further step. Raises NotFound."""
    workflow = load_workflow(tx, workflow_id)
    for table, column in (("workflow_run", "workflow_id"), ("workflow", "id")):
        tx.execute(f"DELETE FROM {table} WHERE {column} = ?", (workflow.id,))
    logs.note(tx, "workflow.deleted", workflow.id, {"name": workflow.name})
