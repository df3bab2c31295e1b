"""The actions of a workflow, in words and in a form."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from crmctl.errors import reason
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import AttributeType
from crmctl.service.console.cells import ListCell, cells_of, labels_in, reference_target
from crmctl.service.console.record_form import FormField, Input, changes, fields_for, submitted
from crmctl.service.console.visits import Visit
from crmctl.service.faults import BadRequest
from crmctl.service.store import attributes, objects, records
from crmctl.service.store.tx import Tx
from crmctl.service.workflows.workflow_definition import is_template
from crmctl.values.value_readers import canonical_uuid

TYPES = {
    "updateRecord": "Change the record",
    "createRecord": "Create a record",
    "createActivity": "Add an activity",
    "callUrl": "Call an address",
}
WITH_DATA = ("updateRecord", "createRecord")

PLAIN = {
    "updateRecord": (("recordId", "Which record", "text", "left empty, the one the run is about; else an id or a template"),),
    "createRecord": (),
    "createActivity": (
        ("title", "Title of the activity", "text", ""),
        ("summary", "Summary of the activity", "textarea", ""),
        ("activityDate", "Date of the activity", "text", "left empty, the moment of the run"),
    ),
    "callUrl": (
        ("url", "Address to call", "text", ""),
        ("headers", "Headers", "lines", "Name: value, one a line"),
        ("body", "Body of the call", "json", "as JSON; left empty, all that templates can name"),
        ("repeat", "Call again when the service was stopped during a call", "tick", ""),
    ),
}
"""By type: the fields that are not values of attributes, their labels, how they are shown, and what there is to know."""


@dataclass(frozen=True)
class ActionBlock:
    """`number` names it in the form, whatever its place; `kept` is the action it was made of; `more` are attributes that can be added."""

    number: int
    kept: Mapping[str, Any]
    type: str
    object: str
    texts: Mapping[str, str]
    known: Sequence[Mapping[str, Any]] = ()
    stored: Sequence[FormField] = ()
    values: Sequence[FormField] = ()
    more: Sequence[tuple[str, str]] = ()

    @property
    def kept_text(self) -> str:
        return jsontext.dumps(dict(self.kept))

    @property
    def unseen(self) -> list[str]:
        """Parts of the action that the block does not show."""
        names = {"linkedRecords": "Linked records", "participants": "Participants"}
        return [text for name, text in names.items() if name in self.kept and self.type == self.kept.get("type")]


def blocks_for(tx: Tx, actions: Sequence[Mapping[str, Any]], about: str) -> list[ActionBlock]:
    """The actions of a definition; `about` is the slug of the workflow's object."""
    return [
        _block(tx, ActionBlock(number, each, str(each.get("type")), str(each.get("object") or ""), _texts(each)), list(_data(each)), about)
        for number, each in enumerate(actions, 1)
    ]


def typed_blocks(tx: Tx, visit: Visit, about: str) -> list[ActionBlock]:
    """The blocks as they were filled in."""
    numbers = [int(text) for text in visit.chosen("action") if text.isdecimal() and len(text) < 5]
    return [_typed(tx, visit, number, about) for number in dict.fromkeys(numbers)]


def pressed(tx: Tx, visit: Visit, about: str) -> tuple[list[ActionBlock], str] | None:
    """Return the blocks after a button was pressed, and the field to focus; None if the form is to be saved.

    An attribute chosen to be added appears in the form before anything is saved.
    """
    blocks = typed_blocks(tx, visit, about)
    what, _, rest = visit.raw("do").partition(" ")
    number, _, slug = rest.partition(" ")
    place = next((place for place, block in enumerate(blocks) if str(block.number) == number), None)
    if what == "remove" and place is not None:
        return blocks[:place] + blocks[place + 1 :], "removed"
    if what == "up" and place:
        return [*blocks[: place - 1], blocks[place], blocks[place - 1], *blocks[place + 1 :]], f"action-{number}"
    if what == "drop" and place is not None:
        kept = [field.slug for field in blocks[place].values if field.slug != slug]
        return [*blocks[:place], _block(tx, blocks[place], kept, about, visit), *blocks[place + 1 :]], f"action-{number}"
    added = [(block, visit.text(f"a{block.number}:more")) for block in blocks]
    focus = next(
        (f"value-{block.number}-{slug}" for block, slug in added if slug),
        (f"action-{number}" if number else "shown") if what == "show" else "",
    )
    if any(slug for _, slug in added):
        blocks = [_block(tx, block, [*(f.slug for f in block.values), slug], about, visit) if slug else block for block, slug in added]
    if visit.text("new-type") in TYPES:
        fresh = 1 + max((block.number for block in blocks), default=0)
        blocks = [*blocks, _fresh(tx, fresh, visit.text("new-type"), about or (visit.objects[0]["slug"] if visit.objects else ""))]
        focus = f"action-{fresh}"
    return (blocks, focus) if what or focus else None


def actions_of(tx: Tx, blocks: Sequence[ActionBlock]) -> list[Json]:
    """The blocks as actions. Raises BadRequest with the block's place."""
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


def attributes_of(tx: Tx, slug: str) -> list[Json]:
    """Of the object with this slug, inactive ones too; none where it is not there."""
    known = objects.find_object_by_slug(tx, slug)
    return attributes.list_attributes(tx, known["id"], include_inactive=True) if known else []


def _fresh(tx: Tx, number: int, kind: str, slug: str) -> ActionBlock:
    """An empty block; a record that is made has fields for what it must have."""
    is_new = kind == "createRecord"
    required = [each["slug"] for each in attributes_of(tx, slug) if each["isRequired"]] if is_new else []
    return _block(tx, ActionBlock(number, {"type": kind}, kind, slug if is_new else "", {}), required, slug)


def _typed(tx: Tx, visit: Visit, number: int, about: str) -> ActionBlock:
    said = f"a{number}:"
    try:
        kept = jsontext.loads(visit.raw(f"{said}kept"))
    except ValueError:
        kept = {}
    kept, kind = kept if isinstance(kept, dict) else {}, visit.text(f"{said}type")
    texts = {name: visit.raw(said + name).replace("\r\n", "\n") for name, *_ in PLAIN.get(kind, ()) if said + name in visit.form}
    if kind == "callUrl" and said + "url" in visit.form:
        texts["repeat"] = visit.text(f"{said}repeat")
    block = ActionBlock(number, kept, kind, visit.text(f"{said}object"), texts)
    return _block(tx, block, visit.chosen(f"{said}slug"), about, visit)


def _block(tx: Tx, block: ActionBlock, slugs: Sequence[str], about: str, visit: Visit | None = None) -> ActionBlock:
    """With the fields of these attributes, as the action has them, or as the form does."""
    if block.type not in WITH_DATA:
        return block
    found = {each["slug"]: each for each in attributes_of(tx, block.object or (about if block.type == "updateRecord" else ""))}
    known = [found.get(slug) or _unknown(slug) for slug in dict.fromkeys(slugs)]
    data = _data(block.kept)
    stored = fields_for(known, data, labels_in(tx, known, data))
    said = f"a{block.number}:"
    form = {name.removeprefix(said): values for name, values in visit.form.items() if name.startswith(said)} if visit else {}
    more = [(slug, each["name"]) for slug, each in found.items() if each["isActive"] and slug not in slugs]
    return replace(block, known=known, stored=stored, values=[_free(each) for each in submitted(stored, form)], more=more)


def _free(field: FormField) -> FormField:
    """A template fits everywhere: what a record's form offers to choose is proposed here."""
    return replace(field, inputs=tuple(_proposed(each) for each in field.inputs))


def _proposed(each: Input) -> Input:
    if each.kind in ("reference", "pick", "lines", "json", "textarea"):
        return each
    return replace(each, kind="text", options=("true", "false") if each.kind == "truth" else each.options)


def _unknown(slug: str) -> Json:
    """Of an attribute that is not there any more."""
    return {"slug": slug, "name": slug, "type": AttributeType.TEXT, "config": {}, "isList": False, "isRequired": False, "isActive": False}


def _data(action: Mapping[str, Any]) -> Json:
    data = action.get("data")
    return data if isinstance(data, dict) else {}


def _texts(action: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of each field of the action."""
    return {name: _text(action.get(name), kind) for name, _, kind, _ in PLAIN.get(str(action.get("type")), ())}


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
    action: Json = dict(block.kept) if block.kept.get("type") == block.type else {"type": block.type}
    before = _texts(action)
    for name, label, kind, _ in PLAIN[block.type]:
        text = block.texts.get(name, before[name])
        if text == before[name]:
            continue
        action[name] = _value(text, kind, label)
        if action[name] is None:
            del action[name]
    if block.type == "createActivity":
        action.setdefault("title", "")
    if block.type == "callUrl":
        action.setdefault("url", "")
    if block.type in WITH_DATA:
        action = {name: value for name, value in action.items() if name != "object"} | ({"object": block.object} if block.object else {})
        action["data"] = _written(tx, block)
        if not action["data"] and block.more:
            raise ValueError("add a value to set")
    return action


def _value(text: str, kind: str, label: str) -> Any:
    """None for a field without a value. Raises ValueError."""
    if kind == "tick":
        return bool(text) or None
    if not text.strip():
        return None
    if kind == "json":
        try:
            return jsontext.loads(text, unique_keys=True)
        except ValueError as error:
            raise ValueError(f"{label}: this is not JSON: {reason(error)}") from None
    return _headers(text) if kind == "lines" else text.strip() if kind == "text" else text


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
    """Return the data of the action; unchanged fields keep their value. Raises ValueError, also for a field without a value."""
    before = _data(block.kept)
    written, problems = changes(block.known, before, block.stored, block.values, is_template)
    for attribute in block.known:
        slug, target = str(attribute["slug"]), reference_target(attribute)
        text = written.get(slug)
        if target is None or not isinstance(text, str) or is_template(text) or canonical_uuid(text):
            continue
        called = records.called(tx, target, text)
        if len(called) == 1:
            written[slug] = called[0]["id"]
        else:
            problems[slug] = f"{text!r} fits several records: give the id" if called else records.not_called(tx, target)
    for field in block.values:
        if field.slug in problems:
            raise ValueError(f"{field.label}: {problems[field.slug]}")
    data = {field.slug: written.get(field.slug, before.get(field.slug)) for field in block.values}
    for field in block.values:
        if data[field.slug] is None and before.get(field.slug, "") is not None:
            raise ValueError(f"{field.label} has no value; leave it out, or write null in the YAML tab to clear the attribute")
    return data


OF_THE_RUN = "the one the run is about"
OF_THE_RUN_IF_ANY = "the record the run is about, if there is one"


Fact = tuple[str, ListCell]
"""A name and a value; templates and JSON are code."""


def actions_in_words(tx: Tx, visit: Visit, actions: Sequence[Mapping[str, Any]], about: str) -> list[tuple[str, str, list[Fact]]]:
    """Return what each action does, to which object, and its facts; `about` is the slug of the workflow's object."""
    return [_in_words(tx, visit, each, about) for each in actions]


def _in_words(tx: Tx, visit: Visit, action: Mapping[str, Any], about: str) -> tuple[str, str, list[Fact]]:
    kind = str(action.get("type"))
    slug = str(action.get("object") or (about if kind == "updateRecord" else ""))
    names = {each["slug"]: each["pluralName"] for each in visit.objects}
    if kind in WITH_DATA:
        return TYPES[kind], names.get(slug, slug), _of_record(tx, visit, action, slug)
    facts = {"createActivity": _of_activity, "callUrl": _of_call}.get(kind, lambda other: [_code("Definition", other)])
    return TYPES.get(kind, kind), "", facts(action)


def _of_record(tx: Tx, visit: Visit, action: Mapping[str, Any], slug: str) -> list[Fact]:
    facts = []
    if action["type"] == "updateRecord":
        facts.append(_fact("Record", action["recordId"]) if action.get("recordId") else ("Record", ListCell(OF_THE_RUN)))
    data = action.get("data") or {}
    known = {each["slug"]: each for each in attributes_of(tx, slug)}
    fixed = {name: value for name, value in data.items() if name in known and not is_template(value)}
    [cells] = cells_of(tx, [known[name] for name in fixed], [{"data": fixed}], visit)
    shown = dict(zip(fixed, cells, strict=True))
    for name, value in data.items():
        title = known[name]["name"] if name in known else f"{name} (no attribute any more)"
        if name not in shown:
            facts.append(_fact(title, value))
        elif is_template(shown[name].text):
            facts.append((title, ListCell(shown[name].text, "code")))
        else:
            facts.append((title, shown[name] if shown[name].text else ListCell("nothing: it is emptied")))
    return facts


def _of_activity(action: Mapping[str, Any]) -> list[Fact]:
    facts = [_fact("Title", action.get("title", ""))]
    facts += [_fact(name, action[field]) for field, name in (("summary", "Summary"), ("activityDate", "Date")) if action.get(field)]
    linked = action.get("linkedRecords")
    to = ListCell(OF_THE_RUN_IF_ANY if linked is None else "nothing")
    facts.append(_code("Linked to", linked) if linked else ("Linked to", to))
    return [*facts, _code("Participants", action["participants"])] if action.get("participants") else facts


def _of_call(action: Mapping[str, Any]) -> list[Fact]:
    """Of headers only the names: they hold what proves the call's right."""
    everything = ("Body", ListCell("all that templates can name, as JSON"))
    facts = [("POST to", ListCell(str(action.get("url", "")), "code"))]
    facts.append(_code("Body", action["body"]) if action.get("body") is not None else everything)
    if action.get("headers"):
        facts.append(("Headers", ListCell(", ".join(action["headers"]))))
    again = "yes" if action.get("repeat") else "no, the run fails: the call may have arrived"
    return [*facts, ("Called again when interrupted", ListCell(again))]


def _fact(name: str, value: Any) -> Fact:
    return (name, ListCell(value, "code" if is_template(value) else "lines")) if isinstance(value, str) else _code(name, value)


def _code(name: str, value: Any) -> Fact:
    return name, ListCell(jsontext.dumps(value), "code")
