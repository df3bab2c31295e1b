"""The records of many ids, as they are now, with few requests: one by one, or all records of the object in one pass. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple

from crmctl.bulk.read.read_back import Reader
from crmctl.bulk.read.seen_ids import SeenIds
from crmctl.bulk.read.sorted_lists import Listing
from crmctl.bulk.spill import Spill
from crmctl.client.record_lists import Lister
from crmctl.errors import NotFoundError
from crmctl.models import jsontext
from crmctl.models.records import PAGE_LIMIT, Record

PAGE_STEP = PAGE_LIMIT - 1
"""New records a page brings: neighbouring pages share one."""

FEW = 3
"""So few records are asked for without looking how many there are."""


class Cost(NamedTuple):
    """How many requests it takes, about, to read some records, and whether all records of the object are read for it."""

    requests: int
    as_a_whole: bool


def reading_cost(lister: Lister, object_id: str, count: int) -> Cost:
    """The cheaper way to read `count` records; takes one request to find out. Raises what the call raises."""
    if count <= FEW:
        return Cost(count, as_a_whole=False)
    page = lister.list_records(object_id, sort="created_at", order="asc", limit=1, offset=PAGE_STEP * count)
    total = page.total if page.total is not None else PAGE_STEP * (count + bool(page.items))
    pages = -(-total // PAGE_STEP)
    return Cost(min(count, pages), as_a_whole=pages < count)


def fetch(reader: Reader, wanted: SeenIds, tell: Callable[[Cost], None] = lambda _: None) -> Iterator[list[Record]]:
    """The records of these ids (in lower case), in pages; those that do not come are not there. `tell` hears what that takes before.

    That a record is missing is never concluded from one reading of a list: it is asked for by itself, or missing from two. Raises what
    reading raises.
    """
    with SeenIds() as found:
        cost = reading_cost(reader, reader.object_id, len(wanted)) if len(wanted) else Cost(0, as_a_whole=False)
        tell(cost._replace(requests=cost.requests + 2) if cost.as_a_whole else cost)  # a complete reading looks at both ends
        rounds = 2 if cost.as_a_whole else 0
        for _ in range(rounds):
            before = reader.requests
            yield from _among_all(reader, wanted, found)
            if len(wanted) - len(found) <= reader.requests - before:
                break
        else:
            if rounds:
                return
        for chunk in wanted.chunks(PAGE_LIMIT):
            yield from ([record] for record_id in chunk if record_id not in found and (record := _one(reader, record_id)) is not None)


class AwaitedRecords(Spill):
    """Records that are to be read, each with the JSON value that is kept until it comes."""

    TABLES = "CREATE TABLE awaited (id TEXT PRIMARY KEY, kept TEXT NOT NULL) WITHOUT ROWID"

    def __init__(self) -> None:
        super().__init__()
        self._ids = SeenIds()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ids.__exit__(kind, error, trace)
        super().__exit__(kind, error, trace)

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, record_id: str, kept: Any) -> None:
        """The first value of an id counts."""
        if self._ids.add(record_id.lower()):
            self._db.execute("INSERT INTO awaited VALUES (?, ?)", (record_id.lower(), jsontext.dumps(kept)))

    def pages(self, reader: Reader) -> Iterator[list[tuple[Any, Record]]]:
        """Every record that is there, with its value, as `fetch` reads them."""
        for page in fetch(reader, self._ids):
            yield [(self._kept(record), record) for record in page]

    def _kept(self, record: Record) -> Any:
        return jsontext.loads(self._db.execute("SELECT kept FROM awaited WHERE id = ?", (record.id.lower(),)).fetchone()[0])


def _among_all(reader: Reader, wanted: SeenIds, found: SeenIds) -> Iterator[list[Record]]:
    from crmctl.bulk.read.full_scan import ScanStatistics, scan

    with SeenIds() as seen:
        for page in scan(reader, Listing(reader.object_id), seen, ScanStatistics()):
            if mine := [record for record in page if (record_id := record.id.lower()) in wanted and found.add(record_id)]:
                yield mine


def _one(reader: Reader, record_id: str) -> Record | None:
    try:
        return reader.record(record_id)
    except NotFoundError:
        return None
