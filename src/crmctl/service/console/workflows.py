"""Pages of workflows: definition and runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.console.conditions_form import definitions_of, in_words, operators_for, refuse_unfinished, rows_from, rows_of
from crmctl.service.console.noun_pages import form_status, form_values, refuse_if_saved_meanwhile
from crmctl.service.console.pages import LARGE_FORM, Pages
from crmctl.service.console.visits import ConsolePage, Outcome, Redirect, TurnedBack, Visit
from crmctl.service.console.workflow_actions import (
    PLAIN,
    TYPES,
    WITH_DATA,
    ActionBlock,
    actions_in_words,
    actions_of,
    blocks_for,
    in_form_words,
    pressed,
    typed_blocks,
)
from crmctl.service.definitions.definitions_file import format_document, parse_entry, refuse_taken_name, store_workflow, workflow_entry
from crmctl.service.faults import BadRequest, Conflict, Fault, NotFound, check_shape
from crmctl.service.roles import MemberRole
from crmctl.service.store import attributes, objects, workflow_runs, workflows
from crmctl.service.store.tx import Tx, to_micros, to_wire
from crmctl.service.workflows.run_executor import start_by_hand
from crmctl.service.workflows.workflow_definition import Trigger, WorkflowDefinition

RUNS_PER_PAGE = 25
LATE_SECONDS = 120.0


def add_pages(pages: Pages) -> None:
    """Register the pages of one workflow, its form and its runs."""
    _add_create(pages)
    _add_change(pages)

    @pages.get("/workflows/{id:uuid}/runs/{runId:uuid}")
    def show_run(tx: Tx, visit: Visit) -> ConsolePage:
        workflow = workflows.get_workflow(tx, visit.id("id"))
        run = workflow_runs.get_run(tx, visit.id("runId"))
        if run["workflowId"] != workflow["id"]:
            raise NotFound(f"there is no run with the id {run['id']} of this workflow")
        shown = {"given": jsontext.dumps(run["input"]), "steps": [jsontext.dumps(step) for step in run["steps"]]}
        is_under_way = run["status"] in (workflow_runs.PENDING, workflow_runs.RUNNING)
        return ConsolePage(
            "workflow_run.html", {"section": "workflows", "workflow": workflow, "run": run} | shown, refresh=2 if is_under_way else None
        )


def page_values(tx: Tx, visit: Visit, workflow: Json) -> Json:
    page = visit.number("page", 1)
    runs = workflow_runs.list_runs(tx, workflow["id"], RUNS_PER_PAGE + 1, (page - 1) * RUNS_PER_PAGE)
    due = workflows.load_workflow(tx, workflow["id"]).due_at
    return {
        "conditions": in_words(workflow["conditions"], _names(tx, workflow)),
        "steps": actions_in_words(tx, visit, workflow["actions"], (workflow["object"] or {}).get("slug") or ""),
        "runs": runs[:RUNS_PER_PAGE],
        "page": page,
        "has_older": len(runs) > RUNS_PER_PAGE,
        "outcomes": workflow_runs.recent_outcomes(tx, workflow["id"]),
        "due_at": None if due is None else to_wire(to_micros(due)),
        "is_late": due is not None and due < visit.now() - LATE_SECONDS,
        "data": visit.text("data"),
    }


def start_run(tx: Tx, visit: Visit, workflow: Json) -> Outcome | Json:
    try:
        start_by_hand(tx, workflow["id"], _data(visit.text("data")), **visit.stamp())
    except (BadRequest, Conflict) as error:
        return {"error": error.message}
    return Redirect(f"/workflows/{workflow['id']}", "run-started")


def _names(tx: Tx, workflow: Mapping[str, Any]) -> dict[str, str]:
    """Of the attributes its conditions may name."""
    known = workflow["object"] and workflow["object"].get("id")
    found = attributes.list_attributes(tx, known, include_inactive=True) if known else []
    return {"title": "Title"} | {each["slug"]: each["name"] for each in found}


def _data(text: str) -> Json | None:
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
    @pages.get("/workflows/{id:uuid}/edit", needs=MemberRole.ADMIN)
    def edit_workflow(tx: Tx, visit: Visit) -> ConsolePage:
        return _form(tx, visit, visit.id("id"), workflow_entry(tx, visit.id("id")))

    @pages.post("/workflows/{id:uuid}/edit", form_limit=LARGE_FORM)
    def change_workflow(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
        stored = workflow_entry(tx, visit.id("id"))
        known_id = visit.id("id")
        if again := _again(tx, visit, known_id):
            return again
        try:
            refuse_if_saved_meanwhile(tx, visit, stored, stored["name"])
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


def _heading(visit: Visit) -> Json:
    """The definition that the form says, without its actions."""
    entry: Json = {"name": visit.text("name"), "trigger": visit.text("trigger"), "enabled": "enabled" in visit.form}
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
    entry: Json,
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
        "operators": operators_for,
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
