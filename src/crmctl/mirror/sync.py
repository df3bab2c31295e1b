"""Bring the whole mirror up to date."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

from crmctl.bulk_context import BulkContext, showing
from crmctl.client.answers import ListQuery, Page
from crmctl.client.crm import Crm
from crmctl.client.directory import find_object
from crmctl.errors import DeniedError, NotFoundError, UsageError
from crmctl.frozen import frozen
from crmctl.mirror.changes import begin_log, forget_log
from crmctl.mirror.file import (
    ACTIVITIES,
    FIXED_TABLES,
    WAIT_SECONDS,
    MirrorFile,
    SyncState,
    can_be_named,
    quoted,
    remove_mirror,
    search_table,
    searched_text,
    writing_turn,
)
from crmctl.mirror.mirror_tables import (
    ObjectTable,
    OnDifference,
    Written,
    activity_texts,
    begin_list,
    create_search,
    has_full_text,
    holds_activity,
    note_listed,
    overlook,
    unlisted,
    write_activity,
    write_members,
    write_object,
)
from crmctl.mirror.object_sync import JustRead, ObjectResult, ObjectSync
from crmctl.mirror.place import mirror_path
from crmctl.mirror.proof import CannotProve, most_asked_for
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import PAGE_LIMIT, Activity, Attribute, AttributeType, Object, Record
from crmctl.read.export_passes import Staging
from crmctl.read.stable_pages import AnchoredPass, Listing, NoProgress, PassStatistics, Unsorted
from crmctl.values.moments import MICROS, micros_of_date, to_timestamp

_ORDERS = (("created_at", True), ("created_at", False))
"""Orders in which a service may list activities; without one they are read as one group."""

READINGS = 3
"""How often activities are read if some may be missing."""


class ActivityLister:
    """The list of activities as a list of records, for the reader of lists. `date`: of the first answer; `total`: of the last answer."""

    def __init__(self, crm: Crm) -> None:
        self.date: str | None = None
        self.total: int | None = None
        self._crm = crm

    def list_records(self, object_id: str, **query: Unpack[ListQuery]) -> Page[Record]:
        page = self._crm.list_activities(limit=query.get("limit", 50), offset=query.get("offset", 0))
        self.date, self.total = self.date or page.date, page.total
        return Page([Record.parse(item.wire) for item in page.items], page.total, page.limit, page.offset, page.date)


def sync_activities(context: BulkContext, file: MirrorFile, see: OnDifference = overlook) -> ObjectResult:
    """Read all activities, and make the mirror hold exactly these. `see` hears of each difference."""
    lister, requests = ActivityLister(context.service), 0
    taken = int(context.clock.now() * MICROS)
    state = file.state(ACTIVITIES) or SyncState(ACTIVITIES, ACTIVITIES, ACTIVITIES)
    with Staging() as staging:
        with showing(context.listener.progress, "reading activities", None, PAGE_LIMIT) as progress:
            for reading in range(READINGS):
                statistics, before = PassStatistics(), len(staging)
                for page in _pages(lister, statistics):
                    with staging.step():
                        staging.merge(page)
                    progress.advance(len(page))
                requests += statistics.requests
                doubt = _doubt(statistics, lister.total, len(staging), before if reading else -1)
                if not doubt or statistics.unstable:
                    break
        date = micros_of_date(lister.date)
        with file.transaction():
            written = _replace(file, staging, see)
            _index_activities(file, changed=bool(written.created or written.updated or written.deleted))
            state.as_of, state.taken = taken if date is None else date, taken
            state.records = len(staging)
            state.proven = not doubt
            state.proof = f"not proven: {doubt}" if doubt else "all of them were read"
            state.how, state.requests = "everything", requests
            state.total_requests += requests
            state.syncs += 1
            file.save(state)
    return ObjectResult(state, written, "everything", "activities have no list of changes", requests)


def _doubt(statistics: PassStatistics, total: int | None, listed: int, before: int) -> str:
    """Return why some activities may be missing, or "". `before`: how many the reading before listed; -1 for the first reading."""
    if statistics.unstable:
        return "they came in another order every time"
    if statistics.walks and listed != before:
        # Without an order only counts tell, and a new activity would stand for a missed one.
        return "others kept writing, and no order shows what came"
    return "" if total is None or listed >= total else f"{total:,} are counted, {listed:,} are listed"


def _index_activities(file: MirrorFile, *, changed: bool) -> None:
    """Rebuild the full-text index of activities if something changed."""
    index = search_table(ACTIVITIES)
    is_there = file.db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (index,)).fetchone()
    if not has_full_text(file.db) or (is_there and not changed):
        return
    if not is_there:
        create_search(file.db, index)
    file.db.execute(f"INSERT INTO {index} ({index}) VALUES ('delete-all')")
    rows = file.db.execute("SELECT rowid, _data FROM activities")
    texts = ((number, searched_text(activity_texts(jsontext.loads(wire)))) for number, wire in rows)
    file.db.executemany(f"INSERT INTO {index} (rowid, text) VALUES (?, ?)", texts)


def _pages(lister: ActivityLister, statistics: PassStatistics) -> Iterator[list[Record]]:
    for order, descending in _ORDERS:
        try:
            yield from AnchoredPass(lister, Listing(ACTIVITIES, field=order, descending=descending), statistics).pages()
        except (Unsorted, NoProgress):
            continue
        return
    yield from AnchoredPass(lister, Listing(ACTIVITIES, by_time=False), statistics).pages()


def _replace(file: MirrorFile, staging: Staging, see: OnDifference) -> Written:
    db, written = file.db, Written()
    begin_list(db)
    for wire in staging.wires():
        activity = Activity.parse(jsontext.loads(wire))
        note_listed(db, activity.id)
        stored = db.execute("SELECT _data FROM activities WHERE id = ?", (activity.id,)).fetchone()
        if stored is None or not holds_activity(file, activity):
            see(activity.id, stored and stored[0], wire)
            write_activity(file, activity)
            written.updated += stored is not None
            written.created += stored is None
    written.deleted_ids = unlisted(db, ACTIVITIES)
    for activity_id in written.deleted_ids:
        see(activity_id, None, None)
        for table, column in (("activities", "id"), ("activity_links", "activity_id")):
            db.execute(f"DELETE FROM {table} WHERE {column} = ?", (activity_id,))
    return written


SAMPLE = 10
"""Records with dangling references that are read again if there are too many."""


@frozen
class SyncRequest:
    """What to sync. `objects` by slug or id; without any, those in the mirror, or all for a new mirror. `activities` None: if the mirror
    has them.

    `excluded` maps objects to attributes and is remembered. `full`: read everything again. `patience`: seconds to wait for another sync.
    `just_read` maps object ids to attributes that need not be read again.
    """

    objects: Sequence[str] = ()
    activities: bool | None = None
    full: bool = False
    excluded: Mapping[str, Sequence[str]] = field(default_factory=dict)
    patience: float = WAIT_SECONDS
    just_read: Mapping[str, JustRead] = field(default_factory=dict)


@dataclass
class SyncReport:
    """The results of a sync by object. `requests` includes those about the schema; `gone`: objects that no longer exist."""

    results: list[ObjectResult] = field(default_factory=list)
    requests: int = 0
    gone: list[str] = field(default_factory=list)
    path: Path = Path()

    @property
    def is_proven(self) -> bool:
        return all(result.state.proven for result in self.results)


def sync_mirror(context: BulkContext, request: SyncRequest) -> SyncReport:
    """Create or update the mirror of the context's service.

    Raises UsageError for unknown objects and attributes, PendingError if another sync takes too long, and what requests raise; objects
    synced before the error stay.
    """
    path = mirror_path(context.state, context.origin, context.key)
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
    """One sync of an open mirror. The caller holds the writer's lock."""

    def __init__(self, context: BulkContext, file: MirrorFile) -> None:
        self._context = context
        self._crm = context.service
        self._file = file
        self.report = SyncReport(path=file.path)
        self._just_read: dict[str, JustRead] = {}
        self._read: dict[str, list[Attribute]] = {}
        self._since: dict[str, int | None] = {}

    def run(self, request: SyncRequest) -> SyncReport:
        objects = self._known(request) or self._objects()
        chosen = self._chosen(request, objects)
        excluded = {find_object(name, objects).id: list(slugs) for name, slugs in request.excluded.items()}
        if not request.objects or not self._file.states():
            self._sync_members()
        for object_sync in chosen:
            self._sync_object(object_sync, request, excluded.get(object_sync.id, ()))
        self._clean_up(objects)
        has_them = self._file.state(ACTIVITIES) is not None
        if request.activities or (request.activities is None and has_them):
            self.report.results.append(sync_activities(self._context, self._file))
        self.report.requests += sum(result.requests for result in self.report.results)
        return self.report

    def object_syncs(self, names: Sequence[str]) -> list[ObjectSync]:
        """Return syncs of the named objects, or of all in the mirror. Raises NotFoundError for one that is not in it."""
        states = {state.object_id: state for state in self._file.states() if state.object_id != ACTIVITIES}
        objects = [crm_object for crm_object in self._objects() if crm_object.id in states]
        chosen = [find_object(name, objects) for name in dict.fromkeys(names)] if names else objects
        return [self._sync_of(crm_object, states[crm_object.id]) for crm_object in chosen]

    def _sync_of(self, crm_object: Object, state: SyncState) -> ObjectSync:
        return ObjectSync(self._context, self._file, state, self._attributes(crm_object), self._just_read.get(crm_object.id))

    def _known(self, request: SyncRequest) -> list[Object]:
        """Return the requested objects if the attributes of all were read since the last sync, which shows that they exist; else none."""
        objects = []
        for object_id in request.objects:
            state, read = self._file.state(object_id), request.just_read.get(object_id)
            row = self._file.db.execute("SELECT _data FROM objects WHERE id = ?", (object_id,)).fetchone()
            if state is None or read is None or row is None or state.taken >= read.asked:
                return []
            objects.append(Object.parse(jsontext.loads(row[0])))
        self._just_read = dict(request.just_read)
        return objects

    def _objects(self) -> list[Object]:
        """Return the service's objects and drop those of the mirror that no longer exist."""
        self.report.requests += 1
        objects = self._crm.list_objects()
        present = {crm_object.id for crm_object in objects}
        for state in self._file.states():
            if state.object_id in present or state.object_id == ACTIVITIES:
                continue
            self.report.requests += 1
            try:
                objects.append(self._crm.get_object(state.object_id)[0])
            except NotFoundError:
                with self._file.transaction():
                    self._file.forget(state)
                self.report.gone.append(state.slug)
        return objects

    def _chosen(self, request: SyncRequest, objects: Sequence[Object]) -> list[Object]:
        if request.objects:
            return [find_object(name, objects) for name in dict.fromkeys(request.objects)]
        synced = {state.object_id for state in self._file.states()} - {ACTIVITIES}
        return [crm_object for crm_object in objects if crm_object.id in synced] if synced else list(objects)

    def _sync_object(self, crm_object: Object, request: SyncRequest, excluded: Sequence[str]) -> None:
        attributes = self._attributes(crm_object)
        unknown = set(excluded) - {attribute.slug for attribute in attributes}
        if unknown:
            raise UsageError(
                f"--exclude: {crm_object.slug} has no attribute {min(unknown)}",
                hint=f"its attributes are: {', '.join(attribute.slug for attribute in attributes)}",
                code="unknown_attribute",
            )
        state = self._file.state(crm_object.id) or self._new_state(crm_object)
        self._since[crm_object.id] = state.since
        more = sorted(set(excluded) - set(state.excluded))
        state.slug, state.excluded = crm_object.slug or crm_object.id, sorted({*state.excluded, *more})
        if more and state.syncs:
            self._leave_out(state, attributes, more)
        why = "it was asked for" if request.full and state.syncs else None
        result = self._sync_of(crm_object, state).run(why)
        with self._file.transaction():
            write_object(self._file, crm_object, attributes, state)
            self._remember_deleted(crm_object, result)
            begin_log(self._file, state, self._context.clock.now())
        self.report.results.append(result)

    def _leave_out(self, state: SyncState, attributes: Sequence[Attribute], slugs: Sequence[str]) -> None:
        kept = [attribute for attribute in attributes if attribute.slug not in state.excluded]
        with self._file.transaction():
            forget_log(self._file, state)
            ObjectTable(self._file.db, state.table_name, kept, state.loose).rebuild(slugs)
            self._file.save(state)
        self._file.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _attributes(self, crm_object: Object) -> list[Attribute]:
        if crm_object.id not in self._read:
            read = self._just_read.get(crm_object.id)
            self._read[crm_object.id] = list(read.attributes) if read is not None else self._read_attributes(crm_object)
        return self._read[crm_object.id]

    def _read_attributes(self, crm_object: Object) -> list[Attribute]:
        self.report.requests += 1
        try:
            return self._crm.list_attributes(crm_object.id, include_inactive=True)
        except DeniedError:
            # A key without attributes:read may still see them inside the object.
            self.report.requests += 1
            inside = self._crm.get_object(crm_object.id)[1]
            if inside is None:
                raise
            return inside

    def _new_state(self, crm_object: Object) -> SyncState:
        """Return the state of a new object. Its table is named by its slug, or by its id if the slug is taken or impossible."""
        slug = crm_object.slug or crm_object.id
        taken = {name.lower() for name in FIXED_TABLES} | {state.table_name.lower() for state in self._file.states()}
        free = can_be_named(slug) and slug.lower() not in taken and not slug.lower().startswith(("sqlite_", "_"))
        return SyncState(crm_object.id, slug, slug if free else crm_object.id)

    def _remember_deleted(self, crm_object: Object, result: ObjectResult) -> None:
        """Note the records that refer to deleted ones: the service may change them without a new time of change."""
        deleted = result.written.deleted_ids
        if not deleted or result.state.syncs == 1:
            return
        for object_id, table, column in references_to(self._file, crm_object.id):
            referring = f"SELECT ?, id FROM {quoted(table)} WHERE {quoted(column)} IN (SELECT value FROM json_each(?))"
            self._file.db.execute(f"INSERT OR IGNORE INTO _reread {referring}", (object_id, jsontext.dumps(deleted)))

    def _clean_up(self, objects: Sequence[Object]) -> None:
        """Read again the records that referred to deleted ones, in objects that were synced before."""
        synced = {result.state.object_id: result for result in self.report.results}
        sampled = self._doubt_references(synced)
        waiting = {row[0] for row in self._file.db.execute("SELECT DISTINCT object_id FROM _reread")}
        for crm_object in objects:
            result = synced.get(crm_object.id)
            if crm_object.id in waiting and result is not None:
                sync, before = self._sync_of(crm_object, result.state), result.written.updated
                try:
                    result.requests += sync.read_again(result.written)
                    if crm_object.id in sampled and result.written.updated > before:
                        raise CannotProve("records referred to others that were deleted meanwhile")
                except CannotProve as doubt:
                    anew = sync.run(doubt.reason)
                    anew.requests += result.requests
                    anew.written.add(result.written)
                    self.report.results[self.report.results.index(result)] = anew

    def _doubt_references(self, synced: Mapping[str, ObjectResult]) -> set[str]:
        """Note recent records with dangling references: their targets may have been deleted before the mirror saw them.

        Note only a sample of many, because a service may keep such references; return the sampled objects.
        """
        sampled = set()
        for target, result in synced.items():
            for object_id, table, column in references_to(self._file, target):
                if object_id not in synced:
                    continue
                most = most_asked_for(synced[object_id].state.records)
                rows = self._file.db.execute(
                    f"SELECT ?, id FROM {quoted(table)} WHERE _updated >= ? AND {quoted(column)} NOT IN "
                    f"(SELECT id FROM {quoted(result.state.table_name)}) LIMIT ?",
                    (object_id, self._since.get(object_id) or 0, most + 1),
                ).fetchall()
                if len(rows) > most:
                    sampled.add(object_id)
                    rows = rows[:: len(rows) // SAMPLE]
                self._file.db.executemany("INSERT OR IGNORE INTO _reread VALUES (?, ?)", rows)
        return sampled

    def _sync_members(self) -> None:
        self.report.requests += 1
        try:
            members = self._crm.list_members()
        except DeniedError as error:
            self._context.listener.note(f"members are not in the mirror: {error.message}")
            return
        with self._file.transaction():
            write_members(self._file, members)


def references_to(file: MirrorFile, object_id: str) -> list[tuple[str, str, str]]:
    """Return the columns that refer to this object: their object, table and name."""
    rows = file.db.execute(
        "SELECT a.object_id, s.table_name, a.column_name FROM attributes a JOIN _sync s ON s.object_id = a.object_id "
        "WHERE a.type = ? AND a.column_name IS NOT NULL AND json_extract(a.config, '$.allowed_object_id') = ?",
        (str(AttributeType.REFERENCE), object_id),
    )
    return rows.fetchall()


def result_document(result: ObjectResult) -> Json:
    state, written = result.state, result.written
    return {
        "object": state.slug, "records": state.records, "created": written.created, "updated": written.updated, "deleted": written.deleted,
        "asOf": to_timestamp(state.as_of), "proven": state.proven, "proof": state.proof, "read": result.how,
        "reason": result.reason or None, "requests": result.requests,
    }  # fmt: skip


def state_document(state: SyncState) -> Json:
    return {
        "object": state.slug, "records": state.records, "asOf": to_timestamp(state.as_of), "proven": state.proven, "proof": state.proof,
        "excluded": state.excluded, "syncs": state.syncs, "requests": state.requests, "totalRequests": state.total_requests,
        "table": state.table_name,
    }  # fmt: skip
