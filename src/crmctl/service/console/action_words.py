"""What the actions of a workflow do, as a person reads it: attributes by their names, records by theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crmctl.models import jsontext
from crmctl.service.console.action_form import TYPES, WITH_DATA, attributes_of
from crmctl.service.console.pages import Visit
from crmctl.service.console.record_list import cells_of
from crmctl.service.store.tx import Tx
from crmctl.service.workflows.templates import is_template

OF_THE_RUN = "the one the run is about"
OF_THE_RUN_IF_ANY = "the record the run is about, if there is one"


@dataclass(frozen=True)
class ActionFact:
    """One line: what it is called, its text, and where that leads; `is_code` for templates and JSON."""

    name: str
    text: str
    path: str = ""
    is_code: bool = False


@dataclass(frozen=True)
class ActionWords:
    """`of` is the object it does it to."""

    what: str
    of: str
    facts: Sequence[ActionFact]


def actions_in_words(tx: Tx, visit: Visit, actions: Sequence[Mapping[str, Any]], about: str) -> list[ActionWords]:
    """`about` is the slug of the workflow's object."""
    return [_in_words(tx, visit, each, about) for each in actions]


def _in_words(tx: Tx, visit: Visit, action: Mapping[str, Any], about: str) -> ActionWords:
    kind = str(action.get("type"))
    slug = str(action.get("object") or (about if kind == "updateRecord" else ""))
    names = {each["slug"]: each["pluralName"] for each in visit.objects}
    of = names.get(slug, slug) if kind in WITH_DATA else ""
    return ActionWords(
        TYPES.get(kind, kind), of, _FACTS[kind](tx, visit, action, slug) if kind in _FACTS else [_code("Definition", action)]
    )


def _of_record(tx: Tx, visit: Visit, action: Mapping[str, Any], slug: str) -> list[ActionFact]:
    facts = []
    if action["type"] == "updateRecord":
        facts.append(_fact("Record", action["recordId"]) if action.get("recordId") else ActionFact("Record", OF_THE_RUN))
    data = action.get("data") or {}
    known = {each["slug"]: each for each in attributes_of(tx, slug)}
    fixed = {name: value for name, value in data.items() if name in known and not is_template(value)}
    [cells] = cells_of(tx, [known[name] for name in fixed], [{"data": fixed}], visit)
    shown = dict(zip(fixed, cells, strict=True))
    for name, value in data.items():
        title = known[name]["name"] if name in known else f"{name} (no attribute any more)"
        if name not in shown:
            facts.append(_fact(title, value))
        else:
            cell = shown[name]
            facts.append(ActionFact(title, cell.text or "nothing: it is emptied", cell.path, is_template(cell.text)))
    return facts


def _of_activity(_tx: Tx, _visit: Visit, action: Mapping[str, Any], _slug: str) -> list[ActionFact]:
    facts = [_fact("Title", action.get("title", ""))]
    facts += [_fact(name, action[field]) for field, name in (("summary", "Summary"), ("activityDate", "Date")) if action.get(field)]
    linked = action.get("linkedRecords")
    facts.append(
        ActionFact("Linked to", OF_THE_RUN_IF_ANY)
        if linked is None
        else _code("Linked to", linked)
        if linked
        else ActionFact("Linked to", "nothing")
    )
    return [*facts, *([_code("Participants", action["participants"])] if action.get("participants") else [])]


def _of_call(_tx: Tx, _visit: Visit, action: Mapping[str, Any], _slug: str) -> list[ActionFact]:
    """Of headers only the names: they hold what proves the call's right."""
    body = _code("Body", action["body"]) if action.get("body") is not None else ActionFact("Body", "all that templates can name, as JSON")
    facts = [ActionFact("POST to", str(action.get("url", "")), is_code=True), body]
    if action.get("headers"):
        facts.append(ActionFact("Headers", ", ".join(action["headers"])))
    again = "yes" if action.get("repeat") else "no, the run fails: the call may have arrived"
    return [*facts, ActionFact("Called again when interrupted", again)]


_FACTS = {"updateRecord": _of_record, "createRecord": _of_record, "createActivity": _of_activity, "callUrl": _of_call}


def _fact(name: str, value: Any) -> ActionFact:
    return ActionFact(name, value, is_code=is_template(value)) if isinstance(value, str) else _code(name, value)


def _code(name: str, value: Any) -> ActionFact:
    return ActionFact(name, jsontext.dumps(value), is_code=True)
