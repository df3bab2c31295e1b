"""The whole mirror brought up to date: which objects, their tables and attributes, members, and what deletions mean to other objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crmctl.bulk.context import BulkContext
from crmctl.errors import DeniedError, NotFoundError, UsageError
from crmctl.mirror.activity_sync import sync_activities
from crmctl.mirror.changes import CannotProve, most_asked_for
from crmctl.mirror.columns import can_be_named, quoted
from crmctl.mirror.file import ACTIVITIES, FIXED_TABLES, MirrorFile, SyncState, remove_mirror
from crmctl.mirror.noun_tables import write_attributes, write_members, write_objects
from crmctl.mirror.object_sync import JustRead, ObjectResult, ObjectSync, SyncPlan
from crmctl.mirror.object_table import ObjectTable
from crmctl.mirror.place import mirror_path
from crmctl.mirror.turn import WAIT_SECONDS, writing_turn
from crmctl.models import jsontext
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.nearest import suggestion
from crmctl.models.objects import Object
from crmctl.models.timestamps import to_timestamp

SAMPLE = 10
"""So many of the records that refer to what is not there are read again where they are too many."""


@dataclass(frozen=True)
class SyncRequest:
    """`objects` by slug or id: those the mirror has, at first all, where none is named. `activities` None: where the mirror has them.
    `excluded` holds attributes by object; it is remembered. `full`: read everything anew. `patience`: most seconds to wait for others.
    `just_read` is by the object's id: it is not read again."""

    objects: Sequence[str] = ()
    activities: bool | None = None
    full: bool = False
    excluded: Mapping[str, Sequence[str]] = field(default_factory=dict)
    patience: float = WAIT_SECONDS
    just_read: Mapping[str, JustRead] = field(default_factory=dict)


@dataclass
class SyncReport:
    """What a sync did, by object. `requests` counts all of them, those about the schema too; `gone`: objects that are there no more."""

    results: list[ObjectResult] = field(default_factory=list)
    requests: int = 0
    gone: list[str] = field(default_factory=list)
    path: Path = Path()

    @property
    def is_proven(self) -> bool:
        return all(result.state.proven for result in self.results)


def sync_mirror(context: BulkContext, request: SyncRequest) -> SyncReport:
    """Make the mirror of the context's service, or bring it up to date. Raises UsageError for objects and attributes that are not there,
    PendingError when another sync takes too long, and what requests raise; what was synced before that stays."""
    path = mirror_path(context.state, context.profile, context.origin)
    with writing_turn(path, context.clock, context.listener.note, request.patience):
        is_new = not path.exists() or not path.stat().st_size
        try:
            with MirrorFile.create(path, context.profile, context.origin) as file:
                return MirrorSync(context, file).run(request)
        except (UsageError, NotFoundError):
            if is_new:
                remove_mirror(path)
            raise


class MirrorSync:
    """One sync of an open mirror, which nobody else writes meanwhile."""

    def __init__(self, context: BulkContext, file: MirrorFile) -> None:
        self._context = context
        self._crm = context.service
        self._file = file
        self._report = SyncReport(path=file.path)
        self._just_read: dict[str, JustRead] = {}
        self._read: dict[str, list[Attribute]] = {}
        self._since: dict[str, int | None] = {}

    def run(self, request: SyncRequest) -> SyncReport:
        objects = self._known(request) or self._objects()
        chosen = self._chosen(request, objects)
        excluded = self._excluded(request, objects)
        if not request.objects or not self._file.states():
            self._sync_members()
        for each in chosen:
            self._sync_object(each, request, excluded.get(each.id, ()))
        self._clean_up(objects)
        has_them = self._file.state(ACTIVITIES) is not None
        if request.activities or (request.activities is None and has_them):
            self._report.results.append(sync_activities(self.plan, self._crm, self._file))
        self._report.requests += sum(result.requests for result in self._report.results)
        return self._report

    def object_syncs(self, names: Sequence[str]) -> list[ObjectSync]:
        """What can read objects of the mirror, all of them where none is named. Raises NotFoundError for one that is not in it."""
        states = {state.object_id: state for state in self._file.states() if state.object_id != ACTIVITIES}
        objects = [each for each in self._objects() if each.id in states]
        chosen = [_named(name, objects) for name in dict.fromkeys(names)] if names else objects
        return [ObjectSync(self.plan, self._file, states[each.id], self._attributes(each)) for each in chosen]

    @property
    def plan(self) -> SyncPlan:
        """What its syncs work with."""
        return SyncPlan(self._crm, self._context.clock, self._context.listener.progress)

    # -- which objects ---------------------------------------------------------------------------------------------------------------

    def _known(self, request: SyncRequest) -> list[Object]:
        """The objects that are asked for, where the attributes of all were read since the last sync: so they are there."""
        found = []
        for object_id in request.objects:
            state, read = self._file.state(object_id), request.just_read.get(object_id)
            row = self._file.db.execute("SELECT _data FROM objects WHERE id = ?", (object_id,)).fetchone()
            if state is None or read is None or row is None or state.taken >= read.asked:
                return []
            found.append(Object.parse(jsontext.loads(row[0])))
        self._just_read = dict(request.just_read)
        return found

    def _objects(self) -> list[Object]:
        """The objects of the service; those the mirror has and that went are dropped."""
        self._report.requests += 1
        objects = self._crm.list_objects()
        there = {each.id for each in objects}
        for state in self._file.states():
            if state.object_id in there or state.object_id == ACTIVITIES:
                continue
            self._report.requests += 1
            try:
                objects.append(self._crm.get_object(state.object_id)[0])
            except NotFoundError:
                with self._file.transaction():
                    self._file.forget(state)
                self._report.gone.append(state.slug)
        return objects

    def _chosen(self, request: SyncRequest, objects: Sequence[Object]) -> list[Object]:
        if request.objects:
            return [_named(name, objects) for name in dict.fromkeys(request.objects)]
        known = {state.object_id for state in self._file.states()} - {ACTIVITIES}
        return [each for each in objects if each.id in known] if known else list(objects)

    def _excluded(self, request: SyncRequest, objects: Sequence[Object]) -> dict[str, list[str]]:
        return {_named(name, objects).id: list(slugs) for name, slugs in request.excluded.items()}

    # -- one object ------------------------------------------------------------------------------------------------------------------

    def _sync_object(self, found: Object, request: SyncRequest, excluded: Sequence[str]) -> None:
        attributes = self._attributes(found)
        unknown = set(excluded) - {each.slug for each in attributes}
        if unknown:
            raise UsageError(
                f"--exclude: {found.slug} has no attribute {min(unknown)}",
                hint=f"its attributes are: {', '.join(each.slug for each in attributes)}",
                code="unknown_attribute",
            )
        state = self._file.state(found.id) or self._new_state(found)
        self._since[found.id] = state.since
        more = sorted(set(excluded) - set(state.excluded))
        state.slug, state.excluded = found.slug or found.id, sorted({*state.excluded, *more})
        if more and state.syncs:
            self._leave_out(state, attributes, more)
        why = "it was asked for" if request.full and state.syncs else None
        result = ObjectSync(self.plan, self._file, state, attributes, self._just_read.get(found.id)).run(why)
        with self._file.transaction():
            write_objects(self._file, [found], state)
            write_attributes(self._file, found, attributes, state)
            self._remember_deleted(found, result)
        self._report.results.append(result)

    def _leave_out(self, state: SyncState, attributes: Sequence[Attribute], slugs: Sequence[str]) -> None:
        """Take values out of what the mirror has already."""
        kept = [each for each in attributes if each.slug not in state.excluded]
        with self._file.transaction():
            ObjectTable(self._file.db, state.table_name, kept, state.loose).rebuild(slugs)
            self._file.save(state)
        self._file.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _attributes(self, found: Object) -> list[Attribute]:
        if found.id not in self._read:
            read = self._just_read.get(found.id)
            self._read[found.id] = list(read.attributes) if read is not None else self._read_attributes(found)
        return self._read[found.id]

    def _read_attributes(self, found: Object) -> list[Attribute]:
        self._report.requests += 1
        try:
            return self._crm.list_attributes(found.id, include_inactive=True)
        except DeniedError:
            # A key without attributes:read may still see them inside the object itself.
            self._report.requests += 1
            inside = self._crm.get_object(found.id)[1]
            if inside is None:
                raise
            return inside

    def _new_state(self, found: Object) -> SyncState:
        """Of an object the mirror has not yet. Its table has its slug's name, unless that is taken or impossible: then that of its id."""
        slug = found.slug or found.id
        taken = {name.lower() for name in FIXED_TABLES} | {state.table_name.lower() for state in self._file.states()}
        free = can_be_named(slug) and slug.lower() not in taken and not slug.lower().startswith(("sqlite_", "_"))
        return SyncState(found.id, slug, slug if free else found.id)

    # -- what an object means to others ----------------------------------------------------------------------------------------------

    def _remember_deleted(self, found: Object, result: ObjectResult) -> None:
        """Note the records that refer to deleted ones: the service may clean them up."""
        deleted = result.written.deleted_ids
        if not deleted or result.state.syncs == 1:
            return
        db = self._file.db
        db.execute("CREATE TEMP TABLE IF NOT EXISTS _deleted (id TEXT PRIMARY KEY) WITHOUT ROWID")
        db.execute("DELETE FROM temp._deleted")
        db.executemany("INSERT OR IGNORE INTO temp._deleted VALUES (?)", ((each,) for each in deleted))
        for object_id, table, column in references_to(self._file, found.id):
            db.execute(
                f"INSERT OR IGNORE INTO _reread SELECT ?, id FROM {quoted(table)} "  # noqa: S608 - quoted
                f"WHERE {quoted(column)} IN (SELECT id FROM temp._deleted)",
                (object_id,),
            )

    def _clean_up(self, objects: Sequence[Object]) -> None:
        """Read again what referred to records that this sync found deleted, in objects that were synced before."""
        synced = {result.state.object_id: result for result in self._report.results}
        sampled = self._doubt_references(synced)
        waiting = {row[0] for row in self._file.db.execute("SELECT DISTINCT object_id FROM _reread")}
        for found in objects:
            result = synced.get(found.id)
            if found.id in waiting and result is not None:
                sync = ObjectSync(self.plan, self._file, result.state, self._attributes(found), self._just_read.get(found.id))
                before = result.written.updated
                try:
                    result.requests += sync.read_again(result.written)
                    if found.id in sampled and result.written.updated > before:
                        raise CannotProve("records referred to others that were deleted meanwhile")
                except CannotProve as doubt:
                    anew = sync.run(doubt.reason)
                    anew.requests += result.requests
                    anew.written.add(result.written)
                    self._report.results[self._report.results.index(result)] = anew

    def _doubt_references(self, synced: Mapping[str, ObjectResult]) -> set[str]:
        """Note records of late that refer to what is not there: it may have been deleted before the mirror ever saw it. Of many a sample,
        and of which objects: a service may well keep references that lead nowhere."""
        sampled = set()
        for target, found in synced.items():
            for object_id, table, column in references_to(self._file, target):
                if object_id not in synced:
                    continue
                most = most_asked_for(synced[object_id].state.records)
                rows = self._file.db.execute(
                    f"SELECT ?, id FROM {quoted(table)} WHERE _updated >= ? AND {quoted(column)} NOT IN "  # noqa: S608 - quoted
                    f"(SELECT id FROM {quoted(found.state.table_name)}) LIMIT ?",
                    (object_id, self._since.get(object_id) or 0, most + 1),
                ).fetchall()
                if len(rows) > most:
                    sampled.add(object_id)
                    rows = rows[:: len(rows) // SAMPLE]
                self._file.db.executemany("INSERT OR IGNORE INTO _reread VALUES (?, ?)", rows)
        return sampled

    def _sync_members(self) -> None:
        self._report.requests += 1
        try:
            members = self._crm.list_members()
        except DeniedError as error:
            self._context.listener.note(f"members are not in the mirror: {error.message}")
            return
        with self._file.transaction():
            write_members(self._file, members)


def references_to(file: MirrorFile, object_id: str) -> list[tuple[str, str, str]]:
    """The columns whose values are ids of this object's records: their object, table and name."""
    rows = file.db.execute(
        "SELECT a.object_id, s.table_name, a.column_name FROM attributes a JOIN _sync s ON s.object_id = a.object_id "
        "WHERE a.type = ? AND a.column_name IS NOT NULL AND json_extract(a.config, '$.allowed_object_id') = ?",
        (str(AttributeType.REFERENCE), object_id),
    )
    return rows.fetchall()


def result_document(result: ObjectResult) -> dict[str, Any]:
    """What a sync tells of one object."""
    state, written = result.state, result.written
    return {
        "object": state.slug, "records": state.records, "created": written.created, "updated": written.updated, "deleted": written.deleted,
        "asOf": to_timestamp(state.as_of), "proven": state.proven, "proof": state.proof, "read": result.how,
        "reason": result.reason or None, "requests": result.requests,
    }  # fmt: skip


def state_document(state: SyncState) -> dict[str, Any]:
    """What the mirror tells of one object."""
    return {
        "object": state.slug, "records": state.records, "asOf": to_timestamp(state.as_of), "proven": state.proven, "proof": state.proof,
        "excluded": state.excluded, "syncs": state.syncs, "requests": state.requests, "totalRequests": state.total_requests,
        "table": state.table_name,
    }  # fmt: skip


def _named(name: str, objects: Sequence[Object]) -> Object:
    found = next((each for each in objects if name in (each.slug, each.id)), None)
    if found is None:
        valid = sorted(each.slug for each in objects if each.slug)
        raise NotFoundError(
            f"there is no object {name!r}", hint=suggestion(name, valid, f"valid slugs: {', '.join(valid)}"), details={"valid": valid}
        )
    return found
