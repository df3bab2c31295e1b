"""Reports and their stored runs (specification 2.6 and 2.7)."""

from __future__ import annotations

from crmctl.models.base import Resource
from crmctl.models.members import Person


class Report(Resource):
    id: str
    name: str | None = None
    description: str | None = None
    last_run_at: str | None = None
    created_at: str | None = None
    creator: Person | None = None


class ReportRun(Resource):
    """Results have no specified shape: read them from `wire`."""

    id: str
    status: str | None = None
    result_count: int | None = None
    started_at: str | None = None
    completed_at: str | None = None
    created_at: str | None = None
    error: str | None = None
