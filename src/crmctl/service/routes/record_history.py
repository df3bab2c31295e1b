"""The history of a record: an addition to the interface, which no client of it needs."""

from __future__ import annotations

from typing import Any, Literal

from crmctl.service.context import Context
from crmctl.service.http import schemas
from crmctl.service.http.endpoints import Call, Endpoints
from crmctl.service.http.parameters import page_parameters
from crmctl.service.routes.records import ONE, READ
from crmctl.service.store.record_history import read_history
from crmctl.service.store.tx import Tx


class Actor(schemas.Shape):
    type: Literal["key", "member", "workflow", "operator"]
    id: schemas.Id = schemas.sometimes()
    name: str = schemas.sometimes()


class HistoryValue(schemas.Shape):
    attribute_slug: str
    old: Any
    new: Any


class Change(schemas.Shape):
    at: schemas.Timestamp
    type: Literal["record.created", "record.updated", "record.deleted"]
    by: Actor | None
    changes: list[HistoryValue]


class RecordHistory(schemas.Shape):
    changes: list[Change]
    pagination: schemas.Pagination
    known_since: schemas.Timestamp = schemas.sometimes()


def router(context: Context) -> Endpoints:
    """One endpoint."""
    api = Endpoints(context, "records")

    @api.add("GET", ONE + "/history", answers=RecordHistory, scope=READ, query=page_parameters(), is_addition=True)
    def get_record_history(tx: Tx, call: Call) -> Any:
        """List the changes of a record, newest first."""
        limit, offset = call.query["limit"], call.query["offset"]
        found = read_history(tx, call.id("objectId"), call.id("recordId"), limit, offset)
        answer = {"changes": found.changes, "pagination": {"total": found.total, "limit": limit, "offset": offset}}
        return answer if found.since is None else answer | {"knownSince": found.since}

    return api
