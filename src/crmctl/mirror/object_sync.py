"""Bring one object of the mirror up to date."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from crmctl.bulk_context import BulkContext, showing
from crmctl.client.answers import Page
from crmctl.errors import NotFoundError, RejectedError, ServiceError
from crmctl.frozen import frozen
from crmctl.mirror.file import MirrorFile, SyncState, deleted_slugs, fingerprint_of, why_anew
from crmctl.mirror.mirror_tables import (
    ObjectTable,
    OnDifference,
    Written,
    begin_list,
    note_listed,
    overlook,
    unlisted,
    without_values,
)
from crmctl.mirror.proof import (
    CannotProve,
    ChangeReader,
    ChangesRead,
    DeletionSearch,
    ListMoved,
    compare,
    compare_page,
    most_asked_for,
    next_mark,
    stands_still,
)
from crmctl.models import jsontext
from crmctl.models.resources import PAGE_LIMIT, Attribute, Record
from crmctl.read.export_passes import Gathering, GatherMark, GatherState, Staging, remove_staging, reopen_staging
from crmctl.read.records import CountedReads
from crmctl.values.moments import micros_of

RETRIES = 3
"""How often the search for deletions restarts because other clients write."""


SORTS = "sorts_by_change"
"""The note that records how crmctl knows that the service sorts by time of change."""


ANNOUNCED = 20
"""Requests above which a full read is announced."""


@frozen
class JustRead:
    """All attributes of an object that a command has just read, and when it `asked` for them (microseconds of this machine's clock)."""

    attributes: Sequence[Attribute]
    asked: int


@dataclass
class ObjectResult:
    """The outcome of one object's sync. `how`: `changes` or `everything`; `reason`: why everything was read."""

    state: SyncState
    written: Written = field(default_factory=Written)
    how: str = "changes"
    reason: str = ""
    requests: int = 0


class ObjectSync:
    """Sync the object and table in `state`, with the object's present attributes. `lister` counts requests."""

    def __init__(
        self, context: BulkContext, file: MirrorFile, state: SyncState, attributes: Sequence[Attribute], just_read: JustRead | None = None
    ) -> None:
        self._clock, self._progress = context.clock, context.listener.progress
        self._just_read = just_read
        self._audited: int | None = None
        self.file = file
        self.state = state
        self._place = file.path.with_name(f"{file.path.name}.{state.object_id}.reading")
        self._kept = [attribute for attribute in attributes if attribute.slug not in state.excluded]
        self._fingerprint = fingerprint_of(attributes)
        self.table = ObjectTable(file.db, state.table_name, self._kept, state.loose)
        self.lister = CountedReads(context.service, lambda record: without_values(record, state.excluded))

    def run(self, why: str | None = None) -> ObjectResult:
        """Bring the object up to date. `why` forces a full read. Raises what requests raise; then nothing has changed."""
        why = why or self.why_anew()
        if why is None:
            try:
                result = self.by_changes()
            except CannotProve as doubt:
                why = doubt.reason
            else:
                remove_staging(self._place)
                return result
        page = self._head()
        if (result_at_once := self._at_once(page, why)) is not None:
            remove_staging(self._place)
            return result_at_once
        with self.staged() as staging:
            written = self.take(staging, self.scan(staging, why, page))
        return ObjectResult(self.state, written, "everything", why, self.lister.requests)

    def read_again(self, written: Written) -> int:
        """Read only the records that referred to deleted ones; return the requests. Raises CannotProve if they are too many."""
        with self.file.transaction():
            self._reread(written)
            self.state.requests += self.lister.requests
            self.state.total_requests += self.lister.requests
            self.file.save(self.state)
        return self.lister.requests

    def why_anew(self) -> str | None:
        """Return why changes alone cannot prove anything; None if they may."""
        state = self.state
        if state.since is None:
            return "it was never read" if not state.syncs else "the service does not list it by time of change"
        if not state.proven:
            return "the last reading could not be proven"
        return why_anew(state.fingerprint, self._fingerprint)

    def by_changes(self) -> ObjectResult:
        """Bring the object up to date by its changes. Raises CannotProve and then leaves everything unchanged."""
        state = self.state
        assert state.since is not None
        with self.file.transaction():
            self._fit_columns()
            before = self.table.count()
            read, located = self._settle(
                GatherMark(state.since, state.as_of, state.taken), state.newest, must_sort=state.records > PAGE_LIMIT
            )
            if self._audited is None:
                self._audited = compare_page(self.lister, state.object_id, self.table, state.audited, read)
            self._reread(read.written)
            state.audited = self._audited
            self._save(read, self._proof(read, before, located))
        return ObjectResult(state, read.written, "changes", "", self.lister.requests)

    def _proof(self, read: ChangesRead, before: int, located: int) -> str:
        """Return one sentence that says how crmctl knows that nothing is missing or stale."""
        how = "the whole list was read" if read.is_whole else f"changes were read until {read.overlap:,} records stood where they did"
        if read.total is None:
            return how
        written = read.written
        deleted = f"{written.deleted:,} deleted" + (f", {located:,} of them found by their place" if located else "")
        return f"{how}; {before:,} known, {written.created:,} new and {deleted} make the {read.total:,} that are counted"

    def _settle(self, mark: GatherMark, newest: int | None, *, must_sort: bool = False) -> tuple[ChangesRead, int]:
        """Read changes, compare the count and find deletions until both agree. Then check for changes that became visible late.

        Also return how many deletions were found by position. With `must_sort`, the list must show that the service sorts by time of
        change.
        """
        reader, located, moved, looked_back = self._reader(), 0, 0, False
        read = reader.read(mark, newest)
        self._learn_order(reader)
        if must_sort and not reader.sorts:
            raise CannotProve("nothing shows yet that the service sorts by time of change")
        while True:
            deleted = self._find_deleted(read)
            if deleted is None:
                before = None if looked_back or read.is_whole else read.lowest
                if stands_still(self.lister, self.state.object_id, self.table, mark.since, before):
                    return read, located
                looked_back = True
                again = reader.read(mark, newest, whole=True)
            else:
                located += deleted
                moved += deleted == 0
                if moved > RETRIES:
                    raise CannotProve("others kept writing while deletions were looked for")
                again = reader.read(replace(read.mark, since=mark.since), read.newest)
            again.written.add(read.written)
            read = replace(again, overlap=max(read.overlap, again.overlap))

    def _learn_order(self, reader: ChangeReader) -> None:
        """Learn whether the service sorts by time of change. If no record shows it, see whether the service refuses an unknown order."""
        if reader.sorts or self.table.count() <= PAGE_LIMIT:
            return
        how = "seen"
        if not reader.shows_order:
            try:
                self.lister.list_records(self.state.object_id, sort="no_such_time", order="desc", limit=1, offset=0)
                return
            except RejectedError:
                how = "any other order is refused"
        self.file.note(SORTS, how)
        reader.sorts = True

    def _find_deleted(self, read: ChangesRead) -> int | None:
        """Return the number of deletions found; None if the count agrees, 0 if other clients wrote meanwhile. Raises CannotProve."""
        if read.total is None:
            if read.is_whole:
                return None
            raise CannotProve("the service does not say how many records there are")
        missing = self.table.count() - read.total
        if missing == 0:
            return None
        if missing < 0:
            raise CannotProve(f"{-missing:,} records are counted that are not among the changes")
        search = DeletionSearch(self.lister, self.state.object_id, self.table, read.total, self.state.audited)
        try:
            search.run()
        except ListMoved:
            pass
        else:
            if not search.found:
                raise CannotProve("deletions are counted that cannot be found")
            if search.first is not None:
                self._audited = compare(search.first, self.table, read)
        read.written.deleted_ids += search.found
        return len(search.found)

    def _reader(self) -> ChangeReader:
        reader = ChangeReader(self.lister, self.state.object_id, self.table, self.file.db, self._clock)
        reader.sorts = self.file.noted(SORTS) is not None
        return reader

    def _reread(self, written: Written) -> None:
        """Read records again that referred to deleted ones: the service may have changed them without a new time of change."""
        db, object_id = self.file.db, self.state.object_id
        rows = db.execute("SELECT record_id FROM _reread WHERE object_id = ?", (object_id,)).fetchall()
        if len(rows) > most_asked_for(self.table.count()):
            raise CannotProve(f"{len(rows):,} records referred to others that were deleted")
        for (record_id,) in rows:
            try:
                record = self.lister.get_record(object_id, record_id)
            except NotFoundError:
                continue
            if self.table.known(record_id) is not None:
                written.updated += self.table.write([record]).updated
        db.execute("DELETE FROM _reread WHERE object_id = ?", (object_id,))

    @contextmanager
    def staged(self, *, resumes: bool = True) -> Iterator[Staging]:
        """Open the file that keeps an unfinished full read, and delete it when the block ends without an error.

        A read with other attributes is not resumed.
        """
        request = {"object": self.state.object_id, "excluded": sorted(self.state.excluded), "attributes": self._fingerprint}
        staging, _ = reopen_staging(self._place, request, self._clock, resumes=resumes)
        with staging:
            yield staging
        remove_staging(self._place)

    def _head(self) -> Page[Record]:
        return self.lister.list_records(self.state.object_id, sort="updated_at", order="desc", limit=PAGE_LIMIT, offset=0)

    def scan(self, staging: Staging, why: str, head: Page[Record] | None = None) -> GatherState:
        """Read everything into the staging, and announce a long reading. Raises what a sweep raises."""
        page = head or self._head()
        if (page.total or 0) > ANNOUNCED * PAGE_LIMIT:
            pages = -(-(page.total or 0) // PAGE_LIMIT)
            self._progress.note(f"reading all of {self.state.slug} for the mirror, because {why}: about {pages:,} requests")
        with showing(self._progress, f"reading {self.state.slug}", page.total, PAGE_LIMIT) as progress:
            gathering = Gathering(self.lister, self.state.object_id, staging, self._clock, progress)
            if gathering.state.started is None:
                gathering.begin(page)
            gathering.sweep()
        return gathering.state

    def take(self, staging: Staging, scan: GatherState, see: OnDifference = overlook) -> Written:
        """Make the table hold what was read. `see` hears of each difference."""
        with self.file.transaction():
            written = self._replace((Record.parse(jsontext.loads(wire)) for wire in staging.wires()), see)
            self._prove(scan, written)
        return written

    def _at_once(self, page: Page[Record], why: str) -> ObjectResult | None:
        """Take an object that fits one page and whose count agrees: nothing can be missing."""
        moments = [micros_of(record.updated_at) for record in page.items]
        if page.total is None or len(page.items) != page.total or None in moments or len({item.id for item in page.items}) != page.total:
            return None
        with self.file.transaction():
            written = self._replace(page.items)
            read = self._reader().seen_at_once(page.items)
            self._save(read, f"one page held all {page.total:,} that are counted", "everything")
        return ObjectResult(self.state, written, "everything", why, self.lister.requests)

    def _replace(self, records: Iterable[Record], see: OnDifference = overlook) -> Written:
        """Make the table hold exactly these records."""
        db, written = self.file.db, Written()
        self._prepare_table()
        begin_list(db)
        for record in records:
            note_listed(db, record.id)
            written.add(self.table.write([record], see))
        written.deleted_ids = unlisted(db, self.table.name)
        self._refuse_older_list(written.deleted_ids)
        for record_id in written.deleted_ids:
            see(record_id, None, None)
        self.table.delete(written.deleted_ids)
        db.execute("DELETE FROM _reread WHERE object_id = ?", (self.state.object_id,))
        return written

    def _refuse_older_list(self, gone: Iterable[str]) -> None:
        """Raise ServiceError if the record changed last, among those a full list lacks, exists unchanged: the list is older."""
        stored = (row for row in map(self.table.known, gone) if row is not None)
        newest = max(stored, key=lambda row: row.updated, default=None)
        if newest is None:
            return
        try:
            record = self.lister.get_record(self.state.object_id, newest.id)
        except NotFoundError:
            return
        if (micros_of(record.updated_at) or 0) == newest.updated:
            raise ServiceError(
                f"the lists of the service are older than the mirror: they lack the record {newest.id}, which exists",
                code="stale_lists",
                hint="crmctl mirror sync, once the lists are current again; crmctl mirror remove begins anew",
                retryable=True,
            )

    def _prove(self, scan: GatherState, written: Written) -> None:
        """Record what a full read proves: its start at least, and with changes and count the present."""
        changes = ChangesRead(next_mark((scan.as_of, scan.taken), scan.newest), scan.newest, None)
        if scan.statistics.unstable:
            self._save(changes, "not proven: records of one creation time came in another order every time", "everything", proven=False)
            return
        self.file.db.execute("SAVEPOINT begun")
        try:
            read, _ = self._settle(changes.mark, scan.newest, must_sort=self.table.count() > PAGE_LIMIT)
        except CannotProve as doubt:
            sorts = self.file.noted(SORTS)
            self.file.db.execute("ROLLBACK TO begun")  # together with changes that prove nothing
            if sorts is not None:
                self.file.note(SORTS, sorts)
            self._take_as_begun(changes, doubt)
            return
        written.add(read.written)
        counted = "" if read.total is None else f"; {read.total:,} are counted"
        self._save(read, f"everything was read{counted}", "everything")

    def _take_as_begun(self, whole: ChangesRead, doubt: CannotProve) -> None:
        """Accept a full read as of its start, unless the service counts more records than it lists."""
        count, total = self.table.count(), self.lister.total
        if doubt.contradicts and self.file.noted(SORTS) is not None:
            self._save(whole, f"not proven: {doubt.reason}", "everything", proven=False)
            return
        if total is not None and total > count:
            self._save(whole, f"not proven: {total:,} records are counted, {count:,} are listed", "everything", proven=False)
            return
        self._save(whole, f"everything was read ({doubt.reason})", "everything")
        if doubt.is_lasting:
            self.state.since = None
            self.file.save(self.state)

    def _prepare_table(self) -> None:
        """Create the table, or fit its columns to the present attributes."""
        exists = self.file.db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (self.table.name,)).fetchone()
        if not exists:
            self.table.create()
        else:
            self._fit_columns()

    def _fit_columns(self) -> None:
        if self.state.fingerprint != self._fingerprint:
            self.table.rebuild(deleted_slugs(self.state.fingerprint, self._fingerprint))

    def _save(self, read: ChangesRead, proof: str, how: str = "changes", *, proven: bool = True) -> None:
        if self.table.grown:
            self.table.rebuild()
        state = self.state
        state.records, state.proven, state.proof, state.how = self.table.count(), proven, proof, how
        state.since, state.as_of, state.taken, state.newest = read.mark.since, read.mark.as_of, read.mark.taken, read.newest
        if self._just_read is not None:
            # Records are only as fresh as the attributes they were read with.
            age = max(0, state.taken - self._just_read.asked)
            state.as_of, state.taken = state.as_of - age, state.taken - age
        state.requests = self.lister.requests
        state.total_requests += self.lister.requests
        state.syncs += 1
        state.fingerprint, state.loose = self._fingerprint, sorted(self.table.loose)
        self.file.save(state)
