"""Records of an object, one by one and in bulk (specification 4.3)."""

from __future__ import annotations

from typing import Any

from crmctl.models.filters import VALUELESS, Condition
from crmctl.service.context import Context
from crmctl.service.http import schemas
from crmctl.service.http.endpoints import Call, Endpoints
from crmctl.service.http.parameters import ORDER, SORT, Filters, page_parameters
from crmctl.service.store import records
from crmctl.service.store.tx import Tx
from crmctl.service.values.conditions import read_condition

MANY = "/objects/{objectId:uuid}/records"
ONE = MANY + "/{recordId:uuid}"
BULK = MANY + "/bulk"
READ, WRITE = "records:read", "records:write"


def router(context: Context) -> Endpoints:
    """The eight endpoints of records."""
    api = Endpoints(context, "records")

    @api.add("GET", MANY, answers=schemas.RecordList, scope=READ, query=[*page_parameters(), SORT, ORDER], filters=Filters())
    def list_records(tx: Tx, call: Call) -> Any:
        """List records, newest first."""
        return _page(tx, call, call.query)

    @api.add("POST", MANY + "/search", answers=schemas.RecordList, scope=READ, body=schemas.RecordSearch, optional_body=True, writes=False)
    def search_records(tx: Tx, call: Call) -> Any:
        """List records by a search body."""
        sort = call.body.get("sort") or {}
        return _page(tx, call, {**call.body, "sort": sort.get("field"), "order": sort.get("order")})

    @api.add("GET", ONE, answers=schemas.Record, scope=READ, is_versioned=True)
    def get_record(tx: Tx, call: Call) -> Any:
        """Get a record."""
        return records.get_record(tx, call.id("objectId"), call.id("recordId"))

    @api.add("POST", MANY, answers=schemas.Record, scope=WRITE, status=201, body=schemas.RecordWrite, conflicts=True, is_versioned=True)
    def create_record(tx: Tx, call: Call) -> Any:
        """Create a record."""
        return records.create_record(tx, call.id("objectId"), call.body["data"], **call.stamp())

    @api.add("PATCH", ONE, answers=schemas.Record, scope=WRITE, body=schemas.RecordWrite, conflicts=True, is_versioned=True)
    def update_record(tx: Tx, call: Call) -> Any:
        """Merge values into a record; null clears one."""
        return records.update_record(tx, call.id("objectId"), call.id("recordId"), call.body["data"], call.only_if, **call.stamp())

    @api.add("DELETE", ONE, answers=schemas.Deleted, scope=WRITE, is_versioned=True)
    def delete_record(tx: Tx, call: Call) -> Any:
        """Delete a record."""
        records.delete_record(tx, call.id("objectId"), call.id("recordId"), call.only_if, **call.stamp())
        return {"deleted": True}

    @api.add("POST", BULK, answers=schemas.BulkResult, scope=WRITE, body=schemas.BulkWrite)
    def bulk_write(tx: Tx, call: Call) -> Any:
        """Create or upsert up to 100 records; those that fail are listed, the others are written."""
        return records.bulk_write(tx, call.id("objectId"), call.body.get("mode", "create"), call.body["records"], **call.stamp())

    @api.add("DELETE", BULK, answers=schemas.DeletedCount, scope=WRITE, body=schemas.BulkDelete)
    def bulk_delete(tx: Tx, call: Call) -> Any:
        """Delete up to 100 records; ids that are not there are not counted."""
        return {"deleted": records.bulk_delete(tx, call.id("objectId"), call.body["ids"], **call.stamp())}

    return api


def _page(tx: Tx, call: Call, wanted: dict[str, Any]) -> Any:
    sorting = (wanted.get("sort") or SORT.default, wanted.get("order") or ORDER.default)
    page = records.Paging(*sorting, wanted.get("limit", 50), wanted.get("offset", 0))
    conditions = [_condition(one) for one in wanted.get("filters", ())]
    found, total = records.list_records(tx, call.id("objectId"), conditions, page)
    return {"records": found, "pagination": {"total": total, "limit": page.limit, "offset": page.offset}}


def _condition(wanted: dict[str, Any]) -> Condition:
    """`value` may be left out where an operator takes none."""
    default = "true" if wanted["operator"] in VALUELESS else None
    return read_condition(wanted["attributeSlug"], wanted["operator"], wanted.get("value", default))
