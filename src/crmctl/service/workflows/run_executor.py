"""Start and execute runs of workflows."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.context import Context
from crmctl.service.faults import BadRequest, Conflict, Forbidden, NotFound
from crmctl.service.jobs.worker import ClaimingJob
from crmctl.service.outbound.guard import USER_AGENT, CallFailedError
from crmctl.service.store import change_log, logs, records, workflows
from crmctl.service.store.condition_sql import read_condition
from crmctl.service.store.record_tables import load_schema
from crmctl.service.store.tx import Ids, Stamp, Tx, to_micros, to_wire
from crmctl.service.store.workflows import FAILED, SKIPPED, Claimed, LeaseLostError, StoredWorkflow
from crmctl.service.workflows.workflow_definition import PERFORM, latest_due, next_due, render
from crmctl.values.value_readers import canonical_uuid

if TYPE_CHECKING:
    from crmctl.service.outbound.caller import Caller

AT_ONCE = 32
MOST_ATTEMPTS = 5
"""A run interrupted this often is given up: it may be what crashes the process."""


class Runs(ClaimingJob[Claimed]):
    def __init__(self, context: Context, caller: Caller) -> None:
        super().__init__(context, AT_ONCE, "workflow")
        self._caller = caller

    def is_due(self, tx: Tx) -> bool:
        return workflows.has_waiting_runs(tx, now=self._context.clock.now())

    def claim(self, tx: Tx, most: int) -> list[Claimed]:
        return workflows.claim_runs(tx, most, now=self._context.clock.now())

    def work(self, run: Claimed) -> None:
        """Do the remaining steps. Raises only errors that another try may get past; the lease decides when."""
        try:
            if run.attempt > MOST_ATTEMPTS:
                raise BadRequest(f"interrupted {MOST_ATTEMPTS} times, not tried again")
            while run.step < len(run.actions):
                action = run.actions[run.step]
                run = (self._call if action["type"] == "callUrl" else self._change)(run, action)
        except LeaseLostError:
            return
        except (BadRequest, NotFound, Conflict, Forbidden) as fault:
            error, ids = f"action {run.step + 1} ({run.actions[run.step]['type']}): {fault.message}", self._context.ids
            with contextlib.suppress(LeaseLostError):
                self._context.engine.write(lambda tx: workflows.finish_run(tx, run, FAILED, error, ids=ids, now=self._context.clock.now()))

    def _change(self, run: Claimed, action: Mapping[str, Any]) -> Claimed:
        """Do a step in the database. Its effects, its events and the note that it is done commit together."""
        scope = _scope(run)
        filled = render(dict(action), scope)

        def change(tx: Tx) -> Claimed:
            now, changes = self._context.clock.now(), list[str]()

            def make() -> str:
                changes.append(self._context.ids())
                return changes[-1]

            result = PERFORM[action["type"]](tx, filled, scope, {"ids": make, "now": now})
            workflows.note_origin(tx, run, changes)
            return workflows.advance_run(tx, run, result, ids=self._context.ids, now=now)

        return self._context.engine.write(change, by=logs.workflow(run.workflow_id))

    def _call(self, run: Claimed, action: Mapping[str, Any]) -> Claimed:
        if run.is_calling and not action.get("repeat"):
            raise BadRequest("interrupted: the service stopped during the call; whether it arrived is not known and it was not repeated")
        engine, clock = self._context.engine, self._context.clock
        scope = _scope(run)
        filled = render(dict(action), scope)
        headers = {"content-type": "application/json", "user-agent": USER_AGENT, "idempotency-key": f"{run.id}-{run.step}"}
        headers |= {name.lower(): str(value) for name, value in filled.get("headers", {}).items()}
        body = jsontext.dumps(filled.get("body", scope)).encode()
        calling = engine.write(lambda tx: workflows.begin_call(tx, run, now=clock.now()))
        try:
            status, _, _ = self._caller.post(str(filled["url"]), headers, body)
        except CallFailedError as problem:
            raise BadRequest(f"the call failed: {problem}") from None
        if not 200 <= status < 300:
            raise BadRequest(f"the call was answered with status {status}")
        return engine.write(lambda tx: workflows.advance_run(tx, calling, {"status": status}, ids=self._context.ids, now=clock.now()))


def _scope(run: Claimed) -> Json:
    """Return what templates can name: `record` or `activity`, `event`, `data`, `schedule`; `workflow`, `run`, `steps`, and `now`, the start
    of the run."""
    return run.input | {
        "workflow": {"id": run.workflow_id, "name": run.workflow_name},
        "run": {"id": run.id, "triggerEvent": run.trigger},
        "steps": run.steps,
        "now": to_wire(to_micros(run.created_at)),
    }


LONGEST_CHAIN = 5
"""Most workflows in a row that trigger each other."""

MOST_DATA = 1_000_000
"""Most bytes of JSON in the data of a manual run."""


def start_for_events(tx: Tx, events: Sequence[change_log.Event], *, ids: Ids, now: float) -> None:
    """Start a run of every workflow that an event triggers. A consumer of the dispatcher."""
    chains = workflows.take_origins(tx, [event.id for event in events])
    triggered = {kind: workflows.triggered_by(tx, kind.replace(".", "/")) for kind in sorted({event.type for event in events})}
    for event in events:
        for workflow in triggered[event.type]:
            data = _given(event, jsontext.loads(event.payload))
            if _concerns(workflow, data):
                _start_if_wanted(tx, workflow, data, event.id, chains.get(event.id, ()), ids=ids, now=now)


def start_by_hand(tx: Tx, workflow_id: str, data: Json | None, *, ids: Ids, now: float) -> StoredWorkflow:
    """Start a run on request, whatever the conditions are. `data` stands in for a record's data; a `recordId` in it makes the run about
    that record of the workflow's object.

    Raises NotFound, Conflict for a disabled workflow, BadRequest.
    """
    workflow = workflows.load_workflow(tx, workflow_id)
    if not workflow.is_enabled:
        raise Conflict(f"the workflow {workflow.name!r} is disabled", {"workflowId": workflow.id})
    if len(jsontext.dumps(data).encode()) > MOST_DATA:
        raise BadRequest(f"data must have at most {MOST_DATA:,} bytes", {"field": "data"})
    run_input: Json = {} if data is None else {"data": data, "record": _record(tx, workflow, data)}
    workflows.add_run(tx, workflow, run_input, ids=ids, now=now)
    return workflow


def switch(tx: Tx, workflow_id: str, enabled: bool, *, now: float) -> None:
    """Enable or disable a workflow. A schedule counts from now on; due times while it was disabled are skipped. Raises NotFound."""
    workflow = workflows.load_workflow(tx, workflow_id)
    due_at = None if workflow.cron is None else next_due(workflow.cron, workflow.timezone, now)
    workflows.set_enabled(tx, workflow, enabled, due_at=due_at, now=now)


def start_due(context: Context) -> bool:
    """Start each schedule once per due time, across processes and restarts, and return whether one was due. After a downtime only the
    latest missed due time is made up for."""
    next_at = context.engine.read(workflows.next_due)
    if next_at is None or next_at > context.clock.now():
        return False

    def start(tx: Tx) -> None:
        now = context.clock.now()
        for workflow in workflows.claim_due(tx, now=now):
            assert workflow.cron is not None
            due_at = latest_due(workflow.cron, workflow.timezone, now)
            if due_at is not None:
                data = {"schedule": {"dueAt": to_wire(to_micros(due_at))}}
                workflows.add_run(tx, workflow, data, due_at=due_at, ids=context.ids, now=now)
            workflows.set_next_due(tx, workflow.id, next_due(workflow.cron, workflow.timezone, now))

    context.engine.write(start)
    return True


def _start_if_wanted(tx: Tx, workflow: StoredWorkflow, data: Json, event_id: str, chain: Sequence[str], **stamp: Unpack[Stamp]) -> None:
    ending = None
    try:
        if not _conditions_hold(tx, workflow, data):
            return
        if workflow.id in chain:
            ending = (SKIPPED, "not run: the event was caused by this workflow itself, which would go on for ever")
        elif len(chain) >= LONGEST_CHAIN:
            ending = (FAILED, f"not run: {len(chain)} workflows have set off one another already; this looks like a loop")
    except (BadRequest, NotFound) as fault:
        ending = (FAILED, f"conditions: {fault.message}")
    run_id = workflows.add_run(tx, workflow, data, event_id=event_id, chain=chain, **stamp)
    if ending is not None and run_id is not None:
        workflows.settle_unstarted_run(tx, run_id, *ending, **stamp)


def _given(event: change_log.Event, payload: Json) -> Json:
    """Return what templates can name about the event, and its record or activity."""
    about = {"event": {"id": event.id, "type": event.type, "createdAt": to_wire(to_micros(event.created_at))}}
    if event.type.startswith("record."):
        return about | {"record": {"id": payload["recordId"], "objectId": payload["objectId"], "data": payload["data"]}}
    activity = {"id": payload["activityId"], "title": payload["title"], "linkedRecords": payload["linkedRecords"]}
    return about | {"activity": activity}


def _concerns(workflow: StoredWorkflow, data: Json) -> bool:
    if "record" in data:
        return bool(data["record"]["objectId"] == workflow.object_id)
    linked = {link["objectId"] for link in data["activity"]["linkedRecords"]}
    return workflow.object_id is None or workflow.object_id in linked


def _conditions_hold(tx: Tx, workflow: StoredWorkflow, data: Json) -> bool:
    definitions = workflow.plan["conditions"]
    if not definitions:
        return True
    conditions = [read_condition(condition["attributeSlug"], condition["operator"], condition["value"]) for condition in definitions]
    if "record" in data:
        return change_log.hold(tx, load_schema(tx, data["record"]["objectId"]).attributes, conditions, data["record"]["data"])
    return change_log.hold(tx, change_log.ACTIVITY_ATTRIBUTES, conditions, data["activity"])


def _record(tx: Tx, workflow: StoredWorkflow, data: Json) -> Json:
    record_id = data.get("recordId")
    if record_id is None or workflow.object_id is None:
        return {"objectId": workflow.object_id, "data": data}
    try:
        record = records.get_record(tx, workflow.object_id, canonical_uuid(record_id) or "")
    except NotFound:
        raise BadRequest("data.recordId is not the id of a record of the workflow's object", {"field": "data.recordId"}) from None
    return {"id": record["id"], "objectId": record["objectId"], "data": record["data"]}
