"""Records as they are now, for an undo that looks at very many: of an object of which many are wanted all are read at once and kept up with
what changes, the others are asked for one by one. On disk, so that memory stays flat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from crmctl.bulk.match.key_lookups import Lookup
from crmctl.bulk.read.counted_reads import CountedReads, ReadService
from crmctl.bulk.read.read_back import Reader
from crmctl.bulk.read.records_by_id import fetch, reading_cost
from crmctl.bulk.read.seen_ids import SeenIds
from crmctl.bulk.spill import Spill
from crmctl.errors import NotFoundError
from crmctl.models import jsontext
from crmctl.models.records import PAGE_LIMIT, Record
from crmctl.models.timestamps import micros_of


class CurrentRecords(Spill):
    """`want` records first, then `fill`; `refresh` before they are written."""

    TABLES = "CREATE TABLE current (id TEXT PRIMARY KEY, data TEXT NOT NULL) WITHOUT ROWID"
    CACHE_KIB = 16_000

    def __init__(self, service: ReadService) -> None:
        super().__init__()
        self._service = CountedReads(service)
        self._wanted: dict[str, SeenIds] = {}
        self._whole: dict[str, Lookup] = {}

    def __exit__(self, *error: Any) -> None:
        for ids in self._wanted.values():
            ids.close()
        super().__exit__(*error)

    @property
    def requests(self) -> int:
        return self._service.requests

    def want(self, object_id: str, record_id: str) -> None:
        self._wanted.setdefault(object_id, SeenIds()).add(record_id.lower())

    def fill(self) -> None:
        """Raises what reading raises."""
        for object_id, ids in self._wanted.items():
            if reading_cost(self._service, object_id, len(ids)).as_a_whole:
                lookup = Lookup(self._service, object_id)
                newest = self._service.list_records(object_id, sort="updated_at", order="desc", limit=PAGE_LIMIT)
                lookup.as_of = max((micros_of(record.updated_at) or 0 for record in newest.items), default=0)
                for page in fetch(Reader(self._service, object_id), ids):
                    self._take(page)
                self._whole[object_id] = lookup

    def refresh(self) -> None:
        """Take in what has changed since; where the service cannot say, each record is asked for from here on."""
        for object_id, lookup in list(self._whole.items()):
            if not lookup.refresh(_Sink(self, self._wanted[object_id])):
                del self._whole[object_id]

    def data(self, object_id: str, record_id: str) -> Mapping[str, Any] | None:
        """What a record holds; None where it is not there."""
        if object_id in self._whole:
            row = self._db.execute("SELECT data FROM current WHERE id = ?", (record_id.lower(),)).fetchone()
            if row is not None:
                held: Mapping[str, Any] = jsontext.loads(row[0])
                return held
        try:
            return self._service.get_record(object_id, record_id).data
        except NotFoundError:
            return None

    def _take(self, records: Iterable[Record]) -> None:
        rows = ((record.id.lower(), jsontext.dumps(record.data)) for record in records)
        self._db.executemany("INSERT OR REPLACE INTO current VALUES (?, ?)", rows)


class _Sink:
    """Hands over the records that are wanted."""

    def __init__(self, known: CurrentRecords, wanted: SeenIds) -> None:
        self._known = known
        self._wanted = wanted

    def see(self, records: Iterable[Record], /) -> None:
        self._known._take(record for record in records if record.id.lower() in self._wanted)
