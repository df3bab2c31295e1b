"""Workflows with their triggers and due times, and their runs: waiting, leased to a process, or ended.

Actions are opaque here. A step's record commits with what the step did. `attempts` counts the claims of a run and fences it: only the last
process that claimed it can write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.faults import NotFound
from crmctl.service.store import change_log, logs
from crmctl.service.store.members import author, organisation_id
from crmctl.service.store.record_tables import require_description, require_name
from crmctl.service.store.tx import Row, Rows, Stamp, Tx, all_in, execute_in, insert, required, to_micros, to_wire, update
from crmctl.values.value_readers import canonical_uuid

_COLUMNS = "id, name, enabled, trigger_event, object_id, plan, cron, timezone, next_due_at"
_WORKFLOWS = Rows(
    "workflow AS w LEFT JOIN crm_object AS o ON o.id = w.object_id",
    "workflow",
    "w.id, w.name, w.description, w.trigger_event AS trigger, o.id AS object_id, o.plural_name, o.slug, enabled, created_by, w.created_at",
    enabled=bool,
    created_by=jsontext.loads,
)


@frozen
class StoredWorkflow:
    """A workflow as the machinery needs it. `plan` is `{conditions, actions}`; `due_at` is Unix seconds, for an enabled schedule."""

    id: str
    name: str
    is_enabled: bool
    trigger: str
    object_id: str | None
    plan: Json
    cron: str | None
    timezone: str | None
    due_at: float | None

    @classmethod
    def of(cls, row: Row) -> StoredWorkflow:
        workflow_id, name, enabled, trigger, object_id, plan, cron, timezone, at = row
        due_at = None if at is None else at / 1_000_000
        return cls(workflow_id, name, bool(enabled), trigger, object_id, jsontext.loads(plan), cron, timezone, due_at)


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


def set_enabled(tx: Tx, workflow: StoredWorkflow, enabled: bool, *, due_at: float | None, now: float) -> None:
    """Enable or disable a workflow; `due_at` is when an enabled schedule is due next."""
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
        created = {"id": stamp["ids"](), "created_by": jsontext.dumps(author(tx, created_by)), "created_at": changed["updated_at"]}
        insert(tx, "workflow", created | {"name": name} | changed)
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


PENDING, RUNNING, COMPLETED, FAILED, SKIPPED = "pending", "running", "completed", "failed", "skipped"

PER_WORKFLOW = 4
"""Most runs of one workflow under way over all processes: hanging calls leave the other places free."""

LEASE_SECONDS = 30.0
"""Longer than any step: a run whose lease ended belongs to a process that died."""

_RUNS = Rows("workflow_run", "run", "id, status, title, trigger_event, error, started_at, completed_at, created_at")


class LeaseLostError(Exception):
    """Another process has taken over the run; the current write is void."""


@frozen
class Claimed:
    """A run leased to this process. `step` is the next action; `is_calling` says that its call began and its end is unknown.

    `chain` are the workflows whose runs led to this one, `steps` the results of the earlier actions; times are Unix seconds.
    """

    id: str
    workflow_id: str
    workflow_name: str
    trigger: str
    actions: list[Json]
    input: Json
    steps: list[Json]
    step: int
    is_calling: bool
    attempt: int
    created_at: float

    @classmethod
    def of(cls, row: Row) -> Claimed:
        """Return a run read with _CLAIMED. Claiming it counts one more attempt."""
        run_id, workflow_id, name, trigger, actions, data, steps, step, is_calling, attempts, created_at = row
        texts = (jsontext.loads(actions), jsontext.loads(data), jsontext.loads(steps))
        return cls(run_id, workflow_id, name, trigger, *texts, step, bool(is_calling), attempts + 1, created_at / 1_000_000)


_CLAIMED = (
    "SELECT r.id, r.workflow_id, w.name, r.trigger_event, r.actions, r.input, r.steps, r.step, r.is_calling, r.attempts, r.created_at "
    "FROM workflow_run AS r JOIN workflow AS w ON w.id = r.workflow_id"
)


def add_run(
    tx: Tx,
    workflow: StoredWorkflow,
    data: Mapping[str, Any],
    *,
    event_id: str | None = None,
    chain: Sequence[str] = (),
    due_at: float | None = None,
    **stamp: Unpack[Stamp],
) -> str | None:
    """Add a waiting run: for an event, after the runs of the workflows in `chain`; for a due time of a schedule; else for a request.
    Returns its id, None when this event or due time has started one already."""
    is_asked_for = event_id is None and due_at is None
    title, trigger = (f"API: {workflow.name}", "api") if is_asked_for else (workflow.name, workflow.trigger)
    due, at = None if due_at is None else to_micros(due_at), to_micros(stamp["now"])
    texts = [jsontext.dumps(value) for value in (list(chain), workflow.plan["actions"], dict(data))]
    row = tx.one(
        "INSERT INTO workflow_run (id, workflow_id, status, title, trigger_event, event_id, due_at, chain, actions, input, steps, step, "
        "is_calling, attempts, lease_until, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '[]', 0, 0, 0, 0, ?) "
        "ON CONFLICT DO NOTHING RETURNING id",
        (stamp["ids"](), workflow.id, PENDING, title, trigger, event_id, due, *texts, at),
    )
    return None if row is None else str(row[0])


def list_runs(tx: Tx, workflow_id: str, limit: int = 20, offset: int = 0) -> list[Json]:
    workflow = load_workflow(tx, workflow_id)
    return _RUNS.all(tx, "WHERE workflow_id = ? ORDER BY number DESC LIMIT ? OFFSET ?", (workflow.id, limit, offset))


def get_run(tx: Tx, run_id: str) -> Json:
    """Return a run with its `workflowId`, `input` and `steps`, the result of each action. Raises NotFound."""
    run = _RUNS.get(tx, run_id)
    workflow_id, data, steps = required(tx.one("SELECT workflow_id, input, steps FROM workflow_run WHERE id = ?", (run["id"],)))
    return run | {"workflowId": workflow_id, "input": jsontext.loads(data), "steps": jsontext.loads(steps)}


def recent_outcomes(tx: Tx, workflow_id: str, most: int = 50) -> Json:
    """Return `{ended, completed, failed, last}` of the last runs that ended; `last` is the newest run of all, if any."""
    runs = _RUNS.all(tx, "WHERE workflow_id = ? ORDER BY number DESC LIMIT ?", (workflow_id, most))
    statuses = [run["status"] for run in runs]
    counts = {status: statuses.count(status) for status in (COMPLETED, FAILED)}
    return {"ended": sum(counts.values()), **counts, "last": runs[0] if runs else None}


def last_ended(tx: Tx, workflow_id: str) -> Json | None:
    """Return the newest run that completed or failed, however many wait, run or were skipped since."""
    return _RUNS.find(tx, "workflow_id = ? AND status IN (?, ?) ORDER BY number DESC", workflow_id, COMPLETED, FAILED)


def has_waiting_runs(tx: Tx, *, now: float) -> bool:
    return any(places > 0 for _, places in _free_places(tx, now))


def claim_runs(tx: Tx, limit: int, *, now: float) -> list[Claimed]:
    """Take up to `limit` runs that wait or whose process died, oldest first."""
    if tx.dialect.hold_claims:
        tx.execute(tx.dialect.hold_claims)
    at, claimed = to_micros(now), list[Claimed]()
    for workflow_id, places in _free_places(tx, now):
        most = min(places, limit - len(claimed))
        if most > 0:
            rows = tx.all(
                f"{_CLAIMED} WHERE r.workflow_id = ? AND r.completed_at IS NULL AND r.lease_until <= ? "
                f"ORDER BY r.number LIMIT ?{tx.dialect.for_claim('r')}",
                (workflow_id, at, most),
            )
            claimed += [Claimed.of(row) for row in rows]
    tx.execute_many(
        "UPDATE workflow_run SET status = ?, attempts = ?, lease_until = ?, started_at = coalesce(started_at, ?) WHERE id = ?",
        [(RUNNING, run.attempt, to_micros(now + LEASE_SECONDS), at, run.id) for run in claimed],
    )
    return claimed


def begin_call(tx: Tx, run: Claimed, *, now: float) -> Claimed:
    """Note that the next step's call is about to be made. Raises LeaseLostError."""
    _update(tx, run, "is_calling = 1, lease_until = ?", to_micros(now + LEASE_SECONDS))
    return replace(run, is_calling=True)


def advance_run(tx: Tx, run: Claimed, result: Mapping[str, Any], **stamp: Unpack[Stamp]) -> Claimed:
    """Note the result of a step; the last one completes the run and adds its event. Raises LeaseLostError."""
    steps = [*run.steps, dict(result)]
    after = replace(run, steps=steps, step=run.step + 1, is_calling=False)
    until = to_micros(stamp["now"] + LEASE_SECONDS)
    _update(tx, run, "steps = ?, step = ?, is_calling = 0, lease_until = ?", jsontext.dumps(steps), after.step, until)
    if after.step == len(run.actions):
        finish_run(tx, after, COMPLETED, None, **stamp)
    return after


def settle_unstarted_run(tx: Tx, run_id: str, status: str, error: str, **stamp: Unpack[Stamp]) -> None:
    """End a run that was just added and must not be executed: `failed`, with its event, or `skipped`."""
    run = Claimed.of(required(tx.one(f"{_CLAIMED} WHERE r.id = ?", (run_id,))))
    tx.execute("UPDATE workflow_run SET started_at = ? WHERE id = ?", (to_micros(stamp["now"]), run_id))
    finish_run(tx, replace(run, attempt=run.attempt - 1), status, error, **stamp)


def note_origin(tx: Tx, run: Claimed, made_ids: Iterable[str]) -> None:
    """Remember which events a run caused in this transaction, among these ids."""
    events = [row[0] for row in all_in(tx, "SELECT event_id FROM change_log WHERE event_id IN {}", made_ids)]
    tx.execute_many("INSERT INTO workflow_origin (event_id, run_id) VALUES (?, ?)", [(event, run.id) for event in events])


def take_origins(tx: Tx, events: Sequence[str]) -> dict[str, list[str]]:
    """Return by event id the workflows whose runs led to it, the latest last, and forget them."""
    rows = list(
        all_in(
            tx,
            "SELECT o.event_id, r.chain, r.workflow_id FROM workflow_origin AS o JOIN workflow_run AS r ON r.id = o.run_id "
            "WHERE o.event_id IN {}",
            events,
        )
    )
    execute_in(tx, "DELETE FROM workflow_origin WHERE event_id IN {}", [row[0] for row in rows])
    return {event: [*jsontext.loads(chain), workflow] for event, chain, workflow in rows}


def forget_runs(tx: Tx, before: float) -> None:
    tx.execute("DELETE FROM workflow_run WHERE completed_at < ?", (to_micros(before),))


def _free_places(tx: Tx, now: float) -> list[tuple[str, int]]:
    """Return the workflows with waiting runs and their free places, the least busy first."""
    at = to_micros(now)
    rows = tx.all(
        "SELECT w.id, (SELECT count(*) FROM workflow_run AS l WHERE l.workflow_id = w.id AND l.completed_at IS NULL "
        "AND l.lease_until > 0 AND l.lease_until > ?) AS under_way FROM workflow AS w WHERE EXISTS (SELECT 1 FROM workflow_run AS r "
        "WHERE r.workflow_id = w.id AND r.completed_at IS NULL AND r.lease_until <= ?) ORDER BY under_way, w.number",
        (at, at),
    )
    return [(workflow_id, PER_WORKFLOW - under_way) for workflow_id, under_way in rows]


def finish_run(tx: Tx, run: Claimed, status: str, error: str | None, **stamp: Unpack[Stamp]) -> None:
    at = to_micros(stamp["now"])
    _update(tx, run, "status = ?, error = ?, is_calling = 0, completed_at = ?", status, error, at)
    if status == SKIPPED:
        return
    started_at = required(tx.one("SELECT started_at FROM workflow_run WHERE id = ?", (run.id,)))[0]
    payload = {
        "organizationId": organisation_id(tx),
        "workflowId": run.workflow_id,
        "workflowName": run.workflow_name,
        "runId": run.id,
        "status": status,
        "triggerEvent": run.trigger,
        "error": error,
        "startedAt": to_wire(started_at),
        "completedAt": to_wire(at),
    }
    change_log.append_event(tx, f"workflow.{status}", payload, **stamp)


def _update(tx: Tx, run: Claimed, assignments: str, *values: Any) -> None:
    sql = f"UPDATE workflow_run SET {assignments} WHERE id = ? AND attempts = ? AND completed_at IS NULL"
    if tx.execute(sql, (*values, run.id, run.attempt)) == 0:
        raise LeaseLostError(run.id)
