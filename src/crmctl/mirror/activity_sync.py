"""The activities of the mirror. Their list has no order of change and no count: they are read completely at every sync."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from crmctl.bulk.read.sorted_lists import Listing, NoProgress, PassStatistics, Unsorted
from crmctl.bulk.read.stable_pages import AnchoredPass
from crmctl.client.crm import Crm
from crmctl.client.shapes import Page
from crmctl.mirror.columns import wire_text
from crmctl.mirror.file import ACTIVITIES, MirrorFile, SyncState
from crmctl.mirror.noun_tables import write_activities
from crmctl.mirror.object_sync import ObjectResult, SyncPlan
from crmctl.mirror.object_table import Written
from crmctl.models import jsontext
from crmctl.models.activities import Activity
from crmctl.models.filters import Condition
from crmctl.models.records import PAGE_LIMIT, Record
from crmctl.models.timestamps import MICROS, micros_of_date

_ORDERS = (("created_at", True), ("created_at", False))
"""The orders in which a service may list activities; else they are read as one group without order."""


class ActivityLister:
    """The list of activities as a list of records, which is what the walker of lists reads. `date`: of the first answer."""

    def __init__(self, crm: Crm) -> None:
        self.date: str | None = None
        self._crm = crm

    def list_records(
        self,
        object_id: str,
        *,
        filters: Sequence[Condition] = (),
        sort: str | None = None,
        order: str | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> Page[Record]:
        page = self._crm.list_activities(limit=limit, offset=offset)
        self.date = self.date or page.date
        return Page([Record.parse(each.wire) for each in page.items], page.total, page.limit, page.offset, page.date)


def sync_activities(plan: SyncPlan, crm: Crm, file: MirrorFile) -> ObjectResult:
    """Read all activities; they take the place of those that were there. Raises what requests raise."""
    state = file.state(ACTIVITIES) or SyncState(ACTIVITIES, ACTIVITIES, ACTIVITIES)
    lister, statistics = ActivityLister(crm), PassStatistics()
    taken = int(plan.clock.now() * MICROS)
    plan.progress.start("reading activities", None, PAGE_LIMIT)
    db = file.db
    try:
        db.execute("CREATE TEMP TABLE IF NOT EXISTS listed (id TEXT PRIMARY KEY, wire TEXT NOT NULL) WITHOUT ROWID")
        db.execute("DELETE FROM temp.listed")
        for page in _pages(lister, statistics):
            rows = [(each.id, wire_text(each.wire)) for each in page]
            db.executemany("INSERT OR REPLACE INTO temp.listed VALUES (?, ?)", rows)
            plan.progress.advance(len(page))
    finally:
        plan.progress.finish()
    with file.transaction():
        written = _replace(file)
        told = micros_of_date(lister.date)
        state.as_of, state.taken = taken if told is None else told, taken
        state.records = int(db.execute("SELECT count(*) FROM activities").fetchone()[0])
        state.proven = not statistics.unstable
        state.proof = "all of them were read" if state.proven else "not proven: they came in another order every time"
        state.how, state.requests = "everything", statistics.requests
        state.total_requests += statistics.requests
        state.syncs += 1
        file.save(state)
    reason = "activities have no list of changes"
    return ObjectResult(state, written, "everything", reason, statistics.requests)


def _pages(lister: ActivityLister, statistics: PassStatistics) -> Iterator[list[Record]]:
    for field, descending in _ORDERS:
        try:
            yield from AnchoredPass(lister, Listing(ACTIVITIES, field=field, descending=descending), statistics).pages()
        except (Unsorted, NoProgress):
            continue
        return
    yield from AnchoredPass(lister, Listing(ACTIVITIES, by_time=False), statistics).pages()


def _replace(file: MirrorFile) -> Written:
    db, written = file.db, Written()
    for wire, known in db.execute("SELECT l.wire, a._data FROM temp.listed l LEFT JOIN activities a USING (id)"):
        if known != wire:
            write_activities(file, [Activity.parse(jsontext.loads(wire))])
            written.updated += known is not None
            written.created += known is None
    gone = db.execute("SELECT id FROM activities WHERE id NOT IN (SELECT id FROM temp.listed)").fetchall()
    for table, column in (("activities", "id"), ("activity_links", "activity_id")):
        db.executemany(f"DELETE FROM {table} WHERE {column} = ?", gone)  # noqa: S608 - names of our own
    written.deleted, written.deleted_ids = len(gone), [row[0] for row in gone]
    return written
