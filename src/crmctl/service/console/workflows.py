"""Pages of the workflows: list, what one does, enable, run, its runs and what their steps gave."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from crmctl.models import jsontext
from crmctl.service.console.action_words import actions_in_words
from crmctl.service.console.conditions_form import in_words
from crmctl.service.console.pages import ConsolePage, Pages, Redirect, Visit
from crmctl.service.faults import BadRequest, Conflict, NotFound
from crmctl.service.roles import MemberRole
from crmctl.service.store import attributes, workflow_runs, workflows
from crmctl.service.store.timestamps import to_micros, to_wire
from crmctl.service.store.tx import Tx
from crmctl.service.workflows.triggers import start_by_hand, switch

RUNS_PER_PAGE = 25
LATE_SECONDS = 120.0


def add_pages(pages: Pages) -> None:
    """All pages of the workflows."""

    @pages.get("/workflows")
    def list_workflows(tx: Tx, _visit: Visit) -> ConsolePage:
        found = [each | {"outcomes": workflow_runs.recent_outcomes(tx, each["id"])} for each in workflows.list_workflows(tx)]
        return ConsolePage("workflows.html", {"section": "workflows", "workflows": found})

    @pages.get("/workflows/{workflowId:uuid}")
    def show_workflow(tx: Tx, visit: Visit) -> ConsolePage:
        return _workflow(tx, visit)

    @pages.post("/workflows/{workflowId:uuid}/enabled")
    def set_enabled(tx: Tx, visit: Visit) -> Redirect:
        workflow_id, enabled = visit.id("workflowId"), visit.text("enabled") == "true"
        switch(tx, workflow_id, enabled, now=visit.now())
        return Redirect(f"/workflows/{workflow_id}", "enabled" if enabled else "disabled")

    @pages.post("/workflows/{workflowId:uuid}/run", needs=MemberRole.MEMBER)
    def start_run(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
        try:
            start_by_hand(tx, visit.id("workflowId"), _data(visit.text("data")), **visit.stamp())
        except (BadRequest, Conflict) as error:
            return _workflow(tx, visit, error.message)
        return Redirect(f"/workflows/{visit.id('workflowId')}", "run-started")

    @pages.get("/workflows/{workflowId:uuid}/runs/{runId:uuid}")
    def show_run(tx: Tx, visit: Visit) -> ConsolePage:
        workflow = workflows.get_workflow(tx, visit.id("workflowId"))
        run = workflow_runs.get_run(tx, visit.id("runId"))
        if run["workflowId"] != workflow["id"]:
            raise NotFound(f"there is no run with the id {run['id']} of this workflow")
        shown = {"given": jsontext.dumps(run["input"]), "steps": [jsontext.dumps(step) for step in run["steps"]]}
        is_under_way = run["status"] in (workflow_runs.PENDING, workflow_runs.RUNNING)
        return ConsolePage(
            "workflow_run.html", {"section": "workflows", "workflow": workflow, "run": run} | shown, refresh=2 if is_under_way else None
        )


def _workflow(tx: Tx, visit: Visit, error: str | None = None) -> ConsolePage:
    workflow = workflows.get_workflow(tx, visit.id("workflowId"))
    page = visit.number("page", 1)
    runs = workflow_runs.list_runs(tx, workflow["id"], RUNS_PER_PAGE + 1, (page - 1) * RUNS_PER_PAGE)
    due = workflows.load_workflow(tx, workflow["id"]).due_at
    values = {
        "section": "workflows",
        "workflow": workflow,
        "conditions": in_words(workflow["conditions"], _names(tx, workflow)),
        "actions": actions_in_words(tx, visit, workflow["actions"], (workflow["object"] or {}).get("slug") or ""),
        "runs": runs[:RUNS_PER_PAGE],
        "page": page,
        "has_older": len(runs) > RUNS_PER_PAGE,
        "outcomes": workflow_runs.recent_outcomes(tx, workflow["id"]),
        "due_at": None if due is None else to_wire(to_micros(due)),
        "is_late": due is not None and due < visit.now() - LATE_SECONDS,
        "data": visit.text("data"),
        "error": error,
    }
    return ConsolePage("workflow.html", values, HTTPStatus.BAD_REQUEST if error else HTTPStatus.OK)


def _names(tx: Tx, workflow: Mapping[str, Any]) -> dict[str, str]:
    """Of the attributes its conditions may name."""
    known = workflow["object"] and workflow["object"].get("id")
    found = attributes.list_attributes(tx, known, include_inactive=True) if known else []
    return {"title": "Title"} | {each["slug"]: each["name"] for each in found}


def _data(text: str) -> dict[str, Any] | None:
    """What the form brings along for the run; None where it was left empty. Raises BadRequest."""
    if not text:
        return None
    try:
        data = jsontext.loads(text, unique_keys=True)
    except (ValueError, ArithmeticError, RecursionError):
        raise BadRequest("the data is not JSON", {"field": "data"}) from None
    if not isinstance(data, dict):
        raise BadRequest("the data must be a JSON object", {"field": "data"})
    return data
