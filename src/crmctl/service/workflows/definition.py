"""What a workflow does: its shape in a definitions file, and that shape checked against the objects it names."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from crmctl.service.faults import BadRequest
from crmctl.service.outbound.guard import ForbiddenTargetError, check_form
from crmctl.service.shapes import Body
from crmctl.service.store import event_conditions, objects
from crmctl.service.store.schema import Schema, load_schema
from crmctl.service.store.tx import Tx
from crmctl.service.values.conditions import ConditionDefinition, read_conditions
from crmctl.service.values.projection import project
from crmctl.service.values.text import Invalid
from crmctl.service.workflows.cron import check_cron
from crmctl.service.workflows.templates import check_templates, is_template

SCHEDULE = "schedule"
MOST_ACTIONS = 20

Trigger = Literal[
    "record/created",
    "record/updated",
    "record/deleted",
    "activity/created",
    "activity/updated",
    "activity/deleted",
    "schedule",
]


class UpdateRecord(Body):
    """Of the record the run is about, unless `recordId` (and `object`, where it is another one) say which."""

    type: Literal["updateRecord"]
    data: dict[str, Any]
    object: str | None = None
    record_id: str | None = None


class CreateRecord(Body):
    type: Literal["createRecord"]
    object: str
    data: dict[str, Any]


class CreateActivity(Body):
    """Linked to the record the run is about, unless `linkedRecords` says otherwise."""

    type: Literal["createActivity"]
    title: str
    summary: str | None = None
    activity_date: str | None = None
    linked_records: list[dict[str, str]] | None = None
    participants: list[dict[str, str]] | None = None


class CallUrl(Body):
    """POSTs `body` as JSON. `repeat`: call again when a crash left it unknown whether the call was made, instead of failing the run."""

    type: Literal["callUrl"]
    url: str
    headers: dict[str, str] = Field(default_factory=dict)
    body: Any = None
    repeat: bool = False


Action = Annotated[UpdateRecord | CreateRecord | CreateActivity | CallUrl, Field(discriminator="type")]


class WorkflowDefinition(Body):
    """`object` is needed for record triggers; for activities it chooses those linked to one of its records. `cron` goes with schedule."""

    name: str
    trigger: Trigger
    object: str | None = None
    description: str | None = None
    cron: str | None = None
    timezone: str | None = None
    enabled: bool = True
    conditions: list[ConditionDefinition] = Field(default_factory=list)
    actions: list[Action] = Field(min_length=1, max_length=MOST_ACTIONS)

    def plan(self) -> dict[str, Any]:
        """`{conditions, actions}` in canonical form."""
        return {
            "conditions": [condition.to_search() for condition in read_conditions(self.conditions)],
            "actions": [action.model_dump(by_alias=True, exclude_defaults=True) for action in self.actions],
        }


def check_workflow(tx: Tx, wanted: WorkflowDefinition, now: float) -> str | None:
    """The id of its object, where it has one. Raises BadRequest naming the field at fault."""
    schema = None if wanted.object is None else _schema(tx, wanted.object, "object")
    if wanted.trigger.startswith("record/") and schema is None:
        raise BadRequest(f"object is required for the trigger {wanted.trigger}", {"field": "object"})
    if wanted.trigger == SCHEDULE:
        check_cron(wanted.cron, wanted.timezone, now)
        if wanted.conditions:
            raise BadRequest("conditions do not go with a schedule, which has no event to look at", {"field": "conditions"})
    elif wanted.cron is not None or wanted.timezone is not None:
        raise BadRequest(f"cron and timezone go with the trigger {SCHEDULE} only", {"field": "cron"})
    source = (
        event_conditions.ACTIVITIES if schema is None or wanted.trigger.startswith("activity/") else event_conditions.records_of(schema)
    )
    event_conditions.check(tx, source, read_conditions(wanted.conditions))
    for position, action in enumerate(wanted.actions):
        _check_action(tx, action, schema, f"actions[{position}]")
    return None if schema is None else schema.object_id


def _check_action(tx: Tx, action: Action, schema: Schema | None, where: str) -> None:
    check_templates(action.model_dump(by_alias=True), where)
    match action:
        case UpdateRecord():
            target = schema if action.object is None else _schema(tx, action.object, f"{where}.object")
            if target is None:
                raise BadRequest(f"{where}.object is required, as the workflow has none", {"field": f"{where}.object"})
            _check_data(target, action.data, where)
        case CreateRecord():
            target = _schema(tx, action.object, f"{where}.object")
            _check_data(target, action.data, where)
            missing = [attribute.slug for attribute in target.required if attribute.slug not in action.data]
            if missing:
                raise BadRequest(f"{where}.data: {missing[0]} is required", {"field": f"{where}.data"})
        case CallUrl():
            _check_url(action.url, f"{where}.url")
        case CreateActivity():
            if not action.title.strip():
                raise BadRequest(f"{where}.title must not be empty", {"field": f"{where}.title"})


def _check_data(schema: Schema, data: dict[str, Any], where: str) -> None:
    """Values without templates must fit now; the others are checked when they are known."""
    for slug, value in data.items():
        field = f"{where}.data.{slug}"
        if slug not in schema.attributes:
            raise BadRequest(f"{field}: unknown attribute; the attributes are: {', '.join(schema.attributes)}", {"field": field})
        if _is_fixed(value):
            try:
                project(schema.attributes[slug], value)
            except Invalid as problem:
                raise BadRequest(f"{field} {problem}", {"field": field}) from None


def _is_fixed(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_fixed, value.values()))
    return all(map(_is_fixed, value)) if isinstance(value, list) else not is_template(value)


def _check_url(url: str, field: str) -> None:
    if is_template(url):
        return
    try:
        check_form(url)
    except ForbiddenTargetError as problem:
        raise BadRequest(f"{field}: {problem}", {"field": field}) from None


def _schema(tx: Tx, slug: str, field: str) -> Schema:
    found = objects.find_object_by_slug(tx, slug)
    if found is None:
        raise BadRequest(f"{field} must be the slug of an object, not {slug!r}", {"field": field})
    return load_schema(tx, found["id"])
