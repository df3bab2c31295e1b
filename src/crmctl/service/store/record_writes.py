"""Many record writes at once: checked in Python row by row, then written in a few statements.

A single record and a bulk request work alike. A failed row leaves no trace, so that the others need no savepoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import AttributeType
from crmctl.service.faults import BadRequest, Conflict, Fault, NotFound, shown
from crmctl.service.store import change_log, record_tables
from crmctl.service.store.change_log import LoggedChange
from crmctl.service.store.record_tables import Schema, load_schema
from crmctl.service.store.tx import Ids, Tx, all_in, insert_columns, to_micros
from crmctl.values.attribute_types import TYPES, Family, StoredAttribute
from crmctl.values.projection import EMPTY, Projection, keys_in, project, project_all
from crmctl.values.value_readers import Invalid

MAX_DOCUMENT = 1_000_000
"""Largest data of a record, in bytes of JSON."""

_FEW = 5
"""Rows with the same attributes below which reading them together saves no time."""

Key = tuple[int, str]


class RecordChange(NamedTuple):
    """A row of a request, checked as far as possible without the database. Without `record_id` it creates."""

    record_id: str | None
    data: Json
    projections: dict[str, Projection]


@dataclass(slots=True)
class StoredRecord:
    """A record as this transaction will leave it: `keys` are its unique values by attribute number, `document` its data as JSON."""

    id: str
    created_at: int
    updated_at: int
    data: Json
    keys: dict[int, tuple[str, ...]]
    document: str = ""
    is_new: bool = False
    changed: dict[str, Projection] = field(default_factory=dict)

    def wire(self, object_id: str) -> Json:
        return record_tables.record_wire(object_id, self.id, self.data, self.created_at, self.updated_at)


def check(schema: Schema, data: Any, record_id: str | None, record: StoredRecord | None) -> RecordChange:
    """Check everything that needs no database. Raises BadRequest naming every wrong attribute."""
    if not isinstance(data, dict):
        raise BadRequest("data must be an object", {"field": "data"})
    unknown = [shown(slug) for slug in data if slug not in schema.attributes][:20]
    inactive = [slug for slug in unknown if slug in schema.inactive]
    if inactive:
        raise BadRequest(f"{', '.join(inactive)} is not active and takes no values", {"inactive": inactive})
    if unknown:
        valid = list(schema.attributes)
        raise BadRequest(
            f"unknown attribute {', '.join(unknown)}; the attributes are: {', '.join(valid)}", {"unknown": unknown, "valid": valid}
        )
    problems: dict[str, str] = {}
    projections: dict[str, Projection] = {}
    for slug, value in data.items():
        try:
            projections[slug] = project(allowing(schema.attributes[slug], record.data if record else {}), value)
        except Invalid as error:
            problems[slug] = str(error)
    for attribute in schema.required:
        slug = attribute.slug
        if slug not in problems and (slug in data or record_id is None) and projections.get(slug, EMPTY).column is None:
            problems[slug] = "is required"
    if problems:
        raise BadRequest("; ".join(f"{slug} {problem}" for slug, problem in problems.items()), {"fields": problems})
    return RecordChange(record_id, data, projections)


def allowing(attribute: StoredAttribute, data: Json) -> StoredAttribute:
    """Return the attribute with the retired options that a record with this data holds: it may keep them."""
    if attribute.type != AttributeType.SELECT:
        return attribute
    held = _held(data, attribute.slug)
    retired = [option for option in held if isinstance(option, str) and option not in attribute.option_set]
    return replace(attribute, options=(*attribute.options, *retired)) if retired else attribute


def _held(data: Json, slug: str) -> list[Any]:
    value = data.get(slug)
    return value if isinstance(value, list) else [] if value is None else [value]


def check_all(
    schema: Schema, items: Mapping[int, tuple[Any, str | None]], records: Mapping[str, StoredRecord], failed: dict[int, str]
) -> dict[int, RecordChange]:
    """Return what `check` gives for each of these data and ids; add the errors to `failed`. Rows of a file name the same attributes, which
    are read together; any irregular row goes through `check`."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for index, (data, _) in items.items():
        if isinstance(data, dict):
            alike.setdefault(tuple(data), []).append(index)
    projections: dict[int, dict[str, Projection]] = {}
    for slugs, indexes in alike.items():
        projections |= zip(indexes, _project_alike(schema, slugs, [items[index][0] for index in indexes]), strict=False)
    checked: dict[int, RecordChange] = {}
    for index, (data, record_id) in items.items():
        if known := projections.get(index):
            checked[index] = RecordChange(record_id, data, known)
            continue
        try:
            checked[index] = check(schema, data, record_id, records.get(record_id or ""))
        except Fault as fault:
            failed[index] = fault.message
    return checked


def _project_alike(schema: Schema, slugs: tuple[str, ...], rows: Sequence[Json]) -> Iterator[dict[str, Projection]]:
    """Yield the projections of rows with these attributes, nothing if one is irregular."""
    if len(rows) < _FEW or not all(slug in schema.attributes for slug in slugs):
        return
    try:
        columns = [project_all(schema.attributes[slug], [row[slug] for row in rows]) for slug in slugs]
    except Invalid:
        return
    for projections in zip(*columns, strict=True):
        by_slug = dict(zip(slugs, projections, strict=True))
        is_whole = all(by_slug.get(attribute.slug, EMPTY).column is not None for attribute in schema.required)
        yield by_slug if is_whole else {}


class Writing:
    """Changes of an object's records: prepare with those of a request, apply them one by one, flush once. Raises NotFound."""

    def __init__(self, tx: Tx, object_id: str, *, ids: Ids, now: float) -> None:
        self.schema = load_schema(tx, object_id, tx.dialect.share_object)
        self._tx = tx
        self._ids = ids
        self._now = now
        self._at = to_micros(now)
        self._records: dict[str, StoredRecord] = {}
        self._stored_owners: dict[Key, str] = {}
        self._owners: dict[Key, str | None] = {}
        """Owners of the unique values that this transaction gives to a record or takes from it; `_stored_owners` those that it read."""
        self._deleted: list[str] = []
        self._targets: dict[str, set[str]] = {}
        self._entries: list[LoggedChange] = []
        self._listeners = change_log.listeners(tx)

    def prepare(self, changes: Sequence[RecordChange]) -> None:
        """Read everything besides the loaded records that the changes are checked against, in one query per kind."""
        for attribute in self.schema.unique:
            keys = {key for change in changes for key in change.projections.get(attribute.slug, EMPTY).keys}
            sql = "SELECT key, record_id FROM unique_value WHERE attribute = ? AND key IN {}"
            self._stored_owners |= {(attribute.number, key): owner for key, owner in all_in(self._tx, sql, keys, [attribute.number])}
        for attribute in self.schema.attributes.values():
            if attribute.type == AttributeType.REFERENCE:
                keys = {key for change in changes for key in change.projections.get(attribute.slug, EMPTY).keys}
                existing = record_tables.existing_ids(self._tx, attribute.target_id, keys) if keys else None
                self._targets[attribute.slug] = existing or set()

    def load(self, record_ids: Iterable[str]) -> dict[str, StoredRecord]:
        """Return the existing records of these canonical ids by id, locked for this transaction."""
        unique = self.schema.unique
        columns = "".join(f", {record_tables.column(attribute)}" for attribute in unique)
        sql = f"SELECT id, created_at, updated_at, data{columns} FROM {self.schema.table} WHERE id IN {{}} "
        # In one order, so that two requests for the same records do not deadlock.
        sql += f"ORDER BY id{self._tx.dialect.for_update}"
        for record_id, created_at, updated_at, data, *stored in all_in(self._tx, sql, sorted(set(record_ids))):
            keys = {attribute.number: keys_in(attribute, column) for attribute, column in zip(unique, stored, strict=True)}
            self._stored_owners |= {(number, key): record_id for number, held in keys.items() for key in held}
            values = self.schema.values_in(data)
            document = jsontext.dumps(values) if self.schema.leaving else data
            self._records[record_id] = StoredRecord(record_id, created_at, updated_at, values, keys, document)
        return self._records

    def apply(self, change: RecordChange) -> StoredRecord:
        """Apply a change. Raises NotFound, BadRequest or Conflict, and then has done nothing."""
        record = (
            self._records.get(change.record_id) if change.record_id else StoredRecord(self._ids(), self._at, self._at, {}, {}, is_new=True)
        )
        if record is None:
            raise NotFound(f"there is no record with the id {change.record_id}")
        self._check_references(change, record)
        before = change_log.overwritten(record.data, change.data) if change.record_id else None
        self._take(change, record)
        self._note(change_log.UPDATED if change.record_id else change_log.CREATED, record, before)
        return record

    def put_back(self, change: RecordChange, created_at: int) -> StoredRecord:
        """Make a record hold exactly this again, even if new values are checked more strictly; recreate a missing one. Raises BadRequest or
        Conflict, and then has done nothing."""
        record_id = change.record_id or self._ids()
        current = self._records.get(record_id)
        record = current or StoredRecord(record_id, created_at, self._at, {}, {}, is_new=True)
        cleared = dict.fromkeys(slug for slug in record.data if slug not in change.data)
        restored = RecordChange(record_id, cleared | change.data, dict.fromkeys(cleared, EMPTY) | change.projections)
        before = change_log.overwritten(record.data, restored.data) if current else "{}"
        self._take(restored, record)
        self._note(change_log.UPDATED if current else change_log.CREATED, record, before)
        return record

    def _take(self, change: RecordChange, record: StoredRecord) -> None:
        self._check_unique(change, record)
        merged = record.data | change.data if record.data else change.data
        if None in merged.values():
            merged = {slug: value for slug, value in merged.items() if value is not None}
        document = jsontext.dumps(merged)
        if len(document) > MAX_DOCUMENT // 4 and len(document.encode()) > MAX_DOCUMENT:
            raise BadRequest(f"the data of a record must have at most {MAX_DOCUMENT:,} bytes", {"field": "data"})
        self._take_keys(change, record)
        record.data, record.document = merged, document
        record.updated_at = self._at
        record.changed = record.changed | change.projections if record.changed else change.projections
        self._records[record.id] = record

    def delete(self, record: StoredRecord) -> None:
        del self._records[record.id]
        self._deleted.append(record.id)
        self._owners |= {(number, key): None for number, keys in record.keys.items() for key in keys}
        self._note(change_log.DELETED, record, change_log.whole(record.created_at, record.document))

    def flush(self) -> None:
        tx, schema = self._tx, self.schema
        tx.execute_many(f"DELETE FROM {schema.table} WHERE id = ?", [(record_id,) for record_id in self._deleted])
        moved = sorted(key for key, owner in self._owners.items() if owner != self._stored_owners.get(key))
        tx.execute_many("DELETE FROM unique_value WHERE attribute = ? AND key = ?", [key for key in moved if key in self._stored_owners])
        owned = [(*key, owner) for key in moved if (owner := self._owners[key]) is not None]
        tx.execute_many("INSERT INTO unique_value (attribute, key, record_id) VALUES (?, ?, ?)", owned)
        new = [record for record in self._records.values() if record.is_new]
        self._insert(new)
        for record in self._records.values():
            if record.changed and not record.is_new:
                self._update(record)
        change_log.append(tx, self._listeners, self._entries, ids=self._ids, now=self._now)
        growth = len(new) - len(self._deleted)
        if growth:
            # Last: all writers of the object meet at this row, and so wait for each other only from here to the commit.
            tx.execute_many("UPDATE record_total SET total = total + ? WHERE object_id = ?", [(growth, schema.object_id)])

    def _check_references(self, change: RecordChange, record: StoredRecord) -> None:
        for slug, target_ids in self._targets.items():
            projection = change.projections.get(slug)
            if projection is not None and not target_ids.issuperset(projection.keys):
                held = {str(target).lower() for target in _held(record.data, slug)}  # a repeated value may point at a deleted record
                missing = [key for key in projection.keys if key not in target_ids and key not in held]
                if missing:
                    raise BadRequest(f"{slug} refers to a record that does not exist: {missing[0]}", {"fields": {slug: "does not exist"}})

    def _check_unique(self, change: RecordChange, record: StoredRecord) -> None:
        for attribute in self.schema.unique:
            for key in change.projections.get(attribute.slug, EMPTY).keys:
                place = (attribute.number, key)
                if self._owners.get(place, self._stored_owners.get(place)) not in (None, record.id):
                    raise Conflict(f"{attribute.slug} must be unique, and another record has this value", {"slug": attribute.slug})

    def _take_keys(self, change: RecordChange, record: StoredRecord) -> None:
        for attribute in self.schema.unique:
            projection = change.projections.get(attribute.slug)
            if projection is not None:
                self._owners |= {(attribute.number, key): None for key in record.keys.get(attribute.number, ())}
                self._owners |= {(attribute.number, key): record.id for key in projection.keys}
                record.keys[attribute.number] = projection.keys

    def _insert(self, records: Sequence[StoredRecord]) -> None:
        columns: dict[str, list[Any]] = {
            "id": [record.id for record in records],
            "created_at": [record.created_at for record in records],
            "updated_at": [record.updated_at for record in records],
            "data": [record.document for record in records],
        }
        for attribute in self.schema.every.values():
            values = [record.changed.get(attribute.slug, EMPTY) for record in records]
            columns[record_tables.column(attribute)] = [value.column for value in values]
            # Only texts have a form besides the compared one.
            if TYPES[attribute.type].family is Family.TEXT:
                columns[record_tables.exact_column(attribute)] = [value.exact for value in values]
        insert_columns(self._tx, self.schema.table, columns)

    def _update(self, record: StoredRecord) -> None:
        # Only changed columns: an index whose column is not named costs nothing.
        columns: Json = {"updated_at": record.updated_at, "data": record.document}
        for slug, projection in record.changed.items():
            attribute = self.schema.every[slug]
            columns[record_tables.column(attribute)] = projection.column
            columns[record_tables.exact_column(attribute)] = projection.exact
        assignments = ", ".join(f"{column} = ?" for column in columns)
        self._tx.execute_many(f"UPDATE {self.schema.table} SET {assignments} WHERE id = ?", [(*columns.values(), record.id)])

    def _note(self, event_type: str, record: StoredRecord, before: str | None) -> None:
        payload = None
        if self._listeners.want(event_type):
            # The ids are our own and need no escaping; the document is JSON already.
            head = f'{{"organizationId":"{self._listeners.organisation}","recordId":"{record.id}","objectId":"{self.schema.object_id}"'
            payload = f'{head},"data":{record.document}}}'
        self._entries.append(LoggedChange(event_type, payload, record.id, self.schema.number, before))
