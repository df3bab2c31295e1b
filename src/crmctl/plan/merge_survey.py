"""Read the records of a merge plan and everything that refers to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from crmctl.client.answers import Page
from crmctl.client.directory import ReadService
from crmctl.errors import NotFoundError
from crmctl.files.whole_files import Spill
from crmctl.match.key_lookups import Lookup, RecordSink
from crmctl.match.references import ReferenceQuestions, asks, reference_ids
from crmctl.mirror.local_copy import LocalCopy
from crmctl.models import jsontext
from crmctl.models.resources import Record
from crmctl.plan.merge_steps import MergeSchema, Surroundings
from crmctl.read.read_back import LONG_READ, Reader
from crmctl.read.records import LINKS, Cost, all_activities, fetch, named_records, scan
from crmctl.read.stable_pages import Listing, SeenIds

_TABLES = """
CREATE TABLE member (id TEXT PRIMARY KEY, given TEXT NOT NULL, loses INTEGER NOT NULL, data TEXT) WITHOUT ROWID;
CREATE TABLE holder (id TEXT PRIMARY KEY, object_id TEXT NOT NULL, data TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE refers (target TEXT NOT NULL, holder TEXT NOT NULL, PRIMARY KEY (target, holder)) WITHOUT ROWID;
CREATE TABLE activity (id TEXT PRIMARY KEY, links TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE names (target TEXT NOT NULL, activity TEXT NOT NULL, PRIMARY KEY (target, activity)) WITHOUT ROWID;
"""


MANY = 10_000
"""Number of losers per mirror query."""


class Survey(Spill):
    """Current records around all groups of a plan. Call `want` for each group, then `fill`, and `refresh` before each wave."""

    TABLES = _TABLES
    CACHE_KIB = 16_000

    def __init__(self, service: ReadService, schema: MergeSchema, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._service = service
        self._schema = schema
        self._tell = tell
        self._lookups = {one: Lookup(self._service, one, tell=tell) for one in {schema.object_id, *schema.referring}}
        self._ids = self.enter_context(SeenIds())

    def want(self, survivor: str, losers: Sequence[str]) -> None:
        rows = [(survivor.lower(), survivor, 0), *((loser.lower(), loser, 1) for loser in losers)]
        self._db.executemany("INSERT OR IGNORE INTO member (id, given, loses) VALUES (?, ?, ?)", rows)
        for record_id, _, _ in rows:
            self._ids.add(record_id)

    def fill_members(self) -> None:
        """Read only the wanted records, not what refers to them. Raises read errors."""
        self._fetch_members(partial(self._take_all, self._schema.object_id))

    def _fetch_members(self, see: RecordSink) -> None:
        def announce(cost: Cost) -> None:
            if cost.requests > LONG_READ:
                self._tell(f"reading {len(self._ids):,} records of the plan: about {cost.requests:,} requests")

        for page in fetch(Reader(self._service, self._schema.object_id), self._ids, announce):
            see(page)

    @property
    def objects(self) -> list[str]:
        return list(self._lookups)

    def fill(self, copy: LocalCopy | None = None) -> None:
        """Read everything from the mirror if it is complete, else from the service. Raises read errors."""
        if copy is not None and self._is_in(copy):
            self._fill_from(copy)
        else:
            self._fill_from_service()
        self.read_activities()

    def _is_in(self, copy: LocalCopy) -> bool:
        slugs = {self._schema.object_id: [one.slug for one in self._schema.attributes], **self._schema.referring}
        states = [copy.state(object_id) for object_id in self._lookups]
        proven = all(state is not None and state.proven for state in states)
        return proven and all(copy.holds(object_id, slugs[object_id]) for object_id in self._lookups)

    def _fill_from(self, copy: LocalCopy) -> None:
        object_id = self._schema.object_id
        for one, lookup in self._lookups.items():
            state = copy.state(one)
            lookup.as_of = (state.newest or state.as_of) if state is not None else 0
        members = self._db.execute("SELECT given, loses FROM member").fetchall()
        for given, _ in members:
            if (record := copy.record(object_id, given)) is not None:
                self.take(object_id, record)
        self._look_for_missing(partial(self._take_all, object_id))
        losers = [given for given, loses in members if loses]
        for at in range(0, len(losers), MANY):
            for found in copy.referring_to(object_id, losers[at : at + MANY]):
                self.take(found.object_id, found.record)

    def _fill_from_service(self) -> None:
        for object_id, lookup in self._lookups.items():
            newest = lookup.begin()
            see = partial(self._take_all, object_id)
            if object_id in self._schema.referring and not self._ask(lookup, newest, see):
                lookup.price("reading all records to find those that refer to the merged ones,", None, newest)
                with SeenIds() as seen:
                    for page in scan(lookup.lister, Listing(object_id), seen):
                        see(page)
                if object_id == self._schema.object_id:
                    self._look_for_missing(see)
            elif object_id == self._schema.object_id:
                self._fetch_members(see)

    def _ask(self, lookup: Lookup, newest: Page[Record], see: RecordSink) -> bool:
        """Find the references to losers with filters, if that is cheap. Return whether `see` received all of them."""
        slugs = self._schema.referring[lookup.object_id]
        losers = [row[0] for row in self._db.execute("SELECT given FROM member WHERE loses")]
        is_own = lookup.object_id == self._schema.object_id
        if not asks(slugs, losers, len(self._ids) if is_own else 0, newest.total):
            return False
        return ReferenceQuestions(self._service, lookup.object_id, newest).ask(slugs, losers, see)

    def refresh(self) -> None:
        """Read the records changed since. Deletions show only when a record is written. Raises read errors."""
        for object_id, lookup in self._lookups.items():
            see = partial(self._take_all, object_id)
            if not lookup.refresh(see) and object_id == self._schema.object_id:
                self._fetch_members(see)

    def read_activities(self) -> None:
        """Read all activities and keep those that name a loser. Raises read errors."""
        for page in all_activities(self._service):
            for activity in page:
                named = [one for one in named_records(activity) if self._loses(one)]
                self._db.execute("DELETE FROM names WHERE activity = ?", (activity.id,))
                if named:
                    links = {"id": activity.id, **{name: activity.wire.get(name) or [] for name in LINKS}}
                    self._db.execute("INSERT OR REPLACE INTO activity VALUES (?, ?)", (activity.id, jsontext.dumps(links)))
                    self._db.executemany("INSERT OR IGNORE INTO names VALUES (?, ?)", ((one, activity.id) for one in named))

    def member(self, record_id: str) -> dict[str, Any] | None:
        row = self._db.execute("SELECT data FROM member WHERE id = ?", (record_id.lower(),)).fetchone()
        return None if row is None or row[0] is None else jsontext.loads(row[0])

    def around(self, survivor: str, losers: Sequence[str]) -> Surroundings:
        """Return the records and activities around a group."""
        members = {one.lower(): self.member(one) or {} for one in (survivor, *losers)}
        holders: dict[str, tuple[str, str, Mapping[str, Any]]] = {}
        activities: dict[str, Mapping[str, Any]] = {}
        for loser in losers:
            query = "SELECT holder.id, object_id, data FROM refers JOIN holder ON holder.id = holder WHERE target = ?"
            for record_id, object_id, data in self._db.execute(query, (loser.lower(),)):
                holders[record_id] = (object_id, record_id, jsontext.loads(data))
            query = "SELECT activity.id, links FROM names JOIN activity ON activity.id = activity WHERE target = ?"
            for activity_id, links in self._db.execute(query, (loser.lower(),)):
                activities[activity_id] = jsontext.loads(links)
        return Surroundings(members, list(holders.values()), list(activities.values()))

    def still_named(self) -> Iterator[str]:
        """Yield the losers that a record or activity still refers to."""
        yield from (row[0] for row in self._db.execute("SELECT target FROM refers UNION SELECT target FROM names ORDER BY 1").fetchall())

    def take(self, object_id: str, record: Record) -> None:
        record_id = record.id.lower()
        if object_id == self._schema.object_id:
            self._db.execute("UPDATE member SET data = ? WHERE id = ?", (jsontext.dumps(record.data), record_id))
        slugs = self._schema.referring.get(object_id)
        if not slugs:
            return
        targets = {one for slug in slugs for one in reference_ids(record.data.get(slug)) if self._loses(one)}
        self._db.execute("DELETE FROM refers WHERE holder = ?", (record_id,))
        if targets:
            self._db.execute("INSERT OR REPLACE INTO holder VALUES (?, ?, ?)", (record_id, object_id, jsontext.dumps(record.data)))
            self._db.executemany("INSERT OR IGNORE INTO refers VALUES (?, ?)", ((one, record_id) for one in targets))

    def _take_all(self, object_id: str, records: Iterable[Record]) -> None:
        for record in records:
            self.take(object_id, record)

    def _loses(self, record_id: str) -> bool:
        return self._db.execute("SELECT 1 FROM member WHERE id = ? AND loses", (record_id,)).fetchone() is not None

    def _look_for_missing(self, see: RecordSink) -> None:
        """Read missing records by id. A list alone never proves that a record is gone."""
        missing = [row[0] for row in self._db.execute("SELECT id FROM member WHERE data IS NULL").fetchall()]
        for record_id in missing:
            with suppress(NotFoundError):
                see([self._service.get_record(self._schema.object_id, record_id)])
