"""Runs of workflows: waiting, leased to a process, or ended. A step's record commits with what the step did.

`attempts` counts the claims of a run and fences it: only the last process that claimed it can write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.store import change_log
from crmctl.service.store.members import organisation_id
from crmctl.service.store.tx import Row, Rows, Stamp, Tx, all_in, execute_in, required, to_micros, to_wire
from crmctl.service.store.workflows import StoredWorkflow, load_workflow

PENDING, RUNNING, COMPLETED, FAILED, SKIPPED = "pending", "running", "completed", "failed", "skipped"

_RUNS = Rows(
    "workflow_run",
    "run",
    "id, status, title, trigger_event, error",
    started_at=to_wire,
    completed_at=to_wire,
    created_at=to_wire,
)


class LeaseLostError(Exception):
    """Another process has taken over the run; the current write is void."""


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Cause:
    """The cause of a run: an event, after the runs of the workflows in `chain`; a due schedule (Unix seconds); or a request."""

    title: str
    trigger: str
    event_id: str | None = None
    due_at: float | None = None
    chain: Sequence[str] = ()


def add_run(tx: Tx, workflow: StoredWorkflow, data: Mapping[str, Any], cause: Cause, **stamp: Unpack[Stamp]) -> str | None:
    """Add a waiting run. Returns its id, None when this event or due time has started one already."""
    at = to_micros(stamp["now"])
    due = None if cause.due_at is None else to_micros(cause.due_at)
    texts = [jsontext.dumps(value) for value in (list(cause.chain), workflow.plan["actions"], dict(data))]
    row = tx.one(
        "INSERT INTO workflow_run (id, workflow_id, status, title, trigger_event, event_id, due_at, chain, actions, input, steps, step, "
        "is_calling, attempts, lease_until, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '[]', 0, 0, 0, 0, ?) "
        "ON CONFLICT DO NOTHING RETURNING id",
        (stamp["ids"](), workflow.id, PENDING, cause.title, cause.trigger, cause.event_id, due, *texts, at),
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


def is_waiting(tx: Tx, per_workflow: int, *, now: float) -> bool:
    return any(places > 0 for _, places in _free_places(tx, per_workflow, now))


def claim(tx: Tx, limit: int, per_workflow: int, lease_seconds: float, *, now: float) -> list[Claimed]:
    """Take up to `limit` runs that wait or whose process died, oldest first; at most `per_workflow` of one workflow."""
    if tx.dialect.hold_claims:
        tx.execute(tx.dialect.hold_claims)
    at, claimed = to_micros(now), list[Claimed]()
    for workflow_id, places in _free_places(tx, per_workflow, now):
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
        [(RUNNING, run.attempt, to_micros(now + lease_seconds), at, run.id) for run in claimed],
    )
    return claimed


def begin_call(tx: Tx, run: Claimed, lease_seconds: float, *, now: float) -> Claimed:
    """Note that the next step's call is about to be made. Raises LeaseLostError."""
    _update(tx, run, "is_calling = 1, lease_until = ?", to_micros(now + lease_seconds))
    return replace(run, is_calling=True)


def advance(tx: Tx, run: Claimed, result: Mapping[str, Any], lease_seconds: float, **stamp: Unpack[Stamp]) -> Claimed:
    """Note the result of a step; the last one completes the run and adds its event. Raises LeaseLostError."""
    steps = [*run.steps, dict(result)]
    after = replace(run, steps=steps, step=run.step + 1, is_calling=False)
    until = to_micros(stamp["now"] + lease_seconds)
    _update(tx, run, "steps = ?, step = ?, is_calling = 0, lease_until = ?", jsontext.dumps(steps), after.step, until)
    if after.step == len(run.actions):
        _finish(tx, after, COMPLETED, None, **stamp)
    return after


def fail(tx: Tx, run: Claimed, error: str, **stamp: Unpack[Stamp]) -> None:
    _finish(tx, run, FAILED, error, **stamp)


def settle_unstarted(tx: Tx, run_id: str, status: str, error: str, **stamp: Unpack[Stamp]) -> None:
    """End a run that was just added and must not be executed: `failed`, with its event, or `skipped`."""
    run = Claimed.of(required(tx.one(f"{_CLAIMED} WHERE r.id = ?", (run_id,))))
    tx.execute("UPDATE workflow_run SET started_at = ? WHERE id = ?", (to_micros(stamp["now"]), run_id))
    _finish(tx, replace(run, attempt=run.attempt - 1), status, error, **stamp)


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


def forget(tx: Tx, before: float) -> None:
    tx.execute("DELETE FROM workflow_run WHERE completed_at < ?", (to_micros(before),))


def _free_places(tx: Tx, per_workflow: int, now: float) -> list[tuple[str, int]]:
    """Return the workflows with waiting runs and their free places, the least busy first."""
    at = to_micros(now)
    rows = tx.all(
        "SELECT w.id, (SELECT count(*) FROM workflow_run AS l WHERE l.workflow_id = w.id AND l.completed_at IS NULL "
        "AND l.lease_until > 0 AND l.lease_until > ?) AS under_way FROM workflow AS w WHERE EXISTS (SELECT 1 FROM workflow_run AS r "
        "WHERE r.workflow_id = w.id AND r.completed_at IS NULL AND r.lease_until <= ?) ORDER BY under_way, w.number",
        (at, at),
    )
    return [(workflow_id, per_workflow - under_way) for workflow_id, under_way in rows]


def _finish(tx: Tx, run: Claimed, status: str, error: str | None, **stamp: Unpack[Stamp]) -> None:
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
