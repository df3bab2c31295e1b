"""The activities of the mirror. Their list has no order of change and no count: they are read completely at every sync."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from crmctl.bulk.read.sorted_lists import Listing, NoProgress, PassStatistics, Unsorted
from crmctl.bulk.read.stable_pages import AnchoredPass
from crmctl.client.crm import Crm
from crmctl.client.shapes import Page
from crmctl.mirror.columns import searched_text, wire_text
from crmctl.mirror.file import ACTIVITIES, MirrorFile, SyncState, search_table
from crmctl.mirror.noun_tables import activity_texts, write_activities
from crmctl.mirror.object_sync import ObjectResult, SyncPlan
from crmctl.mirror.object_table import Written, create_search, has_full_text
from crmctl.models import jsontext
from crmctl.models.activities import Activity
from crmctl.models.filters import Condition
from crmctl.models.records import PAGE_LIMIT, Record
from crmctl.models.timestamps import MICROS, micros_of_date

_ORDERS = (("created_at", True), ("created_at", False))
"""The orders in which a service may list activities; else they are read as one group without order."""

READINGS = 3
"""So often they are read where the first reading may lack some."""


class ActivityLister:
    """The list of activities as a list of records, which is what the walker of lists reads. `date`: of the first answer; `total`: what the
    last one counts, if it does."""

    def __init__(self, crm: Crm) -> None:
        self.date: str | None = None
        self.total: int | None = None
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
        self.date, self.total = self.date or page.date, page.total
        return Page([Record.parse(each.wire) for each in page.items], page.total, page.limit, page.offset, page.date)


@dataclass(frozen=True)
class ActivityReading:
    """All activities as they were read, in `temp._listed`. `begun`: when, by the service's clock and by this machine's; `doubt`: why they
    may not be all."""

    begun: tuple[int, int]
    doubt: str
    requests: int


def sync_activities(plan: SyncPlan, crm: Crm, file: MirrorFile) -> ObjectResult:
    """Read all activities; they take the place of those that were there. Raises what requests raise."""
    return take_activities(file, read_activities(plan, crm, file))


def read_activities(plan: SyncPlan, crm: Crm, file: MirrorFile) -> ActivityReading:
    """Raises what requests raise."""
    lister, requests = ActivityLister(crm), 0
    taken = int(plan.clock.now() * MICROS)
    plan.progress.start("reading activities", None, PAGE_LIMIT)
    db = file.db
    try:
        db.execute("CREATE TEMP TABLE IF NOT EXISTS _listed (id TEXT PRIMARY KEY, wire TEXT NOT NULL) WITHOUT ROWID")
        db.execute("DELETE FROM temp._listed")
        for reading in range(READINGS):
            statistics, before = PassStatistics(), _listed(file)
            for page in _pages(lister, statistics):
                rows = [(each.id, wire_text(each.wire)) for each in page]
                db.executemany("INSERT OR REPLACE INTO temp._listed VALUES (?, ?)", rows)
                plan.progress.advance(len(page))
            requests += statistics.requests
            doubt = _doubt(statistics, lister.total, _listed(file), before if reading else -1)
            if not doubt or statistics.unstable:
                break
    finally:
        plan.progress.finish()
    told = micros_of_date(lister.date)
    return ActivityReading((taken if told is None else told, taken), doubt, requests)


def _listed(file: MirrorFile) -> int:
    return int(file.db.execute("SELECT count(*) FROM temp._listed").fetchone()[0])


def _doubt(statistics: PassStatistics, total: int | None, listed: int, before: int) -> str:
    """Why some may not have been listed. `before`: how many were, before this reading; -1 where it is the first one."""
    if statistics.unstable:
        return "they came in another order every time"
    if statistics.walks and listed != before:
        # Where order tells nothing only numbers do, and what somebody made meanwhile would stand for one that was missed.
        return "others kept writing, and no order shows what came"
    return "" if total is None or listed >= total else f"{total:,} are counted, {listed:,} are listed"


def take_activities(file: MirrorFile, reading: ActivityReading) -> ObjectResult:
    """What was read takes the place of what was there."""
    state = file.state(ACTIVITIES) or SyncState(ACTIVITIES, ACTIVITIES, ACTIVITIES)
    with file.transaction():
        written = _replace(file)
        index_activities(file, changed=bool(written.created or written.updated or written.deleted))
        state.as_of, state.taken = reading.begun
        state.records = int(file.db.execute("SELECT count(*) FROM activities").fetchone()[0])
        state.proven = not reading.doubt
        state.proof = f"not proven: {reading.doubt}" if reading.doubt else "all of them were read"
        state.how, state.requests = "everything", reading.requests
        state.total_requests += reading.requests
        state.syncs += 1
        file.save(state)
    reason = "activities have no list of changes"
    return ObjectResult(state, written, "everything", reason, reading.requests)


def wrong_activities(file: MirrorFile) -> Iterator[tuple[str, str | None, str | None]]:
    """Where the mirror differs from what was read: id, what it holds, what was listed."""
    yield from file.db.execute(
        "SELECT l.id, a._data, l.wire FROM temp._listed l LEFT JOIN activities a USING (id) WHERE a._data IS NOT l.wire "
        "UNION ALL SELECT id, _data, NULL FROM activities WHERE id NOT IN (SELECT id FROM temp._listed)"
    )


def index_activities(file: MirrorFile, *, changed: bool) -> None:
    """Full text of all activities anew, where something has changed."""
    index = search_table(ACTIVITIES)
    is_there = file.db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (index,)).fetchone()
    if not has_full_text(file.db) or (is_there and not changed):
        return
    if not is_there:
        create_search(file.db, index)
    file.db.execute(f"INSERT INTO {index} ({index}) VALUES ('delete-all')")  # noqa: S608 - a name of our own
    rows = file.db.execute("SELECT rowid, _data FROM activities")
    texts = ((number, searched_text(activity_texts(jsontext.loads(wire)))) for number, wire in rows)
    file.db.executemany(f"INSERT INTO {index} (rowid, text) VALUES (?, ?)", texts)  # noqa: S608 - a name of our own


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
    for wire, known in db.execute("SELECT l.wire, a._data FROM temp._listed l LEFT JOIN activities a USING (id)"):
        if known != wire:
            write_activities(file, [Activity.parse(jsontext.loads(wire))])
            written.updated += known is not None
            written.created += known is None
    gone = db.execute("SELECT id FROM activities WHERE id NOT IN (SELECT id FROM temp._listed)").fetchall()
    for table, column in (("activities", "id"), ("activity_links", "activity_id")):
        db.executemany(f"DELETE FROM {table} WHERE {column} = ?", gone)  # noqa: S608 - names of our own
    written.deleted, written.deleted_ids = len(gone), [row[0] for row in gone]
    return written
