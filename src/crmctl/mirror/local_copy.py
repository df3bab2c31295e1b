"""What others ask a mirror: is there one, how old is it, what refers to them. Reads only, and sends nothing
but for a sync that was asked for."""
# ruff: noqa: S608 - names in statements are quoted, values are parameters

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from crmctl.bulk.context import BulkContext
from crmctl.mirror.columns import quoted
from crmctl.mirror.file import ACTIVITIES, MirrorFile, SyncState, storage_errors
from crmctl.mirror.place import mirror_path
from crmctl.mirror.sync import SyncReport, SyncRequest, references_to, sync_mirror
from crmctl.models import jsontext
from crmctl.models.attributes import Attribute
from crmctl.models.records import Record
from crmctl.models.timestamps import MICROS

MAX_AGE = 3600.0
"""Seconds a mirror may be old where nobody says otherwise."""

CHUNK = 500

Admits = Callable[[Record], bool]


class Referring(NamedTuple):
    """A record that refers to another one, the object it is of, and the attribute it does so by."""

    object_id: str
    slug: str
    record: Record


class LocalCopy:
    """An open mirror. Use as a context manager; what it says is of the last sync of each object, which `state` knows."""

    def __init__(self, file: MirrorFile) -> None:
        self._file = file
        self._db = file.db
        self.path = file.path

    @classmethod
    def find(cls, context: BulkContext) -> Self | None:
        """The mirror of the context's service, None where there is none."""
        return cls.at(mirror_path(context.state, context.profile, context.origin))

    @classmethod
    def at(cls, path: Path, patience: float = 60.0) -> Self | None:
        """The mirror in this file, None where there is none. Raises StorageError, also where it is locked for longer than `patience`."""
        file = MirrorFile.read(path, patience)
        return None if file is None else cls(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    # -- what is in it ---------------------------------------------------------------------------------------------------------------

    def states(self) -> list[SyncState]:
        """Of every object in it."""
        return [state for state in self._file.states() if state.object_id != ACTIVITIES]

    def state(self, object_id: str) -> SyncState | None:
        """What is known of an object: `as_of` (microseconds of the service), `proven`, `records`, `excluded`; None where there is none."""
        state = self._file.state(object_id)
        return state if state is not None and state.syncs else None

    def is_fresh(self, object_id: str, now: float, max_age: float = MAX_AGE) -> bool:
        """Whether an object is in it, proven, and at most so many seconds old."""
        state = self.state(object_id)
        return state is not None and state.proven and 0 <= now - state.taken / MICROS <= max_age

    def holds(self, object_id: str, slugs: Iterable[str]) -> bool:
        """Whether the object is in it with the values of all these attributes."""
        state = self.state(object_id)
        return state is not None and not set(slugs) & set(state.excluded)

    def attributes(self, object_id: str) -> list[Attribute]:
        """As they were at the last sync."""
        rows = self._db.execute("SELECT _data FROM attributes WHERE object_id = ? ORDER BY display_order", (object_id,))
        return [Attribute.parse(jsontext.loads(row[0])) for row in rows]

    # -- records ---------------------------------------------------------------------------------------------------------------------

    def pages(self, object_id: str) -> Iterator[list[Record]]:
        """All records of an object, oldest first."""
        with storage_errors(self.path):
            cursor = self._db.execute(f"SELECT _data FROM {self._table(object_id)} ORDER BY _created, _no")
            while rows := cursor.fetchmany(CHUNK):
                yield [_record(row[0]) for row in rows]

    def hold_still(self) -> None:
        """From here on all that is read is of one moment, whatever a sync does meanwhile."""
        with storage_errors(self.path):
            self._db.execute("BEGIN")

    def numbers(self, object_id: str, sort: str, *, is_descending: bool, admits: Admits | None = None) -> array[int]:
        """The rows of the records that `admits` lets in (None: all), in order of their creation or change."""
        direction = "DESC" if is_descending else "ASC"
        column = {"created_at": "_created", "updated_at": "_updated"}[sort]
        what = "_no" if admits is None else "_no, _data"
        with storage_errors(self.path):
            rows = self._db.execute(f"SELECT {what} FROM {self._table(object_id)} ORDER BY {column} {direction}, _no {direction}")
            return array("q", (row[0] for row in rows if admits is None or admits(_record(row[1]))))

    def numbered(self, object_id: str, numbers: Sequence[int]) -> list[Record]:
        """The records of a few rows."""
        marks = ", ".join("?" * len(numbers))
        with storage_errors(self.path):
            rows = self._db.execute(f"SELECT _no, _data FROM {self._table(object_id)} WHERE _no IN ({marks})", numbers)
            found = {number: _record(wire) for number, wire in rows}
        return [found[number] for number in numbers]

    def record(self, object_id: str, record_id: str) -> Record | None:
        with storage_errors(self.path):
            row = self._db.execute(f"SELECT _data FROM {self._table(object_id)} WHERE id = ?", (record_id,)).fetchone()
        return None if row is None else _record(row[0])

    def ids_with_capitals(self, object_id: str) -> list[str]:
        """The ids that are not in lower case."""
        with storage_errors(self.path):
            return [row[0] for row in self._db.execute(f"SELECT id FROM {self._table(object_id)} WHERE id <> lower(id)")]

    def referring_to(self, object_id: str, record_ids: Collection[str]) -> Iterator[Referring]:
        """The records of any object in the mirror that refer to these records of this object."""
        with storage_errors(self.path):
            self._db.execute("CREATE TEMP TABLE IF NOT EXISTS _referred (id TEXT PRIMARY KEY) WITHOUT ROWID")
            for other, table, column in references_to(self._file, object_id):
                self._db.execute("DELETE FROM temp._referred")
                self._db.executemany("INSERT OR IGNORE INTO temp._referred VALUES (?)", ((each,) for each in record_ids))
                statement = f"SELECT _data FROM {quoted(table)} WHERE {quoted(column)} IN (SELECT id FROM temp._referred)"
                for row in self._db.execute(statement).fetchall():
                    yield Referring(other, column, _record(row[0]))

    def _table(self, object_id: str) -> str:
        state = self.state(object_id)
        if state is None:
            raise KeyError(object_id)
        return quoted(state.table_name)


def fresh_copy(context: BulkContext, objects: Sequence[str], max_age: float | None = MAX_AGE) -> tuple[LocalCopy, SyncReport | None] | None:
    """The mirror where it has all these objects (by id), brought up to date first where one is older than `max_age`, by this machine's
    clock (0: always; None: never). With the sync's report, None where none was needed. None altogether where there is no such mirror.

    Raises what a sync raises.
    """
    copy = LocalCopy.find(context)
    if copy is None:
        return None
    with copy:
        if not all(copy.state(each) is not None for each in objects):
            return None
        now = context.clock.now()
        stale = [each for each in objects if max_age is not None and (max_age <= 0 or not copy.is_fresh(each, now, max_age))]
    report = sync_mirror(context, SyncRequest(stale, activities=False)) if stale else None
    again = LocalCopy.find(context)
    return None if again is None else (again, report)


def _record(wire: str) -> Record:
    return Record.parse(jsontext.loads(wire))
