"""From events, due times and requests to runs that wait. Conditions and the loop guard are applied here; nothing is executed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from crmctl.models import jsontext
from crmctl.service.context import Context
from crmctl.service.faults import BadRequest, Conflict, NotFound
from crmctl.service.store import event_conditions, outbox, records, workflow_runs, workflows
from crmctl.service.store.schema import load_schema
from crmctl.service.store.stamp import Stamp
from crmctl.service.store.timestamps import to_micros, to_wire
from crmctl.service.store.tx import Tx
from crmctl.service.store.workflow_runs import FAILED, SKIPPED, Cause
from crmctl.service.store.workflows import Ids, StoredWorkflow
from crmctl.service.values.choices import canonical_uuid
from crmctl.service.values.conditions import read_condition
from crmctl.service.workflows.cron import latest_due, next_due

LONGEST_CHAIN = 5
"""How many workflows in a row may set off the next one."""

MOST_DATA = 1_000_000
"""Bytes of JSON that a manual run may bring along."""

API = "api"


def start_for_events(tx: Tx, events: Sequence[outbox.Event], *, ids: Ids, now: float) -> None:
    """The dispatcher's consumer: one run of every workflow that an event sets off."""
    chains = workflow_runs.take_origins(tx, [event.id for event in events])
    triggered = {kind: workflows.triggered_by(tx, kind.replace(".", "/")) for kind in sorted({event.type for event in events})}
    for event in events:
        for workflow in triggered[event.type]:
            given = _given(event, jsontext.loads(event.payload))
            if _concerns(workflow, given):
                cause = Cause(workflow.name, workflow.trigger, event.id, chain=chains.get(event.id, ()))
                _start_if_wanted(tx, workflow, given, cause, ids=ids, now=now)


def start_by_hand(tx: Tx, workflow_id: str, data: dict[str, Any] | None, *, ids: Ids, now: float) -> StoredWorkflow:
    """A run that somebody asked for, whatever the conditions say.

    `data` stands in for a record's data; with a `recordId` in it, the run is about that record of the workflow's object. Raises NotFound,
    Conflict for a disabled workflow, BadRequest.
    """
    workflow = workflows.load_workflow(tx, workflow_id)
    if not workflows.get_workflow(tx, workflow_id)["enabled"]:
        raise Conflict(f"the workflow {workflow.name!r} is disabled", {"workflowId": workflow.id})
    if len(jsontext.dumps(data).encode()) > MOST_DATA:
        raise BadRequest(f"data must have at most {MOST_DATA:,} bytes", {"field": "data"})
    given: dict[str, Any] = {} if data is None else {"data": data, "record": _record(tx, workflow, data)}
    workflow_runs.add_run(tx, workflow, given, Cause(f"API: {workflow.name}", API), ids=ids, now=now)
    return workflow


def switch(tx: Tx, workflow_id: str, enabled: bool, *, now: float) -> None:
    """Enable or disable. A schedule counts from now on: what was due while it was disabled is not made up for. Raises NotFound."""
    workflow = workflows.load_workflow(tx, workflow_id)
    due_at = None if workflow.cron is None else next_due(workflow.cron, workflow.timezone, now)
    workflows.set_enabled(tx, workflow.id, enabled, due_at=due_at, now=now)


class Schedules:
    """A job of the worker: starts each schedule once for every due time, across processes and restarts.

    After a time in which nothing ran, the latest due time that was missed is made up for, the ones before it are not.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def run_once(self) -> bool:
        due_at = self._context.engine.read(workflows.next_due)
        if due_at is None or due_at > self._context.clock.now():
            return False
        self._context.engine.write(self._start_due)
        return True

    def close(self) -> None:
        """Nothing is kept open."""

    def _start_due(self, tx: Tx) -> None:
        now = self._context.clock.now()
        for workflow in workflows.claim_due(tx, now=now):
            assert workflow.cron is not None
            due_at = latest_due(workflow.cron, workflow.timezone, now)
            if due_at is not None:
                given = {"schedule": {"dueAt": to_wire(to_micros(due_at))}}
                cause = Cause(workflow.name, workflow.trigger, due_at=due_at)
                workflow_runs.add_run(tx, workflow, given, cause, ids=self._context.ids, now=now)
            workflows.set_next_due(tx, workflow.id, next_due(workflow.cron, workflow.timezone, now))


def _start_if_wanted(tx: Tx, workflow: StoredWorkflow, given: dict[str, Any], cause: Cause, **stamp: Unpack[Stamp]) -> None:
    ending = None
    try:
        if not _conditions_hold(tx, workflow, given):
            return
        if workflow.id in cause.chain:
            ending = (SKIPPED, "not run: the event was caused by this workflow itself, which would go on for ever")
        elif len(cause.chain) >= LONGEST_CHAIN:
            ending = (FAILED, f"not run: {len(cause.chain)} workflows have set off one another already; this looks like a loop")
    except (BadRequest, NotFound) as fault:
        ending = (FAILED, f"conditions: {fault.message}")
    run_id = workflow_runs.add_run(tx, workflow, given, cause, **stamp)
    if ending is not None and run_id is not None:
        workflow_runs.settle_unstarted(tx, run_id, *ending, **stamp)


def _given(event: outbox.Event, payload: dict[str, Any]) -> dict[str, Any]:
    """What templates can name: the event and the record or activity it is about."""
    about = {"event": {"id": event.id, "type": event.type, "createdAt": to_wire(to_micros(event.created_at))}}
    if event.type.startswith("record."):
        return about | {"record": {"id": payload["recordId"], "objectId": payload["objectId"], "data": payload["data"]}}
    activity = {"id": payload["activityId"], "title": payload["title"], "linkedRecords": payload["linkedRecords"]}
    return about | {"activity": activity}


def _concerns(workflow: StoredWorkflow, given: dict[str, Any]) -> bool:
    if "record" in given:
        return bool(given["record"]["objectId"] == workflow.object_id)
    linked = {link["objectId"] for link in given["activity"]["linkedRecords"]}
    return workflow.object_id is None or workflow.object_id in linked


def _conditions_hold(tx: Tx, workflow: StoredWorkflow, given: dict[str, Any]) -> bool:
    wanted = workflow.plan["conditions"]
    if not wanted:
        return True
    conditions = [read_condition(each["attributeSlug"], each["operator"], each["value"]) for each in wanted]
    if "record" in given:
        source = event_conditions.records_of(load_schema(tx, given["record"]["objectId"]))
        return event_conditions.hold(tx, source, conditions, given["record"]["data"])
    return event_conditions.hold(tx, event_conditions.ACTIVITIES, conditions, given["activity"])


def _record(tx: Tx, workflow: StoredWorkflow, data: dict[str, Any]) -> dict[str, Any]:
    record_id = data.get("recordId")
    if record_id is None or workflow.object_id is None:
        return {"objectId": workflow.object_id, "data": data}
    try:
        found = records.get_record(tx, workflow.object_id, canonical_uuid(record_id) or "")
    except NotFound:
        raise BadRequest("data.recordId is not the id of a record of the workflow's object", {"field": "data.recordId"}) from None
    return {"id": found["id"], "objectId": found["objectId"], "data": found["data"]}
