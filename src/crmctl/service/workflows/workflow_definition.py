"""Definitions of workflows: triggers, actions, schedules and templates."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from jinja2 import StrictUndefined, TemplateError, Undefined, nodes
from jinja2.filters import FILTERS
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment
from jinja2.tests import TESTS
from pydantic import Field

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.faults import BadRequest, Body, NotFound, check_shape
from crmctl.service.outbound.guard import ForbiddenTargetError, read_target
from crmctl.service.store import activities, change_log, objects, records
from crmctl.service.store.condition_sql import ConditionDefinition, read_conditions
from crmctl.service.store.preferences import zone_of
from crmctl.service.store.record_tables import Schema, load_schema
from crmctl.service.store.tx import Tx
from crmctl.values.projection import project
from crmctl.values.value_readers import Invalid


def check_cron(cron: str | None, timezone: str | None, now: float) -> None:
    """Raise BadRequest for an invalid cron expression or time zone, and for a schedule that is never due."""
    if cron is None:
        raise BadRequest("cron is required for the trigger schedule", {"field": "cron"})
    if len(cron.split()) != 5:
        raise BadRequest("cron must have five fields: minute, hour, day of the month, month, day of the week", {"field": "cron"})
    if timezone is not None and zone_of(timezone) is None:
        raise BadRequest(f"timezone must be a name such as Europe/Berlin, not {timezone!r}", {"field": "timezone"})
    try:
        due = next_due(cron, timezone, now)
    except CronSimError as problem:
        raise BadRequest(f"cron cannot be read: {problem}", {"field": "cron"}) from None
    if due is None:
        raise BadRequest("cron names a day that never comes", {"field": "cron"})


def next_due(cron: str, timezone: str | None, after: float) -> float | None:
    """Return the first due Unix time after `after`."""
    due = next(CronSim(cron, datetime.fromtimestamp(after, _zone(timezone))), None)
    return None if due is None else due.timestamp()


def latest_due(cron: str, timezone: str | None, until: float) -> float | None:
    """Return the last due Unix time that is not later than `until`."""
    # A backward search excludes the second it begins at.
    start = datetime.fromtimestamp(until, UTC).replace(second=0, microsecond=0) + timedelta(seconds=1)
    due = next(CronSim(cron, start.astimezone(_zone(timezone)), reverse=True), None)
    return None if due is None else due.timestamp()


def _zone(timezone: str | None) -> tzinfo:
    return UTC if timezone is None else ZoneInfo(timezone)


MOST_SOURCE = 10_000
"""Most characters of one template."""

MOST_OUTPUT = 100_000
"""Most characters of one rendered text."""

_FILTERS = (
    *("default", "d", "lower", "upper", "title", "capitalize", "trim", "length", "count", "first", "last"),
    *("round", "int", "float", "string", "abs", "truncate", "urlencode"),
)
_TESTS = ("defined", "undefined", "none", "string", "number", "boolean")
_NODES = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.Const, nodes.Name, nodes.Getattr, nodes.Getitem, nodes.Slice),
    *(nodes.Filter, nodes.Test, nodes.Keyword, nodes.CondExpr, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not),
    *(nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Neg, nodes.Pos),
)
_OF_PYTHON = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RecursionError, TypeError, ValueError)
"""Errors that an expression raises for values it cannot work with."""
_ONE_EXPRESSION = re.compile(r"\s*\{\{[-+]?(.*?)[-+]?\}\}\s*", re.DOTALL)


class _Environment(SandboxedEnvironment):
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%"})

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return a member of an object in the data, never an attribute of a Python value."""
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        is_index = isinstance(obj, str | list) and isinstance(argument, int | slice)
        if isinstance(obj, Mapping) or is_index:
            try:
                return obj[argument]
            except (LookupError, TypeError):
                pass
        return obj if isinstance(obj, Undefined) else self.undefined(hint=f"{argument!r} is undefined")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        left, right = _number(left), _number(right)
        if isinstance(left, Decimal) or isinstance(right, Decimal):
            left, right = Decimal(str(left)), Decimal(str(right))
        return super().call_binop(context, operator, left, right)


def check_templates(value: Any, where: str) -> None:
    """Check every template in a value of any shape. Raises BadRequest naming the place."""
    _replaced(value, where, compile_template)


def is_template(value: Any) -> bool:
    return isinstance(value, str) and ("{{" in value or "{%" in value or "{#" in value)


def render(value: Any, scope: Mapping[str, Any]) -> Any:
    """Return the value with its templates filled in. A text that is a single expression becomes its result, of any type. Raises BadRequest
    naming the place, also for an unknown name."""
    return _replaced(value, "", lambda text: _render(text, scope))


def _replaced(value: Any, where: str, replace: Callable[[str], Any]) -> Any:
    """Return a value of any shape with each of its templates replaced. Raises BadRequest naming the place."""
    if isinstance(value, dict):
        return {key: _replaced(item, f"{where}.{key}" if where else key, replace) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, f"{where}[{position}]", replace) for position, item in enumerate(value)]
    if not is_template(value):
        return value
    try:
        return replace(value)
    except BadRequest as fault:
        raise BadRequest(f"{where}: {fault.message}", {"field": where}) from None
    except (TemplateError, *_OF_PYTHON) as problem:
        raise BadRequest(f"{where}: {_why(problem)}", {"field": where}) from None


def _why(problem: Exception) -> str:
    """Return the library's own message, which names what is missing, but no internal error of Python."""
    if isinstance(problem, TemplateError):
        return str(problem)
    return "a division by zero" if isinstance(problem, ZeroDivisionError) else "the expression does not work with these values"


def _render(text: str, scope: Mapping[str, Any]) -> Any:
    source = compile_template(text)
    if source is not None:
        value = _ENVIRONMENT.compile_expression(source, undefined_to_none=False)(**scope)
        str(_shown(value))  # raises for what is missing, and for what JSON cannot hold
        return value
    pieces: list[str] = []
    size = 0
    for piece in _ENVIRONMENT.from_string(text).generate(**scope):
        pieces.append(piece)
        size += len(piece)
        _check_size(size)
    return "".join(pieces)


@lru_cache(maxsize=1024)
def compile_template(text: str) -> str | None:
    """Compile a template. Returns also the source of its expression if it is a single one."""
    if len(text) > MOST_SOURCE:
        raise BadRequest(f"a template must have at most {MOST_SOURCE:,} characters")
    try:
        tree = _ENVIRONMENT.parse(text)
        strange = next((node for node in tree.find_all(nodes.Node) if not isinstance(node, _NODES)), None)
        if strange is None:
            _ENVIRONMENT.from_string(text)
    except (TemplateError, RecursionError) as problem:
        raise BadRequest(f"the template cannot be read: {_why(problem)}") from None
    if strange is not None:
        raise BadRequest(f"a template takes simple expressions only, not {type(strange).__name__.lower()}")
    match = _ONE_EXPRESSION.fullmatch(text)
    outputs = [piece for node in tree.body if isinstance(node, nodes.Output) for piece in node.nodes]
    visible = [piece for piece in outputs if not (isinstance(piece, nodes.TemplateData) and not piece.data.strip())]
    return match[1] if match and len(visible) == 1 else None


def _number(value: Any) -> int | float | Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise BadRequest("a template calculates with numbers only")
    return value


def _shown(value: Any) -> Any:
    """Return a value inside a text: null is empty, everything but text is JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str | Undefined) else jsontext.dumps(value)


def _check_size(size: int) -> None:
    if size > MOST_OUTPUT:
        raise BadRequest(f"the text would be longer than {MOST_OUTPUT:,} characters")


def _join(values: Any, separator: str = "") -> str:
    parts = [str(_shown(value)) for value in values] if isinstance(values, list) else [str(_shown(values))]
    _check_size(sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


def _replace(text: Any, old: str, new: str) -> str:
    source = str(_shown(text))
    _check_size(len(source) + source.count(old) * len(new))
    return source.replace(old, new)


_ENVIRONMENT = _Environment(undefined=StrictUndefined, autoescape=False, finalize=_shown, keep_trailing_newline=True)
_ENVIRONMENT.globals.clear()
_ENVIRONMENT.filters = {name: FILTERS[name] for name in _FILTERS}
_ENVIRONMENT.filters |= {"join": _join, "replace": _replace, "tojson": jsontext.dumps}
_ENVIRONMENT.tests = {name: TESTS[name] for name in _TESTS}

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
    """Updates the record of the run, unless `recordId` (and `object`, for another one) names a different one."""

    type: Literal["updateRecord"]
    data: Json
    object: str | None = None
    record_id: str | None = None


class CreateRecord(Body):
    type: Literal["createRecord"]
    object: str
    data: Json


class CreateActivity(Body):
    """Creates an activity linked to the record of the run, unless `linkedRecords` says otherwise."""

    type: Literal["createActivity"]
    title: str
    summary: str | None = None
    activity_date: str | None = None
    linked_records: activities.Links | None = None
    participants: activities.Participants | None = None


class CallUrl(Body):
    """POSTs `body` as JSON. With `repeat`, a call whose outcome a crash left unknown is made again instead of failing the run."""

    type: Literal["callUrl"]
    url: str
    headers: dict[str, str] = Field(default_factory=dict)
    body: Any = None
    repeat: bool = False


Action = Annotated[UpdateRecord | CreateRecord | CreateActivity | CallUrl, Field(discriminator="type")]


class WorkflowDefinition(Body):
    """`object` is required for record triggers; for activities it selects those linked to one of its records. `cron` belongs to
    schedules."""

    name: str
    trigger: Trigger
    object: str | None = None
    description: str | None = None
    cron: str | None = None
    timezone: str | None = None
    enabled: bool = True
    conditions: list[ConditionDefinition] = Field(default_factory=list)
    actions: list[Action] = Field(min_length=1, max_length=MOST_ACTIONS)

    def plan(self) -> Json:
        """Return `{conditions, actions}` in canonical form."""
        return {
            "conditions": [condition.to_search() for condition in read_conditions(self.conditions)],
            "actions": [action.model_dump(by_alias=True, exclude_defaults=True) for action in self.actions],
        }


def check_workflow(tx: Tx, definition: WorkflowDefinition, now: float) -> str | None:
    """Return the id of the workflow's object, if any. Raises BadRequest naming the wrong field."""
    schema = None if definition.object is None else _schema(tx, definition.object, "object")
    if definition.trigger.startswith("record/") and schema is None:
        raise BadRequest(f"object is required for the trigger {definition.trigger}", {"field": "object"})
    if definition.trigger == SCHEDULE:
        check_cron(definition.cron, definition.timezone, now)
        if definition.conditions:
            raise BadRequest("conditions do not go with a schedule, which has no event to look at", {"field": "conditions"})
    elif definition.cron is not None or definition.timezone is not None:
        raise BadRequest(f"cron and timezone go with the trigger {SCHEDULE} only", {"field": "cron"})
    of_activity = schema is None or definition.trigger.startswith("activity/")
    attributes = change_log.ACTIVITY_ATTRIBUTES if schema is None or of_activity else schema.attributes
    change_log.check(tx, attributes, read_conditions(definition.conditions))
    for position, action in enumerate(definition.actions):
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
        case CallUrl() if not is_template(action.url):
            try:
                read_target(action.url)
            except ForbiddenTargetError as problem:
                raise BadRequest(f"{where}.url: {problem}", {"field": f"{where}.url"}) from None
        case CreateActivity():
            if not action.title.strip():
                raise BadRequest(f"{where}.title must not be empty", {"field": f"{where}.title"})


def _check_data(schema: Schema, data: Json, where: str) -> None:
    """Check values without templates now; the others are checked when they are known."""
    for slug, value in data.items():
        field = f"{where}.data.{slug}"
        if slug not in schema.attributes:
            raise BadRequest(f"{field}: unknown attribute; the attributes are: {', '.join(schema.attributes)}", {"field": field})
        templates: list[str] = []
        _replaced(value, field, templates.append)
        if not templates:
            try:
                project(schema.attributes[slug], value)
            except Invalid as problem:
                raise BadRequest(f"{field} {problem}", {"field": field}) from None


def _schema(tx: Tx, slug: str, field: str) -> Schema:
    return load_schema(tx, objects.id_of_slug(tx, slug, field))


Fields = Json
Perform = Callable[[Tx, Fields, Fields, Json], Fields]
"""`(tx, action with its templates filled in, the run's scope, {ids, now})` returns the step's result, which later templates can use."""


def update_record(tx: Tx, action: Fields, scope: Fields, stamp: Json) -> Fields:
    about = scope.get("record") or {}
    object_id = objects.id_of_slug(tx, action["object"], "object") if "object" in action else about.get("objectId")
    record_id = action["recordId"] if "recordId" in action else about.get("id")
    if not isinstance(object_id, str) or not isinstance(record_id, str):
        raise BadRequest('there is no record to update; a manual run names one with the data {"recordId": "..."}')
    updated = records.update_record(tx, object_id, record_id, action["data"], **stamp)
    return {"objectId": updated["objectId"], "recordId": updated["id"]}


def create_record(tx: Tx, action: Fields, _: Fields, stamp: Json) -> Fields:
    created = records.create_record(tx, objects.id_of_slug(tx, action["object"], "object"), action["data"], **stamp)
    return {"objectId": created["objectId"], "recordId": created["id"]}


def create_activity(tx: Tx, action: Fields, scope: Fields, stamp: Json) -> Fields:
    """Link the activity to the run's record if that still exists."""
    check_shape(CreateActivity, action)
    fields = {"linkedRecords": _own_link(tx, scope.get("record") or {})} | {name: action[name] for name in action.keys() - {"type"}}
    return {"activityId": activities.create_activity(tx, fields, created_by=None, **stamp)["id"]}


PERFORM: dict[str, Perform] = {"updateRecord": update_record, "createRecord": create_record, "createActivity": create_activity}


def _own_link(tx: Tx, record: Fields) -> list[Fields]:
    try:
        record_wire = records.get_record(tx, record.get("objectId") or "", record.get("id") or "")
    except NotFound:
        return []
    return [{"objectId": record_wire["objectId"], "recordId": record_wire["id"]}]
