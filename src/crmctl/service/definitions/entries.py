"""One report or workflow of a definitions file: read from YAML, written as YAML, checked and stored. Files and pages share it."""

from __future__ import annotations

from typing import Any, TypeVar, Unpack

from crmctl.service.definitions.document import load_yaml
from crmctl.service.faults import BadRequest, Conflict
from crmctl.service.reports.definition import ReportDefinition, plan_report
from crmctl.service.shapes import Body, check_shape
from crmctl.service.store import objects, reports, workflows
from crmctl.service.store.schema import load_schema
from crmctl.service.store.stamp import Stamp
from crmctl.service.store.tx import Tx
from crmctl.service.workflows.cron import next_due
from crmctl.service.workflows.definition import WorkflowDefinition, check_workflow

T = TypeVar("T", bound=Body)


def parse_entry(model: type[T], text: str) -> T:
    """Raises BadRequest for what is not YAML, or not such an entry."""
    raw = load_yaml(text)
    if not isinstance(raw, dict):
        raise BadRequest("the definition must hold fields such as name:")
    entry = check_shape(model, raw)
    assert isinstance(entry, model)
    return entry


def store_report(tx: Tx, wanted: ReportDefinition, created_by: str | None = None, **stamp: Unpack[Stamp]) -> str:
    """Create the report of this name, or make it ask this: `created`, `updated` or `unchanged`. Raises BadRequest naming the field."""
    found = objects.find_object_by_slug(tx, wanted.object)
    if found is None:
        raise BadRequest(f"object must be the slug of an object, not {wanted.object!r}", {"field": "object"})
    plan_report(tx, wanted, load_schema(tx, found["id"]))
    draft = reports.ReportDraft(wanted.name, wanted.description, found["id"], wanted.question())
    return reports.save_report(tx, draft, created_by, **stamp)


def store_workflow(tx: Tx, wanted: WorkflowDefinition, created_by: str | None = None, **stamp: Unpack[Stamp]) -> str:
    """Create the workflow of this name, or make it do this: `created`, `updated` or `unchanged`. Raises BadRequest naming the field."""
    now = stamp["now"]
    object_id = check_workflow(tx, wanted, now)
    draft = workflows.WorkflowDraft(
        name=wanted.name,
        description=wanted.description,
        trigger=wanted.trigger,
        object_id=object_id,
        plan=wanted.plan(),
        cron=wanted.cron,
        timezone=None if wanted.cron is None else wanted.timezone or "UTC",
        enabled=wanted.enabled,
        due_at=None if wanted.cron is None else next_due(wanted.cron, wanted.timezone, now),
    )
    return workflows.save_workflow(tx, draft, created_by, **stamp)


def report_entry(tx: Tx, report_id: str) -> dict[str, Any]:
    """A stored report as its entry of a file. Raises NotFound."""
    wire = reports.get_report(tx, report_id)
    return {**_heading(wire), **wire["definition"]}


def workflow_entry(tx: Tx, workflow_id: str) -> dict[str, Any]:
    """A stored workflow as its entry of a file. Raises NotFound."""
    wire = workflows.get_workflow(tx, workflow_id)
    kept = ("trigger", "cron", "timezone", "enabled", "conditions", "actions")
    return _heading(wire) | {field: wire[field] for field in kept if wire.get(field) not in (None, [])}


def refuse_taken_name(known: list[dict[str, Any]], name: str, own_id: str | None) -> None:
    """Raises Conflict for a name that another one of these has."""
    if any(each["name"] == name and each["id"] != own_id for each in known):
        raise Conflict(f"there is one called {name!r} already", {"field": "name"})


def _heading(wire: dict[str, Any]) -> dict[str, Any]:
    entry = {"name": wire["name"]} | ({"description": wire["description"]} if wire["description"] else {})
    return entry | ({"object": wire["object"]["slug"]} if wire["object"] and wire["object"]["slug"] else {})
