"""Workflows and their runs (specification 2.8 and 2.9)."""

from __future__ import annotations

from crmctl.models.base import Resource
from crmctl.models.members import Person


class WorkflowObject(Resource):
    id: str | None = None
    plural_name: str | None = None
    slug: str | None = None


class Workflow(Resource):
    id: str
    name: str | None = None
    description: str | None = None
    trigger: str | None = None
    enabled: bool | None = None
    created_at: str | None = None
    object: WorkflowObject | None = None
    created_by: Person | None = None


class WorkflowRun(Resource):
    id: str
    status: str | None = None
    title: str | None = None
    trigger_event: str | None = None
    error: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    created_at: str | None = None


class WorkflowStart(Resource):
    """The 202 answer of Run Workflow: it carries no run id."""

    message: str | None = None
    workflow_id: str | None = None
    workflow_name: str | None = None
