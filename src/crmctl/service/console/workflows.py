"""Pages of workflows: definition with its actions, and runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from crmctl.errors import reason
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import AttributeType
from crmctl.service.console.cells import labels_in, reference_target, value_text
from crmctl.service.console.conditions_form import definition_values, definitions_of, in_words, refuse_unfinished, rows_of
from crmctl.service.console.record_form import FormField, Input, changes, fields_for, submitted
from crmctl.service.console.visits import ConsolePage, Outcome, Redirect, Visit
from crmctl.service.definitions.definitions_file import parse_entry, refuse_taken_name, store_workflow
from crmctl.service.faults import BadRequest, NotFound, check_shape
from crmctl.service.store import objects, records, workflows
from crmctl.service.store.tx import Tx, to_micros, to_wire
from crmctl.service.workflows.run_executor import start_by_hand, switch
from crmctl.service.workflows.workflow_definition import Trigger, WorkflowDefinition, is_template
from crmctl.values.value_readers import canonical_uuid

RUNS_PER_PAGE = 25
LATE_SECONDS = 120.0


def show_run(tx: Tx, visit: Visit) -> ConsolePage:
    workflow = workflows.get_workflow(tx, visit.id("id"))
    run = workflows.get_run(tx, visit.id("runId"))
    if run["workflowId"] != workflow["id"]:
        raise NotFound(f"there is no run with the id {run['id']} of this workflow")
    shown = {"given": jsontext.dumps(run["input"]), "steps": [jsontext.dumps(step) for step in run["steps"]]}
    is_under_way = run["status"] in (workflows.PENDING, workflows.RUNNING)
    return ConsolePage("workflow_run.html", {"workflow": workflow, "run": run} | shown, refresh=2 if is_under_way else None)


def page_values(tx: Tx, visit: Visit, workflow: Json) -> Json:
    due = workflows.load_workflow(tx, workflow["id"]).due_at
    return {
        "conditions": in_words(workflow["conditions"], _names(tx, workflow)),
        "steps": actions_in_words(tx, visit, workflow["actions"], (workflow["object"] or {}).get("slug") or ""),
        **visit.part(lambda limit, offset: workflows.list_runs(tx, workflow["id"], limit, offset), RUNS_PER_PAGE),
        "outcomes": workflows.recent_outcomes(tx, workflow["id"]),
        "due_at": None if due is None else to_wire(to_micros(due)),
        "is_late": due is not None and due < visit.now() - LATE_SECONDS,
        "data": visit.text("data"),
    }


def start_run(tx: Tx, visit: Visit, workflow: Json) -> Outcome:
    start_by_hand(tx, workflow["id"], _run_data(visit.text("data")), **visit.stamp())
    return Redirect(f"/workflows/{workflow['id']}", "run-started")


def switch_on(tx: Tx, visit: Visit, workflow: Json, is_on: bool) -> None:
    switch(tx, workflow["id"], is_on, now=visit.now())


def _names(tx: Tx, workflow: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return name and type of the attributes its conditions may name."""
    object_id = workflow["object"] and workflow["object"].get("id")
    described = objects.list_attributes(tx, object_id, include_inactive=True) if object_id else []
    return {"title": ("Title", "text")} | {attribute["slug"]: (attribute["name"], attribute["type"]) for attribute in described}


def _run_data(text: str) -> Json | None:
    """Return the data of the form for the run, None if empty. Raises BadRequest."""
    if not text:
        return None
    try:
        data = jsontext.loads(text, unique_keys=True)
    except (ValueError, ArithmeticError, RecursionError):
        raise BadRequest("the data is not JSON", {"field": "data"}) from None
    if not isinstance(data, dict):
        raise BadRequest("the data must be a JSON object", {"field": "data"})
    return data


def save(tx: Tx, visit: Visit, workflow: Json | None = None) -> Outcome:
    """Create a workflow, or change this one. Raises BadRequest and Conflict."""
    try:
        definition = _definition(tx, visit)
        refuse_taken_name(workflows.list_workflows(tx), definition.name, workflow["id"] if workflow else None)
        if workflow:
            workflows.rename_workflow(tx, workflow["id"], definition.name)
        store_workflow(tx, definition, visit.session.member_id, **visit.stamp())
    except BadRequest as error:
        raise BadRequest(error.message if visit.text("as") == "yaml" else in_form_words(error.message), error.details) from error
    workflow_id = next(other["id"] for other in workflows.list_workflows(tx) if other["name"] == definition.name)
    return Redirect(f"/workflows/{workflow_id}", "saved" if workflow else "workflow-created")


def _definition(tx: Tx, visit: Visit) -> WorkflowDefinition:
    if visit.text("as") == "yaml":
        return parse_entry(WorkflowDefinition, visit.raw("yaml"))
    refuse_unfinished(rows_of(visit.form))
    entry = _heading(tx, visit) | {"actions": actions_of(tx, typed_blocks(tx, visit, visit.text("object")))}
    if not entry["actions"]:
        raise BadRequest("a workflow needs at least one action", {"field": "actions"})
    return check_shape(WorkflowDefinition, entry)


def _heading(tx: Tx, visit: Visit) -> Json:
    entry: Json = {"name": visit.text("name"), "trigger": visit.text("trigger"), "enabled": "enabled" in visit.form}
    more: Json = {name: visit.text(name) for name in ("description", "object", "cron", "timezone")}
    more["conditions"] = definitions_of(tx, visit)
    return entry | {name: value for name, value in more.items() if value}


def form_values(tx: Tx, visit: Visit, stored: Json, is_sent: bool) -> Json:
    first = visit.query.get("object", visit.objects[0]["slug"] if visit.objects else "")
    fresh: Json = {"name": "", "trigger": "record/created", "enabled": False, "actions": []} | ({"object": first} if first else {})
    entry = _heading(tx, visit) if is_sent else stored or fresh
    about = str(entry.get("object", ""))
    return definition_values(tx, visit, entry, "conditions") | {
        "entry": {"object": "", "cron": "", "timezone": "", **entry},
        "triggers": get_args(Trigger),
        "types": TYPES,
        "with_data": WITH_DATA,
        "blocks": typed_blocks(tx, visit, about) if is_sent else blocks_for(tx, entry.get("actions", []), about),
        "focus": "",
    }


TYPES = {
    "updateRecord": "Change the record",
    "createRecord": "Create a record",
    "createActivity": "Add an activity",
    "callUrl": "Call an address",
}
WITH_DATA = ("updateRecord", "createRecord")

PLAIN: Mapping[str, Sequence[tuple[str, str, str, str]]] = {
    "updateRecord": (("recordId", "Record", "text", "the triggering record"),),
    "createActivity": (
        ("title", "Title of the activity", "text", ""),
        ("summary", "Summary of the activity", "textarea", ""),
        ("activityDate", "Date of the activity", "text", "the moment of the run"),
    ),
    "callUrl": (
        ("url", "Address", "text", ""),
        ("headers", "Headers", "lines", ""),
        ("body", "Body", "json", "all data of the run, as JSON"),
        ("repeat", "Call again if the service was stopped during a call", "tick", ""),
    ),
}
"""By type: the fields that are not values of attributes, their labels, how they are shown, and what an empty one means."""
UNSEEN = {"linkedRecords": "Linked records", "participants": "Participants"}
"""Parts of an action that only YAML changes."""


@frozen
class ActionBlock:
    """One action. `number` names it in the form, whatever its place; `kept` is the action as it was; `values` are those of attributes."""

    number: int
    kept: Json
    type: str
    object: str
    plain: Sequence[Input] = ()
    values: Sequence[FormField] = ()

    @property
    def kept_text(self) -> str:
        return jsontext.dumps(self.kept)

    @property
    def unseen(self) -> list[str]:
        return [text for name, text in UNSEEN.items() if name in self.kept and self.type == self.kept.get("type")]

    @property
    def filled(self) -> list[FormField]:
        data = _data(self.kept)
        return [field for field in self.values if field.slug in data or any(box.text for box in field.inputs)]

    @property
    def blank(self) -> list[FormField]:
        filled = self.filled
        return [field for field in self.values if field not in filled]


def blocks_for(tx: Tx, actions: Sequence[Json], about: str) -> list[ActionBlock]:
    """Return the blocks of a definition; `about` is the slug of the workflow's object."""
    return [
        _filled_in(tx, ActionBlock(number, action, str(action.get("type")), str(action.get("object") or "")), about, {})
        for number, action in enumerate(actions, 1)
    ]


def typed_blocks(tx: Tx, visit: Visit, about: str) -> list[ActionBlock]:
    numbers = [int(text) for text in visit.chosen("action") if text.isdecimal() and len(text) < 5]
    return [_typed(tx, visit, number, about) for number in dict.fromkeys(numbers)]


def pressed(tx: Tx, visit: Visit) -> Json | None:
    """Return the blocks after a button that adds, moves or removes, and the field to focus; None if the form is to be saved."""
    if visit.text("as") == "yaml":
        return None
    about = visit.text("object")
    blocks = typed_blocks(tx, visit, about)
    action, _, number = visit.raw("do").partition(" ")
    place = next((place for place, block in enumerate(blocks) if str(block.number) == number), None)
    if action == "remove" and place is not None:
        return {"blocks": blocks[:place] + blocks[place + 1 :], "focus": "removed"}
    if action == "up" and place:
        moved = [*blocks[: place - 1], blocks[place], blocks[place - 1], *blocks[place + 1 :]]
        return {"blocks": moved, "focus": f"action-{number}"}
    kind = visit.text("new-type")
    if kind not in TYPES:
        return {"blocks": blocks, "focus": f"action-{number}" if number else "shown"} if action else None
    fresh = 1 + max((block.number for block in blocks), default=0)
    slug = (about or (visit.objects[0]["slug"] if visit.objects else "")) if kind == "createRecord" else ""
    blocks.append(_filled_in(tx, ActionBlock(fresh, {"type": kind}, kind, slug), about, {}))
    return {"blocks": blocks, "focus": f"action-{fresh}"}


def actions_of(tx: Tx, blocks: Sequence[ActionBlock]) -> list[Json]:
    """Return the blocks as actions. Raises BadRequest with the block's place."""
    actions = []
    for place, block in enumerate(blocks):
        try:
            actions.append(_action(tx, block))
        except ValueError as error:
            raise BadRequest(f"action {place + 1}: {error}", {"field": f"actions[{place}]"}) from None
    return actions


def in_form_words(message: str) -> str:
    """Return `action 2: score must be a number` for a message about `actions[1].data.score`."""
    return re.sub(r"\bactions\[(\d+)\]\.?(?:data\.)?", lambda place: f"action {int(place[1]) + 1}: ", message)


def _typed(tx: Tx, visit: Visit, number: int, about: str) -> ActionBlock:
    prefix = f"a{number}:"
    form = {name.removeprefix(prefix): values for name, values in visit.form.items() if name.startswith(prefix)}
    if "url" in form:
        form.setdefault("repeat", [""])  # browsers send no box that is not ticked
    try:
        kept = jsontext.loads(visit.raw(f"{prefix}kept"))
    except ValueError:
        kept = None
    block = ActionBlock(number, kept if isinstance(kept, dict) else {}, visit.text(f"{prefix}type"), visit.text(f"{prefix}object"))
    return _filled_in(tx, block, about, form)


def _filled_in(tx: Tx, block: ActionBlock, about: str, form: Mapping[str, Sequence[str]]) -> ActionBlock:
    """Return the block with its plain inputs and a field for each attribute, as the action has them, or as `form` does."""
    kept = block.kept if block.kept.get("type") == block.type else {}
    plain = [Input(name, label, _text(kept.get(name), kind), kind, hint=hint) for name, label, kind, hint in PLAIN.get(block.type, ())]
    block = replace(block, plain=[box.sent(form) for box in plain])
    if block.type not in WITH_DATA:
        return block
    data = _data(block.kept)
    crm_object = objects.find_object_by_slug(tx, block.object or (about if block.type == "updateRecord" else ""))
    described = objects.list_attributes(tx, crm_object["id"], include_inactive=True) if crm_object else []
    shown = [attribute for attribute in described if attribute["isActive"] or attribute["slug"] in data]
    shown += [_unknown(slug) for slug in data if slug not in [attribute["slug"] for attribute in described]]
    fields = submitted(fields_for(shown, data, labels_in(tx, shown, [data])), form)
    return replace(block, values=[_free(field) for field in fields])


def _free(field: FormField) -> FormField:
    """Return the field with text inputs that propose its choices, because any value may be a template."""
    own = ("reference", "pick", "lines", "json", "textarea")
    inputs = ((box, ("true", "false") if box.kind == "truth" else box.options) for box in field.inputs)
    return replace(field, inputs=tuple(box if box.kind in own else replace(box, kind="text", options=some) for box, some in inputs))


def _unknown(slug: str) -> Json:
    return {"slug": slug, "name": slug, "type": AttributeType.TEXT, "config": {}, "isList": False, "isRequired": False, "isActive": False}


def _data(action: Mapping[str, Any]) -> Json:
    data = action.get("data")
    return data if isinstance(data, dict) else {}


def _text(value: Any, kind: str) -> str:
    if kind == "lines" and isinstance(value, dict):
        return "\n".join(f"{name}: {text}" for name, text in value.items())
    if kind == "tick":
        return "true" if value else ""
    if value is None:
        return ""
    return jsontext.dumps(value, indent=2) if kind == "json" else str(value).replace("\r\n", "\n")


def _action(tx: Tx, block: ActionBlock) -> Json:
    """Raises ValueError."""
    if block.type not in TYPES:
        raise ValueError("choose what it does")
    action = dict(block.kept) if block.kept.get("type") == block.type else {"type": block.type}
    typed = {box.name: _value(box) for box in block.plain if box.text != box.stored}
    action = {name: value for name, value in (action | typed).items() if value is not None or name not in typed}
    if block.type == "createActivity":
        action.setdefault("title", "")
    if block.type == "callUrl":
        action.setdefault("url", "")
    if block.type in WITH_DATA:
        action.pop("object", None)
        action |= ({"object": block.object} if block.object else {}) | {"data": _written(tx, block)}
        if not action["data"] and block.type == "updateRecord":
            raise ValueError("give at least one attribute a value")
    return action


def _value(box: Input) -> Any:
    """Return the value of a plain input, None if it is empty. Raises ValueError."""
    if box.kind == "tick":
        return bool(box.text) or None
    if not box.text.strip():
        return None
    if box.kind == "json":
        try:
            return jsontext.loads(box.text, unique_keys=True)
        except ValueError as error:
            raise ValueError(f"{box.label}: this is not JSON: {reason(error)}") from None
    return _headers(box.text) if box.kind == "lines" else box.text.strip() if box.kind == "text" else box.text


def _headers(text: str) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.split("\n"))):
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"Headers: {line!r} is not of the form Name: value")
        if name.strip() in headers:
            raise ValueError(f"Headers: {name.strip()} is there twice")
        headers[name.strip()] = value.strip()
    return headers


def _written(tx: Tx, block: ActionBlock) -> Json:
    """Return the data of the action; unchanged fields keep their value, emptied ones are left out. Raises ValueError."""
    before = _data(block.kept)
    written, problems = changes(block.values, is_template)
    for field in block.values:
        target, text = reference_target(field.attribute), written.get(field.slug)
        if target and isinstance(text, str) and not is_template(text) and not canonical_uuid(text):
            try:
                written[field.slug] = records.id_called(tx, target, text)
            except BadRequest as error:
                problems[field.slug] = error.message
        if field.slug in problems:
            raise ValueError(f"{field.attribute['name']}: {problems[field.slug]}")
    emptied = [slug for slug, value in written.items() if value is None]
    return {slug: value for slug, value in (before | written).items() if slug not in emptied}


def actions_in_words(tx: Tx, visit: Visit, actions: Sequence[Json], about: str) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Return what each action does, to which object, and its facts; `about` is the slug of the workflow's object."""
    names = {crm_object["slug"]: crm_object["pluralName"] for crm_object in visit.objects}
    words = []
    for block in blocks_for(tx, actions, about):
        slug = (block.object or about) if block.type in WITH_DATA else ""
        words.append((TYPES.get(block.type, block.type), names.get(slug, slug), _facts(block)))
    return words


def _facts(block: ActionBlock) -> list[tuple[str, str]]:
    """Return the fields of an action. Of headers only the names: their values are secrets."""
    if block.type not in TYPES:
        return [("Definition", block.kept_text)]
    facts = []
    for box in block.plain:
        text = ", ".join(line.partition(":")[0] for line in box.text.splitlines()) if box.kind == "lines" else box.text
        if text or box.hint:
            facts.append((box.label, "yes" if box.kind == "tick" else text or box.hint))
    for field in block.filled:
        kind = field.attribute["type"]
        shown = field.inputs[0].text if kind == AttributeType.REFERENCE else value_text(kind, field.value)
        facts.append((field.attribute["name"], shown or "cleared"))
    unseen = {text: block.kept[name] for name, text in UNSEEN.items() if name in block.kept}
    return facts + [(text, jsontext.dumps(value) if value else "none") for text, value in unseen.items()]
