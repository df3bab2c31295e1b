"""Read the mirror for other commands: freshness, keys, references, lists."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, Unpack

from crmctl.bulk_context import BulkContext
from crmctl.client.answers import ListQuery, Page
from crmctl.errors import NotFoundError, RejectedError
from crmctl.files.spills import chunks
from crmctl.mirror.file import ACTIVITIES, MirrorFile, SqlValue, SyncState, fingerprint_of, quoted, storage_errors
from crmctl.mirror.place import mirror_path
from crmctl.mirror.sync import SyncRequest, references_to, sync_mirror
from crmctl.models import jsontext
from crmctl.models.resources import Activity, Attribute, AttributeType, Record
from crmctl.values.conditions import value_test
from crmctl.values.filters import Condition
from crmctl.values.moments import MICROS

MAX_AGE = 3600.0
"""Default for the age in seconds at which a mirror is stale."""


class LocalCopy(ExitStack):
    """An open mirror, for use as a context manager. It shows the last sync of each object, described by `state`."""

    def __init__(self, file: MirrorFile) -> None:
        super().__init__()
        self._file = self.enter_context(file)
        self._db = file.db
        self.path = file.path

    @classmethod
    def find(cls, context: BulkContext) -> Self | None:
        """Open the mirror of the context's service; None if there is none."""
        return cls.at(mirror_path(context.state, context.origin, context.key))

    @classmethod
    def at(cls, path: Path, patience: float = 60.0) -> Self | None:
        """Open the mirror in this file; None if there is none. Raises StorageError, also after `patience` seconds behind a lock."""
        file = MirrorFile.read(path, patience)
        return None if file is None else cls(file)

    def states(self) -> list[SyncState]:
        return [state for state in self._file.states() if state.object_id != ACTIVITIES]

    def state(self, object_id: str) -> SyncState | None:
        """Return an object's state; None if the mirror does not have it."""
        state = self._file.state(object_id)
        return state if state is not None and state.syncs else None

    def attributes(self, object_id: str) -> list[Attribute]:
        rows = self._db.execute("SELECT _data FROM attributes WHERE object_id = ? ORDER BY display_order", (object_id,))
        return [Attribute.parse(jsontext.loads(row[0])) for row in rows]

    def pages(self, object_id: str) -> Iterator[list[Record]]:
        return chunks(_record(wire) for (wire,) in self._rows(f"SELECT _data FROM {self._table(object_id)} ORDER BY _created, _no"))

    def records_by_id(self, object_id: str) -> Iterator[Record]:
        """Yield the records of an object in the order of their ids."""
        return (_record(wire) for (wire,) in self._rows(f"SELECT _data FROM {self._table(object_id)} ORDER BY id"))

    def ids(self, object_id: str) -> set[str]:
        return {record_id for (record_id,) in self._rows(f"SELECT id FROM {self._table(object_id)}")}

    def activities(self) -> Iterator[Activity]:
        return (Activity.parse(jsontext.loads(wire)) for (wire,) in self._rows("SELECT _data FROM activities ORDER BY id"))

    def hold_still(self) -> None:
        """Read as of this moment from now on, whatever a sync does."""
        with storage_errors(self.path):
            if not self._db.in_transaction:
                self._db.execute("BEGIN")

    def numbers(self, object_id: str, sort: str, *, is_descending: bool, admits: Callable[[Record], bool] | None) -> array[int]:
        """Return the row numbers of the records that pass `admits` (None: all), sorted by creation or change."""
        direction = "DESC" if is_descending else "ASC"
        column = {"created_at": "_created", "updated_at": "_updated"}[sort]
        columns = "_no" if admits is None else "_no, _data"
        rows = self._rows(f"SELECT {columns} FROM {self._table(object_id)} ORDER BY {column} {direction}, _no {direction}")
        return array("q", (row[0] for row in rows if admits is None or admits(_record(row[1]))))

    def numbered(self, object_id: str, numbers: Sequence[int]) -> list[Record]:
        marks = ", ".join("?" * len(numbers))
        rows = self._rows(f"SELECT _no, _data FROM {self._table(object_id)} WHERE _no IN ({marks})", numbers)
        records = {number: _record(wire) for number, wire in rows}
        return [records[number] for number in numbers]

    def record(self, object_id: str, record_id: str) -> Record | None:
        rows = self._rows(f"SELECT _data FROM {self._table(object_id)} WHERE id = ?", (record_id,))
        return next((_record(wire) for (wire,) in rows), None)

    def referring_to(self, object_id: str, record_ids: Collection[str]) -> Iterator[tuple[str, Record]]:
        """Yield the records of any object that refer to these records of this object, with their object."""
        with storage_errors(self.path):
            for other, table, column in references_to(self._file, object_id):
                statement = f"SELECT _data FROM {quoted(table)} WHERE {quoted(column)} IN (SELECT value FROM json_each(?))"
                for row in self._db.execute(statement, (jsontext.dumps(list(record_ids)),)).fetchall():
                    yield other, _record(row[0])

    def _rows(self, statement: str, values: Sequence[SqlValue] = ()) -> Iterator[tuple[Any, ...]]:
        with storage_errors(self.path):
            yield from self._db.execute(statement, values)

    def _table(self, object_id: str) -> str:
        state = self.state(object_id)
        if state is None:
            raise KeyError(object_id)
        return quoted(state.table_name)


def fresh_copy(context: BulkContext, objects: Sequence[str], max_age: float) -> LocalCopy | None:
    """Open the mirror if it has all these objects (by id), else return None. Raises what a sync raises.

    Objects older than `max_age` seconds (0: always) are synced first.
    """
    copy = LocalCopy.find(context)
    if copy is None:
        return None
    with copy:
        states = [state for object_id in objects if (state := copy.state(object_id)) is not None]
        if len(states) < len(objects):
            return None
        ages = ((state, context.clock.now() - state.taken / MICROS) for state in states)
        stale = [state.object_id for state, age in ages if not state.proven or not max_age or not 0 <= age <= max_age]
    if stale:
        sync_mirror(context, SyncRequest(stale, activities=False))
    return LocalCopy.find(context)


def _record(wire: str) -> Record:
    return Record.parse(jsontext.loads(wire))


_ID = Attribute(id="", slug="id", type=AttributeType.REFERENCE)

Wanted = tuple[str, tuple[Condition, ...], str, bool]
"""A list: object, conditions, sort field, and whether the latest come first."""


class MirroredLists:
    """Record lists from the mirror, as of one moment. Objects that are not in the mirror raise KeyError: call `state_of` first."""

    def __init__(self, copy: LocalCopy) -> None:
        self._copy = copy
        self._lists: dict[Wanted, array[int]] = {}
        copy.hold_still()

    def state_of(self, object_id: str, attributes: Iterable[Attribute]) -> SyncState | None:
        """Return the state of an object that is proven and complete for exactly these active attributes; else None."""
        state = self._copy.state(object_id)
        if state is None or not state.proven or state.excluded:
            return None
        active = {attribute_id: facts for attribute_id, facts in state.fingerprint.items() if facts[-1]}
        return state if active == fingerprint_of(attributes) else None

    def list_records(self, object_id: str, **query: Unpack[ListQuery]) -> Page[Record]:
        limit, offset = query.get("limit", 50), query.get("offset", 0)
        query_key = (object_id, tuple(query.get("filters", ())), query.get("sort") or "created_at", query.get("order") != "asc")
        if query_key not in self._lists:
            self._lists[query_key] = self._numbers(*query_key)
        numbers = self._lists[query_key]
        return Page(self._copy.numbered(object_id, numbers[offset : offset + limit]), len(numbers), limit, offset)

    search_records = list_records

    def get_record(self, object_id: str, record_id: str) -> Record:
        """Return a record, whatever the case of its id. Raises NotFoundError."""
        for form in (record_id, record_id.lower(), record_id.upper()):
            if (record := self._copy.record(object_id, form)) is not None:
                return record
        raise NotFoundError(f"no record {record_id} in the mirror")

    def _numbers(self, object_id: str, conditions: Sequence[Condition], sort: str, is_descending: bool) -> array[int]:
        attributes = {attribute.slug: attribute for attribute in self._copy.attributes(object_id)} if conditions else {}
        tests = [condition_test(attributes, condition) for condition in conditions]

        def admits(record: Record) -> bool:
            return all(test(record) for test in tests)

        return self._copy.numbers(object_id, sort, is_descending=is_descending, admits=admits if tests else None)


def condition_test(attributes: Mapping[str, Attribute], condition: Condition) -> Callable[[Record], bool]:
    """Return a test of one condition. Raises RejectedError for an attribute the object does not have."""
    slug = condition.slug
    if slug in attributes:
        meets = value_test(attributes[slug], condition.operator, condition.value)
        return lambda record: meets(record.data.get(slug))
    if slug != "id":
        raise RejectedError(f"the mirror has no attribute {slug}", code="unknown_attribute", status=400)
    meets = value_test(_ID, condition.operator, condition.value)
    return lambda record: meets(record.id)
