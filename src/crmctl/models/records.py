"""Records: the data entries of an object, and the shapes of the bulk calls (specification 2.3 and 4.3)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from crmctl.models.base import Resource

BULK_LIMIT = 100
"""Most records, or ids, in one bulk request (specification section 8)."""

PAGE_LIMIT = 100
"""Largest page of any list (specification section 8)."""


class Record(Resource):
    id: str
    object_id: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)
    created_at: str | None = None
    updated_at: str | None = None


class HistoryEntry(Resource):
    """One change of a record, as crmctl's own service tells it."""

    at: str
    type: str
    by: dict[str, Any] | None = None
    changes: list[dict[str, Any]] = Field(default_factory=list)


class Pagination(Resource):
    total: int | None = None
    limit: int | None = None
    offset: int | None = None


class BulkFailure(Resource):
    """One record that a bulk call refused: its zero-based index in the request and why."""

    index: int
    error: str = ""


class BulkResult(Resource):
    created: int = 0
    updated: int = 0
    failed: list[BulkFailure] = Field(default_factory=list)
