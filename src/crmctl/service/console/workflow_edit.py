"""Creating, changing and deleting workflows: a form, and the definition as YAML beside it. Either becomes the same entry of a file."""

from __future__ import annotations

from typing import Any, get_args

from crmctl.service.console.action_form import TYPES, actions_of, blocks_for, typed_blocks
from crmctl.service.console.conditions_form import OPERATORS, definitions_of, rows_from
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
        try:
            wanted = _wanted(visit, [])
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
        try:
            refuse_if_saved_meanwhile(visit, stored)
            wanted = _wanted(visit, stored.get("actions", []))
            refuse_taken_name(workflows.list_workflows(tx), wanted.name, known_id)
            workflows.rename_workflow(tx, known_id, wanted.name)
            store_workflow(tx, wanted, **visit.stamp())
        except (BadRequest, Conflict) as error:
            # The new name must not stay when the rest does not.
            raise TurnedBack(_form(tx, visit, known_id, _heading(visit), error)) from error
        return Redirect(f"/workflows/{known_id}", "saved")


def _wanted(visit: Visit, stored: list[dict[str, Any]]) -> WorkflowDefinition:
    if visit.text("as") == "yaml":
        return parse_entry(WorkflowDefinition, visit.raw("yaml"))
    entry = _heading(visit) | {"actions": actions_of(typed_blocks(visit), stored)}
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


def _form(tx: Tx, visit: Visit, known_id: str | None, entry: dict[str, Any], error: Fault | None = None) -> ConsolePage:
    is_yaml = visit.text("as") == "yaml" or visit.query.get("as") == "yaml"
    known = objects.find_object_by_slug(tx, str(entry.get("object", "")))
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
        "blocks": typed_blocks(visit) if error and not is_yaml else blocks_for(entry.get("actions", [])),
    }
    return ConsolePage("workflow_form.html", values | form_values(stored, error), form_status(error))
