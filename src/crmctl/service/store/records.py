"""Records: read one, write one, write a hundred. Lists are in listing; what a write checks and stores is in writing."""
# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Unpack

from crmctl.models import jsontext
from crmctl.models.records import BULK_LIMIT
from crmctl.service.faults import BadRequest, Fault, NotFound, PreconditionFailed
from crmctl.service.store.record_pages import Paging, PartOfList, count_records, list_part, list_records
from crmctl.service.store.record_writes import RecordChange, StoredRecord, Writing, check, check_all
from crmctl.service.store.schema import Schema, load_schema
from crmctl.service.store.stamp import Stamp
from crmctl.service.store.timestamps import to_wire
from crmctl.service.store.tx import Tx
from crmctl.service.values.choices import canonical_uuid

__all__ = [
    "Paging",
    "PartOfList",
    "bulk_delete",
    "bulk_write",
    "count_records",
    "create_record",
    "delete_record",
    "get_record",
    "list_part",
    "list_records",
    "update_record",
    "version_of",
]

CREATE, UPSERT = "create", "upsert"

ANY_VERSION = "*"

Ids = Callable[[], str]


def get_record(tx: Tx, object_id: str, record_id: str) -> dict[str, Any]:
    """Raises NotFound for the object or the record."""
    schema = load_schema(tx, object_id)
    row = tx.one(f"SELECT id, data, created_at, updated_at FROM {schema.table} WHERE id = ?", (canonical_uuid(record_id) or "",))
    if row is None:
        raise _no_record(record_id)
    known_id, data, created_at, updated_at = row
    wire = {"id": known_id, "objectId": schema.object_id, "data": schema.values_in(data)}
    return wire | {"createdAt": to_wire(created_at), "updatedAt": to_wire(updated_at)}


def version_of(record: Mapping[str, Any]) -> str:
    """Of a record in wire form: opaque, and another one after every change."""
    seen = jsontext.dumps([record["id"], record["updatedAt"], record["data"]])
    return hashlib.blake2b(seen.encode(), digest_size=12).hexdigest()


def create_record(tx: Tx, object_id: str, data: Any, **stamp: Unpack[Stamp]) -> dict[str, Any]:
    """Raises NotFound for the object, BadRequest naming every wrong attribute, Conflict (details: slug) for a unique value in use."""
    return _write_one(tx, object_id, None, data, **stamp)


def update_record(
    tx: Tx, object_id: str, record_id: str, data: Any, only_if: Collection[str] = (ANY_VERSION,), **stamp: Unpack[Stamp]
) -> dict[str, Any]:
    """Merges `data` into the record, attribute by attribute; null clears.

    `only_if` are the versions it may have. Raises as create_record, NotFound for the record, PreconditionFailed for another version.
    """
    return _write_one(tx, object_id, record_id, data, only_if, **stamp)


def delete_record(tx: Tx, object_id: str, record_id: str, only_if: Collection[str] = (ANY_VERSION,), **stamp: Unpack[Stamp]) -> None:
    """References to the record stay as they are. Raises NotFound, PreconditionFailed when its version is none of `only_if`."""
    schema = load_schema(tx, object_id, tx.dialect.share_object)
    writing = Writing(tx, schema, **stamp)
    record = _loaded(writing, schema, record_id, only_if)
    writing.delete(record)
    writing.flush()


def bulk_write(tx: Tx, object_id: str, mode: str, items: Any, **stamp: Unpack[Stamp]) -> dict[str, Any]:
    """Create, or update the items that have an id (`upsert`). A bad item fails alone; later items see what earlier ones did.

    Returns `{created, updated, failed: [{index, error}]}`. Raises NotFound for the object, BadRequest for the request as a whole.
    """
    if mode not in (CREATE, UPSERT):
        raise BadRequest("mode must be one of: create, upsert", {"field": "mode", "valid": [CREATE, UPSERT]})
    _require_batch(items, "records")
    schema = load_schema(tx, object_id, tx.dialect.share_object)
    failed: dict[int, str] = {}
    read: dict[int, tuple[Any, str | None]] = {}
    for index, item in enumerate(items):
        try:
            read[index] = _read_item(item, mode)
        except Fault as fault:
            failed[index] = fault.message
    changes: dict[int, RecordChange] = {}
    for index, checked in zip(read, check_all(schema, list(read.values())), strict=True):
        if isinstance(checked, Fault):
            failed[index] = checked.message
        else:
            changes[index] = checked
    writing = Writing(tx, schema, **stamp)
    writing.prepare(list(changes.values()))
    counts = {"created": 0, "updated": 0}
    for index, change in changes.items():
        try:
            writing.apply(change)
        except Fault as fault:
            failed[index] = fault.message
        else:
            counts["updated" if change.record_id else "created"] += 1
    writing.flush()
    return counts | {"failed": [{"index": index, "error": failed[index]} for index in sorted(failed)]}


def bulk_delete(tx: Tx, object_id: str, record_ids: Any, **stamp: Unpack[Stamp]) -> int:
    """How many were there to be deleted; unknown ids do nothing. Raises NotFound for the object, BadRequest."""
    _require_batch(record_ids, "ids")
    if not all(isinstance(record_id, str) for record_id in record_ids):
        raise BadRequest("ids must be an array of record ids (UUIDs)", {"field": "ids"})
    schema = load_schema(tx, object_id, tx.dialect.share_object)
    writing = Writing(tx, schema, **stamp)
    known = (canonical_uuid(record_id) for record_id in record_ids)
    found = list(writing.load(record_id for record_id in known if record_id).values())
    for record in found:
        writing.delete(record)
    writing.flush()
    return len(found)


def _write_one(
    tx: Tx, object_id: str, record_id: str | None, data: Any, only_if: Collection[str] = (ANY_VERSION,), **stamp: Unpack[Stamp]
) -> dict[str, Any]:
    schema = load_schema(tx, object_id, tx.dialect.share_object)
    writing = Writing(tx, schema, **stamp)
    known_id = None if record_id is None else _loaded(writing, schema, record_id, only_if).id
    change = check(schema, data, known_id)
    writing.prepare([change])
    record = writing.apply(change)
    writing.flush()
    return record.wire(schema.object_id)


def _loaded(writing: Writing, schema: Schema, record_id: str, only_if: Collection[str]) -> StoredRecord:
    """The record, locked. Raises NotFound, PreconditionFailed."""
    known_id = canonical_uuid(record_id)
    found = writing.load([known_id]).get(known_id) if known_id else None
    if found is None:
        raise _no_record(record_id)
    if ANY_VERSION not in only_if and version_of(found.wire(schema.object_id)) not in only_if:
        raise PreconditionFailed("the record was changed since it was read; read it again, and then decide")
    return found


def _read_item(item: Any, mode: str) -> tuple[Any, str | None]:
    """The data and, for an update, the canonical id of one item of a bulk request."""
    if not isinstance(item, dict):
        raise BadRequest("a record must be an object with data")
    given_id = item.get("id") if mode == UPSERT else None
    if given_id is None:
        return item.get("data"), None
    record_id = canonical_uuid(given_id)
    if record_id is None:
        raise BadRequest("id must be the id (UUID) of a record")
    return item.get("data"), record_id


def _require_batch(items: Any, field: str) -> None:
    if not isinstance(items, Sequence) or isinstance(items, str):
        raise BadRequest(f"{field} must be an array", {"field": field})
    if len(items) > BULK_LIMIT:
        raise BadRequest(f"{field} must have at most {BULK_LIMIT} entries", {"field": field, "limit": BULK_LIMIT})


def _no_record(record_id: str) -> NotFound:
    return NotFound(f"there is no record with the id {record_id}")
