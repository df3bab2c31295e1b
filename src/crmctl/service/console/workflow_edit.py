"""Creating, changing and deleting workflows: a form, and the definition as YAML beside it. Either becomes the same entry of a file."""

from __future__ import annotations

from typing import Any, get_args

from crmctl.service.console.action_form import (
    PLAIN,
    TYPES,
    WITH_DATA,
    ActionBlock,
    actions_of,
    blocks_for,
    in_form_words,
    pressed,
    typed_blocks,
)
from crmctl.service.console.conditions_form import OPERATORS, definitions_of, refuse_unfinished, rows_from, rows_of
from crmctl.service.console.deletions import Deletable
from crmctl.service.console.edits import form_status, form_values, refuse_if_saved_meanwhile
from crmctl.service.console.pages import LARGE_FORM, ConsolePage, Pages, Redirect, TurnedBack, Visit
from crmctl.service.definitions.document import format_document
from crmctl.service.definitions.entries import parse_entry, refuse_taken_name, store_workflow, workflow_entry
from crmctl.service.faults import BadRequest, Conflict, Fault
from crmctl.service.roles import MemberRole
from crmctl.service.shapes import check_shape
from crmctl.service.store import attributes, objects, workflows
from crmctl.service.store.tx import Tx
from crmctl.service.workflows.definition import Trigger, WorkflowDefinition


def add_pages(pages: Pages) -> None:
    """All that changes workflows."""
    _add_create(pages)
    _add_change(pages)
    Deletable("workflow", workflows.get_workflow, workflows.delete_workflow, _goes_too).add_pages(pages)


def _goes_too(_tx: Tx, _id: str) -> str:
    return "Its runs go with it, and one that is under way does no further step. To pause it, disable it instead."


def _add_create(pages: Pages) -> None:
    @pages.get("/workflows/new", needs=MemberRole.ADMIN)
    def new_workflow(tx: Tx, visit: Visit) -> ConsolePage:
        slug = visit.query.get("object", visit.objects[0]["slug"] if visit.objects else "")
        entry = {"name": "", "trigger": "record/created", "enabled": False, "actions": []} | ({"object": slug} if slug else {})
        return _form(tx, visit, None, entry)

    @pages.post("/workflows", form_limit=LARGE_FORM)
    def create_workflow(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
        if again := _again(tx, visit, None):
            return again
        try:
            wanted = _wanted(tx, visit)
            refuse_taken_name(workflows.list_workflows(tx), wanted.name, None)
            store_workflow(tx, wanted, visit.session.member_id, **visit.stamp())
        except (BadRequest, Conflict) as error:
            return _form(tx, visit, None, _heading(visit), error)
        made = next(each["id"] for each in workflows.list_workflows(tx) if each["name"] == wanted.name)
        return Redirect(f"/workflows/{made}", "workflow-created")


def _add_change(pages: Pages) -> None:
    @pages.get("/workflows/{workflowId:uuid}/edit", needs=MemberRole.ADMIN)
    def edit_workflow(tx: Tx, visit: Visit) -> ConsolePage:
        return _form(tx, visit, visit.id("workflowId"), workflow_entry(tx, visit.id("workflowId")))

    @pages.post("/workflows/{workflowId:uuid}/edit", form_limit=LARGE_FORM)
    def change_workflow(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
        stored = workflow_entry(tx, visit.id("workflowId"))
        known_id = visit.id("workflowId")
        if again := _again(tx, visit, known_id):
            return again
        try:
            refuse_if_saved_meanwhile(visit, stored)
            wanted = _wanted(tx, visit)
            refuse_taken_name(workflows.list_workflows(tx), wanted.name, known_id)
            workflows.rename_workflow(tx, known_id, wanted.name)
            store_workflow(tx, wanted, **visit.stamp())
        except (BadRequest, Conflict) as error:
            # The new name must not stay when the rest does not.
            raise TurnedBack(_form(tx, visit, known_id, _heading(visit), error)) from error
        return Redirect(f"/workflows/{known_id}", "saved")


def _again(tx: Tx, visit: Visit, known_id: str | None) -> ConsolePage | None:
    """The form once more, after a button that adds, moves or removes; nothing is stored."""
    found = pressed(tx, visit, visit.text("object")) if visit.text("as") != "yaml" else None
    return _form(tx, visit, known_id, _heading(visit), focused=found) if found else None


def _wanted(tx: Tx, visit: Visit) -> WorkflowDefinition:
    if visit.text("as") == "yaml":
        return parse_entry(WorkflowDefinition, visit.raw("yaml"))
    refuse_unfinished(rows_of(visit.form))
    entry = _heading(visit) | {"actions": actions_of(tx, typed_blocks(tx, visit, visit.text("object")))}
    if not entry["actions"]:
        raise BadRequest("a workflow needs at least one action", {"field": "actions"})
    wanted = check_shape(WorkflowDefinition, entry)
    assert isinstance(wanted, WorkflowDefinition)
    return wanted


def _heading(visit: Visit) -> dict[str, Any]:
    """The definition that the form says, without its actions."""
    entry: dict[str, Any] = {"name": visit.text("name"), "trigger": visit.text("trigger"), "enabled": "enabled" in visit.form}
    for name in ("description", "object", "cron", "timezone"):
        if visit.text(name):
            entry[name] = visit.text(name)
    if conditions := definitions_of(visit):
        entry["conditions"] = conditions
    return entry


def _form(
    tx: Tx,
    visit: Visit,
    known_id: str | None,
    entry: dict[str, Any],
    error: Fault | None = None,
    focused: tuple[list[ActionBlock], str] | None = None,
) -> ConsolePage:
    """`focused`: the blocks that a button of the form has made, and where the focus goes."""
    about = str(entry.get("object", ""))
    blocks = typed_blocks(tx, visit, about) if error else blocks_for(tx, entry.get("actions", []), about)
    is_yaml = visit.text("as") == "yaml" or visit.query.get("as") == "yaml"
    known = objects.find_object_by_slug(tx, about)
    stored = workflow_entry(tx, known_id) if known_id else None
    values = {
        "section": "workflows",
        "known_id": known_id,
        "entry": {"description": "", "object": "", "cron": "", "timezone": "", "enabled": True, **entry},
        "is_yaml": is_yaml,
        "yaml": visit.raw("yaml") if visit.text("as") == "yaml" else format_document(entry),
        "triggers": get_args(Trigger),
        "attributes": attributes.list_attributes(tx, known["id"]) if known else [],
        "conditions": rows_from(entry.get("conditions", [])),
        "operators": OPERATORS,
        "types": TYPES,
        "plain": PLAIN,
        "with_data": WITH_DATA,
        "blocks": focused[0] if focused else blocks,
        "focus": focused[1] if focused else "",
        "targets": {each["id"]: each["slug"] for each in visit.objects},
    }
    values |= form_values(stored, error) | ({"version": visit.text("version")} if focused else {})
    values |= {} if is_yaml or error is None else {"error": in_form_words(error.message)}
    return ConsolePage("workflow_form.html", values, form_status(error))
