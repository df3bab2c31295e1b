"""Workflows and their runs (specification 4.7)."""

from __future__ import annotations

from typing import Any, Literal

from crmctl.service.context import Context
from crmctl.service.http import schemas
from crmctl.service.http.answers import present
from crmctl.service.http.endpoints import Call, Endpoints
from crmctl.service.http.parameters import page_parameters
from crmctl.service.shapes import Body
from crmctl.service.store import workflow_runs, workflows
from crmctl.service.store.tx import Tx
from crmctl.service.workflows.triggers import start_by_hand

ONE = "/workflows/{workflowId:uuid}"
READ, RUN = "workflows:read", "workflows:run"


class Workflow(schemas.Shape):
    id: schemas.Id
    name: str
    description: str
    trigger: str
    enabled: bool
    created_at: schemas.Timestamp
    object: schemas.NamedObject = schemas.sometimes()
    created_by: schemas.Person


class WorkflowWithDefinition(Workflow):
    """`cron` and `timezone` are there when the trigger is a schedule."""

    conditions: list[dict[str, Any]]
    actions: list[dict[str, Any]]
    cron: str = schemas.sometimes()
    timezone: str = schemas.sometimes()


class WorkflowList(schemas.Shape):
    workflows: list[Workflow]


class WorkflowRunStart(Body):
    """`data` stands in for a record's data; a `recordId` in it makes the run about that record."""

    data: dict[str, Any] | None = None


class WorkflowRunStarted(schemas.Shape):
    message: str
    workflow_id: schemas.Id
    workflow_name: str


class WorkflowRun(schemas.Shape):
    id: schemas.Id
    status: Literal["pending", "running", "completed", "failed", "skipped"]
    title: str
    trigger_event: str
    error: str | None
    started_at: schemas.Timestamp = schemas.sometimes()
    completed_at: schemas.Timestamp = schemas.sometimes()
    created_at: schemas.Timestamp


class WorkflowRunList(schemas.Shape):
    runs: list[WorkflowRun]


def router(context: Context) -> Endpoints:
    """The four endpoints of workflows."""
    api = Endpoints(context, "workflows")

    @api.add("GET", "/workflows", answers=WorkflowList, scope=READ)
    def list_workflows(tx: Tx, _: Call) -> Any:
        """List workflows, oldest first."""
        return {"workflows": [_shown(workflow) for workflow in workflows.list_workflows(tx)]}

    @api.add("GET", ONE, answers=WorkflowWithDefinition, scope=READ)
    def get_workflow(tx: Tx, call: Call) -> Any:
        """Get a workflow with its conditions and actions."""
        return _shown(workflows.get_workflow(tx, call.id("workflowId")))

    @api.add(
        "POST", ONE + "/run", answers=WorkflowRunStarted, scope=RUN, status=202, body=WorkflowRunStart, optional_body=True, conflicts=True
    )
    def start_workflow_run(tx: Tx, call: Call) -> Any:
        """Start a run of an enabled workflow; it is executed after this answer."""
        workflow = start_by_hand(tx, call.id("workflowId"), call.body.get("data"), **call.stamp())
        return {"message": "Workflow run started", "workflowId": workflow.id, "workflowName": workflow.name}

    @api.add("GET", ONE + "/runs", answers=WorkflowRunList, scope=READ, query=page_parameters(20))
    def list_workflow_runs(tx: Tx, call: Call) -> Any:
        """List the runs of a workflow, newest first."""
        runs = workflow_runs.list_runs(tx, call.id("workflowId"), call.query["limit"], call.query["offset"])
        return {"runs": [present(run, "startedAt", "completedAt") for run in runs]}

    return api


def _shown(workflow: dict[str, Any]) -> dict[str, Any]:
    """Without an object where there is none, or where it has been deleted and has no name any more."""
    known = workflow["object"]
    return present(workflow | {"object": known if known and known["pluralName"] is not None else None}, "object")
