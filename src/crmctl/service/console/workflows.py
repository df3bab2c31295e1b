"""Pages of workflows: definition and runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.console.conditions_form import definition_values, definitions_of, in_words, refuse_unfinished, rows_of
from crmctl.service.console.pages import Pages
from crmctl.service.console.visits import ConsolePage, Outcome, Redirect, Visit
from crmctl.service.console.workflow_actions import (
    PLAIN,
    TYPES,
    WITH_DATA,
    actions_in_words,
    actions_of,
    blocks_for,
    in_form_words,
    pressed,
    typed_blocks,
)
from crmctl.service.definitions.definitions_file import parse_entry, refuse_taken_name, store_workflow
from crmctl.service.faults import BadRequest, NotFound, check_shape
from crmctl.service.store import attributes, workflow_runs, workflows
from crmctl.service.store.tx import Tx, to_micros, to_wire
from crmctl.service.workflows.run_executor import start_by_hand, switch
from crmctl.service.workflows.workflow_definition import Trigger, WorkflowDefinition

RUNS_PER_PAGE = 25
LATE_SECONDS = 120.0


def add_pages(pages: Pages) -> None:
    @pages.get("/workflows/{id:uuid}/runs/{runId:uuid}")
    def show_run(tx: Tx, visit: Visit) -> ConsolePage:
        workflow = workflows.get_workflow(tx, visit.id("id"))
        run = workflow_runs.get_run(tx, visit.id("runId"))
        if run["workflowId"] != workflow["id"]:
            raise NotFound(f"there is no run with the id {run['id']} of this workflow")
        shown = {"given": jsontext.dumps(run["input"]), "steps": [jsontext.dumps(step) for step in run["steps"]]}
        is_under_way = run["status"] in (workflow_runs.PENDING, workflow_runs.RUNNING)
        return ConsolePage("workflow_run.html", {"workflow": workflow, "run": run} | shown, refresh=2 if is_under_way else None)


def page_values(tx: Tx, visit: Visit, workflow: Json) -> Json:
    due = workflows.load_workflow(tx, workflow["id"]).due_at
    return {
        "conditions": in_words(workflow["conditions"], _names(tx, workflow)),
        "steps": actions_in_words(tx, visit, workflow["actions"], (workflow["object"] or {}).get("slug") or ""),
        **visit.part(lambda limit, offset: workflow_runs.list_runs(tx, workflow["id"], limit, offset), RUNS_PER_PAGE),
        "outcomes": workflow_runs.recent_outcomes(tx, workflow["id"]),
        "due_at": None if due is None else to_wire(to_micros(due)),
        "is_late": due is not None and due < visit.now() - LATE_SECONDS,
        "data": visit.text("data"),
    }


def start_run(tx: Tx, visit: Visit, workflow: Json) -> Outcome:
    start_by_hand(tx, workflow["id"], _data(visit.text("data")), **visit.stamp())
    return Redirect(f"/workflows/{workflow['id']}", "run-started")


def switch_on(tx: Tx, visit: Visit, workflow: Json, is_on: bool) -> None:
    switch(tx, workflow["id"], is_on, now=visit.now())


def _names(tx: Tx, workflow: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return name and type of the attributes its conditions may name."""
    known = workflow["object"] and workflow["object"].get("id")
    found = attributes.list_attributes(tx, known, include_inactive=True) if known else []
    return {"title": ("Title", "text")} | {each["slug"]: (each["name"], each["type"]) for each in found}


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
    workflow_id = next(each["id"] for each in workflows.list_workflows(tx) if each["name"] == definition.name)
    return Redirect(f"/workflows/{workflow_id}", "saved" if workflow else "workflow-created")


def pressed_values(tx: Tx, visit: Visit) -> Json | None:
    """Return the form's values after a button that adds, moves or removes."""
    changed = pressed(tx, visit, visit.text("object")) if visit.text("as") != "yaml" else None
    return {"blocks": changed[0], "focus": changed[1]} if changed else None


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
    for name in ("description", "object", "cron", "timezone"):
        if visit.text(name):
            entry[name] = visit.text(name)
    if conditions := definitions_of(tx, visit):
        entry["conditions"] = conditions
    return entry


def form_values(tx: Tx, visit: Visit, stored: Json, is_sent: bool) -> Json:
    first = visit.query.get("object", visit.objects[0]["slug"] if visit.objects else "")
    fresh: Json = {"name": "", "trigger": "record/created", "enabled": False, "actions": []} | ({"object": first} if first else {})
    entry = _heading(tx, visit) if is_sent else stored or fresh
    about = str(entry.get("object", ""))
    return definition_values(tx, visit, entry, "conditions") | {
        "entry": {"object": "", "cron": "", "timezone": "", **entry},
        "triggers": get_args(Trigger),
        "types": TYPES,
        "plain": PLAIN,
        "with_data": WITH_DATA,
        "blocks": typed_blocks(tx, visit, about) if is_sent else blocks_for(tx, entry.get("actions", []), about),
        "focus": "",
        "targets": visit.slugs,
    }
