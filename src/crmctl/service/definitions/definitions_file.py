"""The definitions file and its entries."""

from __future__ import annotations

from typing import Any, TypeVar, Unpack

from pydantic import Field

from crmctl.models.jsontext import Json
from crmctl.service.faults import BadRequest, Body, Conflict, check_shape
from crmctl.service.reports.report_definition import ReportDefinition, plan_report
from crmctl.service.store import objects, reports, workflows
from crmctl.service.store.record_tables import load_schema
from crmctl.service.store.tx import Stamp, Tx
from crmctl.service.workflows.workflow_definition import WorkflowDefinition, check_workflow, next_due
from crmctl.values import yaml_text


class MemberDefinition(Body):
    name: str
    email: str
    role: str = "member"
    image: str | None = None


class AttributeDefinition(Body):
    """In `config`, a reference names its object by slug as `allowed_object`, so that a file fits any service."""

    name: str
    slug: str
    type: str
    config: Json | None = None
    is_required: bool = False
    is_unique: bool = False
    is_list: bool = False
    is_active: bool = True


class ObjectDefinition(Body):
    slug: str
    plural_name: str
    singular_name: str | None = None
    description: str | None = None
    attributes: list[AttributeDefinition] = Field(default_factory=list)


class Document(Body):
    members: list[MemberDefinition] = Field(default_factory=list)
    objects: list[ObjectDefinition] = Field(default_factory=list)
    reports: list[ReportDefinition] = Field(default_factory=list)
    workflows: list[WorkflowDefinition] = Field(default_factory=list)


def load_yaml(text: str) -> Any:
    """Parse YAML that holds only JSON values. Raises BadRequest, with the line of a syntax error."""
    try:
        return yaml_text.loads(text)
    except ValueError as error:
        raise BadRequest(f"the file is not YAML of plain values: {error}") from None


def parse_document(text: str) -> Document:
    """Parse a definitions file. Raises BadRequest with the line of a syntax error or the path of a wrong field."""
    raw = load_yaml(text)
    if raw is None:
        return Document()
    if not isinstance(raw, dict):
        raise BadRequest("the file must hold sections such as members: and objects:")
    document = check_shape(Document, {section: entries or [] for section, entries in raw.items()})
    assert isinstance(document, Document)
    _refuse_repeats("members", [member.email for member in document.members])
    _refuse_repeats("objects", [each.slug for each in document.objects])
    _refuse_repeats("reports", [each.name for each in document.reports])
    _refuse_repeats("workflows", [each.name for each in document.workflows])
    for each in document.objects:
        _refuse_repeats(f"objects[{each.slug}].attributes", [attribute.slug for attribute in each.attributes])
    return document


def format_document(sections: Json) -> str:
    import yaml

    return str(yaml.safe_dump(sections, sort_keys=False, allow_unicode=True, width=120))


def _refuse_repeats(where: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise BadRequest(f"{where} names {name} twice")


T = TypeVar("T", bound=Body)


def parse_entry(model: type[T], text: str) -> T:
    """Parse one entry. Raises BadRequest."""
    raw = load_yaml(text)
    if not isinstance(raw, dict):
        raise BadRequest("the definition must hold fields such as name:")
    entry = check_shape(model, raw)
    assert isinstance(entry, model)
    return entry


def store_report(tx: Tx, definition: ReportDefinition, created_by: str | None = None, **stamp: Unpack[Stamp]) -> str:
    """Create or change the report of this name. Returns `created`, `updated` or `unchanged`; raises BadRequest naming the field."""
    of_object = objects.find_object_by_slug(tx, definition.object)
    if of_object is None:
        raise BadRequest(f"object must be the slug of an object, not {definition.object!r}", {"field": "object"})
    plan_report(tx, definition, load_schema(tx, of_object["id"]))
    draft = reports.ReportDraft(definition.name, definition.description, of_object["id"], definition.question())
    return reports.save_report(tx, draft, created_by, **stamp)


def store_workflow(tx: Tx, definition: WorkflowDefinition, created_by: str | None = None, **stamp: Unpack[Stamp]) -> str:
    """Create or change the workflow of this name. Returns `created`, `updated` or `unchanged`; raises BadRequest naming the field."""
    now = stamp["now"]
    object_id = check_workflow(tx, definition, now)
    draft = workflows.WorkflowDraft(
        name=definition.name,
        description=definition.description,
        trigger=definition.trigger,
        object_id=object_id,
        plan=definition.plan(),
        cron=definition.cron,
        timezone=None if definition.cron is None else definition.timezone or "UTC",
        enabled=definition.enabled,
        due_at=None if definition.cron is None else next_due(definition.cron, definition.timezone, now),
    )
    return workflows.save_workflow(tx, draft, created_by, **stamp)


def report_entry(wire: Json) -> Json:
    """Return a stored report as an entry of the file."""
    return {**_heading(wire), **wire["definition"]}


def workflow_entry(wire: Json) -> Json:
    """Return a stored workflow as an entry of the file."""
    kept = ("trigger", "cron", "timezone", "enabled", "conditions", "actions")
    return _heading(wire) | {field: wire[field] for field in kept if wire.get(field) not in (None, [])}


def refuse_taken_name(entries: list[Json], name: str, own_id: str | None) -> None:
    """Raise Conflict if another entry has this name."""
    if any(entry["name"] == name and entry["id"] != own_id for entry in entries):
        raise Conflict(f"there is one called {name!r} already", {"field": "name"})


def _heading(wire: Json) -> Json:
    entry = {"name": wire["name"]} | ({"description": wire["description"]} if wire["description"] else {})
    return entry | ({"object": wire["object"]["slug"]} if wire["object"] and wire["object"]["slug"] else {})
