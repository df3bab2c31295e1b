"""Read all records of an object, the newest records, or records by id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple, Self, Unpack

from crmctl.bulk_context import Progress, showing
from crmctl.client.answers import ListQuery, Page, iterate, may_count_page
from crmctl.client.directory import Lister, ReadService
from crmctl.errors import CrmctlError, NotFoundError, RejectedError, ServiceError
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import PAGE_LIMIT, Activity, Record
from crmctl.read.read_back import Reader
from crmctl.read.stable_pages import AnchoredPass, Listing, NoProgress, PassStatistics, Position, SeenIds, Unsorted, cut_off


@dataclass
class SweepState:
    """The progress of a sweep. `closing`: position of the pass from the newest record; `by_time`: pages are sorted by time."""

    position: Position
    closing: Position | None = None
    by_time: bool = True
    rows: int = 0

    @classmethod
    def from_document(cls, document: Json) -> Self:
        closing = document["closing"] and Position(**document["closing"])
        return cls(**{**document, "position": Position(**document["position"]), "closing": closing})


class Sweep:
    """One full read. While the caller holds a page of `pages`, `state` is the place to resume after it."""

    def __init__(
        self,
        lister: Lister,
        listing: Listing,
        statistics: PassStatistics,
        state: SweepState | None = None,
    ) -> None:
        self.state = state or SweepState(Position())
        self._lister = lister
        self._wanted = listing
        self._statistics = statistics

    def pages(self) -> Iterator[list[Record]]:
        """Yield every page. Records repeat where pages overlap, and some may be deleted already.

        Raises ServiceError `no_progress` if the service ignores `offset`, and `offset_capped` if it lists only a limited depth.
        """
        failure: CrmctlError | None = None
        if self.state.closing is None:
            try:
                yield from self._forwards()
            except (NoProgress, RejectedError) as error:
                if self.state.position.key is None or not self.state.by_time:
                    raise
                failure = error
        # A list cut at some depth looks complete: check that the newest records join the ones read.
        if self.state.by_time and (failure or self.state.closing or self.state.rows >= PAGE_LIMIT):
            yield from self._backwards(failure)

    def _forwards(self) -> Iterator[list[Record]]:
        while True:
            listing = replace(self._wanted, by_time=self.state.by_time)
            try:
                yield from self._run(AnchoredPass(self._lister, listing, self._statistics, self.state.position))
                return
            except Unsorted:
                if not self.state.by_time:
                    raise
                self.state = SweepState(Position(), by_time=False)  # read as one group

    def _backwards(self, failure: CrmctlError | None) -> Iterator[list[Record]]:
        mark = self.state.position
        if mark.key is None:
            return
        self.state.closing = self.state.closing or Position(rebases=False)
        listing = replace(self._wanted, descending=True, until=mark.key + 1)
        closing = AnchoredPass(self._lister, listing, self._statistics, self.state.closing)
        try:
            yield from self._run(closing)
        except (NoProgress, RejectedError) as error:
            raise _capped(failure or error) from error
        if not closing.is_beyond and closing.position.key is not None:
            raise _capped(failure)

    def _run(self, reading: AnchoredPass) -> Iterator[list[Record]]:
        for rows in reading.pages():
            self.state.rows += len(rows)
            yield rows


def scan(lister: Lister, listing: Listing) -> Iterator[list[Record]]:
    """Yield every matching record that exists from start to end of the scan, each once. Raises the errors of a sweep."""
    with SeenIds() as seen:
        for rows in Sweep(lister, listing, PassStatistics()).pages():
            if new := [row for row in rows if seen.add(row.id)]:
                yield new


def _capped(failure: CrmctlError | None) -> ServiceError:
    if isinstance(failure, NoProgress):
        return failure
    reason = "" if failure is None else f", from neither end: {failure.message}"
    return cut_off(reason)


PAGE_STEP = PAGE_LIMIT - 1
"""New records per page: neighbouring pages overlap by one."""

FEW = 3
"""Up to this many records are read one by one, without a request for the total."""


MOST_CHECKED = 100
"""Number of records read by themselves to test whether the lists are current."""


class Cost(NamedTuple):
    """Approximate number of requests to read some records, and whether crmctl reads the whole object."""

    requests: int
    as_a_whole: bool


def announced(tell: Callable[[str], None], purpose: str, most: int = 10) -> Callable[[Cost], None]:
    """Return a function that tells the cost of a purpose if it is more than `most` requests."""

    def announce(cost: Cost) -> None:
        if cost.requests > most:
            tell(f"{purpose}: about {cost.requests:,} requests")

    return announce


def reading_cost(lister: Lister, object_id: str, count: int) -> Cost:
    """Return the cheaper way to read `count` records. Sends at most one request. Raises the errors of the call."""
    if count <= FEW:
        return Cost(count, as_a_whole=False)
    page = lister.list_records(object_id, sort="created_at", order="asc", limit=1, offset=PAGE_STEP * count)
    return _cheaper(count, page.total if page.total is not None else PAGE_STEP * (count + bool(page.items)))


def _cheaper(count: int, total: int) -> Cost:
    pages = -(-total // PAGE_STEP)
    return Cost(min(count, pages), as_a_whole=pages < count)


def fetch(
    reader: Reader, open_ids: SeenIds, tell: Callable[[Cost], None] = lambda _: None, changed_last: Callable[[Record], bool] | None = None
) -> Iterator[list[Record]]:
    """Yield the records of these ids (in lower case), in pages. Skips ids without a record.

    With `changed_last`, read the list of the records changed last before any other, as long as half of each page are these records, and
    take those that it accepts. `tell` receives the cost of the rest. A record is missing only if a request for it says so, or if two full
    reads lack it and requests for MOST_CHECKED such records say so. Raises the errors of reading.
    """
    with SeenIds() as fetched:
        total = None
        if changed_last is not None and len(open_ids) > FEW and not reader.singly:
            total = yield from _changed_last(reader, open_ids, fetched, changed_last)
        count = len(open_ids) - len(fetched)
        if count > FEW and not reader.singly:
            cost = reading_cost(reader, reader.object_id, count) if total is None else _cheaper(count, total)
        else:
            cost = Cost(count, as_a_whole=False)
        tell(cost._replace(requests=cost.requests + 2) if cost.as_a_whole else cost)  # a full read looks at both ends
        is_read_twice = cost.as_a_whole
        for _ in range(2 if is_read_twice else 0):
            before = reader.requests
            for page in scan(reader, Listing(reader.object_id)):
                if mine := [record for record in page if (record_id := record.id.lower()) in open_ids and fetched.add(record_id)]:
                    yield mine
            if len(open_ids) - len(fetched) <= reader.requests - before:
                is_read_twice = False
                break

        def unlisted() -> Iterator[str]:
            return (record_id for chunk in open_ids.chunks(PAGE_LIMIT) for record_id in chunk if record_id not in fetched)

        def is_wanted(record: Record | None) -> bool:
            return record is not None and record.id.lower() in open_ids

        if is_read_twice:
            records = read_singly(reader, unlisted, len(open_ids) - len(fetched), is_wanted)
        else:
            records = (read_one(reader, record_id) for record_id in unlisted())
        yield from ([record] for record in filter(is_wanted, records) if record is not None)


def read_singly(
    reader: Reader, ids: Callable[[], Iterable[str]], count: int, contradicts: Callable[[Record | None], bool]
) -> Iterator[Record | None]:
    """Read MOST_CHECKED of `count` records by themselves, evenly spread, and the others only if one of these contradicts the lists."""
    step = max(1, -(-count // MOST_CHECKED))
    is_doubtful = False
    for number, record_id in enumerate(ids()):
        if number % step == 0:
            record = read_one(reader, record_id)
            is_doubtful = is_doubtful or contradicts(record)
            yield record
    if is_doubtful:
        yield from (read_one(reader, record_id) for number, record_id in enumerate(ids()) if number % step)


def find(reader: Reader, ids: Iterable[str]) -> Iterator[Record]:
    """Yield the existing records of these ids, ignoring case. Raises the errors of reading."""
    with SeenIds(map(str.lower, ids)) as open_ids:
        yield from chain.from_iterable(fetch(reader, open_ids))


def _changed_last(
    reader: Reader, open_ids: SeenIds, fetched: SeenIds, accepts: Callable[[Record], bool]
) -> Generator[list[Record], None, int | None]:
    """Yield records from the list of those changed last, and return the number of all records, if known."""
    offset = 0
    while len(fetched) < len(open_ids):
        page = reader.list_records(reader.object_id, sort="updated_at", order="desc", limit=PAGE_LIMIT, offset=offset)
        records = [
            record for record in page.items if (record_id := record.id.lower()) in open_ids and accepts(record) and fetched.add(record_id)
        ]
        if records:
            yield records
        offset += len(page.items)
        if not records or 2 * len(records) < len(page.items):
            break
    return page.total


def read_one(reader: Reader, record_id: str) -> Record | None:
    """Return a record, None if there is none. Raises other errors of reading."""
    try:
        return reader.record(record_id)
    except NotFoundError:
        return None


class KnownRecords(SeenIds):
    """An ordered set of ids in lower case, with the records of those that exist."""

    TABLES = "CREATE TABLE seen (no INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, document TEXT)"

    def keep(self, records: Iterable[Record]) -> None:
        for record in records:
            self.add(record.id.lower())
            self._db.execute("UPDATE seen SET document = ? WHERE id = ?", (jsontext.dumps(record.wire), record.id.lower()))

    def get(self, record_id: str) -> Record | None:
        """Return the record of an id, ignoring case; None if it is missing."""
        return next(self._records("id = ?", record_id.lower()), None)

    @property
    def found(self) -> int:
        return int(self._db.execute("SELECT COUNT(document) FROM seen").fetchone()[0])

    def ids(self) -> Iterator[str]:
        """Yield all ids, in the service's spelling where the record was read."""
        query = "SELECT COALESCE(json_extract(document, '$.id'), id) FROM seen ORDER BY no"
        return (record_id for (record_id,) in self._db.execute(query))

    def __iter__(self) -> Iterator[Record]:
        return self._records("TRUE")

    def _records(self, condition: str, *values: str) -> Iterator[Record]:
        query = f"SELECT document FROM seen WHERE document IS NOT NULL AND {condition} ORDER BY no"
        return (Record.parse(jsontext.loads(document)) for (document,) in self._db.execute(query, values))


@contextmanager
def read_known(reader: Reader, record_ids: Iterable[str], progress: Progress) -> Iterator[KnownRecords]:
    with KnownRecords(map(str.lower, record_ids)) as records:
        with showing(progress, "reading", len(records), PAGE_LIMIT):
            for page in fetch(reader, records):
                records.keep(page)
                progress.advance(len(page))
        yield records


PASSES = 3
"""Most reads of the list if other clients change it meanwhile."""

LINKS = ("linkedRecords", "participants")

PERSON = "person"


def all_activities(lister: ReadService) -> Iterator[list[Activity]]:
    """Yield every activity, in pages. If the list changed meanwhile, read it again, so activities may repeat."""
    for _ in range(PASSES):
        doubts: list[str] = []
        pages = iterate(lambda limit, offset: lister.list_activities(limit=limit, offset=offset), on_doubt=doubts.append)
        yield from (page.items for page in pages)
        if not doubts:
            return


def named_records(activity: Activity) -> set[str]:
    """Return the ids, in lower case, of all records that an activity names."""
    linked, participants = (activity.wire.get(name) or () for name in LINKS)
    ids = [link.get("recordId") for link in linked if isinstance(link, dict)]
    ids += [person.get("id") for person in participants if isinstance(person, dict) and person.get("type") == PERSON]
    return {record_id.lower() for record_id in ids if isinstance(record_id, str)}


def swap_links(activity: Mapping[str, Any], away: Mapping[str, str]) -> Json:
    """Return the activity's link lists that change when the ids in `away` are replaced."""
    change = {}
    for name in LINKS:
        links = activity.get(name) or []
        moved = _each_once([_swapped(link, away) for link in links])
        if moved != _each_once(links):
            change[name] = moved
    return change


def _swapped(link: Any, away: Mapping[str, str]) -> Any:
    if not isinstance(link, Mapping):
        return link
    key = "recordId" if "recordId" in link else "id" if link.get("type") == PERSON else None
    linked_id = link.get(key) if key else None
    return {**link, str(key): away[linked_id.lower()]} if isinstance(linked_id, str) and linked_id.lower() in away else link


def _each_once(links: Sequence[Any]) -> list[Any]:
    return list({jsontext.dumps(link, sort_keys=True): link for link in links}.values())


def count_links(lister: ReadService) -> Counter[str]:
    """Return the number of activities that name each record, by id in lower case."""
    seen: set[str] = set()
    links: Counter[str] = Counter()
    for page in all_activities(lister):
        for activity in page:
            if activity.id not in seen:
                seen.add(activity.id)
                links.update(named_records(activity))
    return links


class CountedReads:
    """Counts the requests of `service`. `shown` removes values the user may not see; `total` and `date` come from the last page;
    a total that may be the length of the page counts as none."""

    def __init__(self, service: ReadService, shown: Callable[[Record], Record] = lambda record: record) -> None:
        self.requests = 0
        self.total: int | None = None
        self.date: str | None = None
        self._service = service
        self._shown = shown

    def list_records(self, object_id: str, **query: Unpack[ListQuery]) -> Page[Record]:
        self.requests += 1
        page = self._service.list_records(object_id, **query)
        self.total, self.date = None if may_count_page(page, query.get("limit", 50)) else page.total, page.date
        return replace(page, items=[self._shown(record) for record in page.items], total=self.total)

    def get_record(self, object_id: str, record_id: str) -> Record:
        self.requests += 1
        return self._shown(self._service.get_record(object_id, record_id))

    def list_activities(
        self, *, record_id: str | None = None, object_id: str | None = None, limit: int = 50, offset: int = 0
    ) -> Page[Activity]:
        self.requests += 1
        return self._service.list_activities(record_id=record_id, object_id=object_id, limit=limit, offset=offset)
