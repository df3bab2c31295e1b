"""Records as they were read a moment ago, on disk: what a change of many starts from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from crmctl.bulk.progress import Progress
from crmctl.bulk.read.read_back import Reader
from crmctl.bulk.read.records_by_id import fetch
from crmctl.bulk.read.seen_ids import SeenIds
from crmctl.bulk.spill import Spill
from crmctl.models import jsontext
from crmctl.models.records import Record

CHUNK_ROWS = 500


class KnownRecords(Spill):
    """Records by id, in the order in which they came; of an id that is only asked for, whether it is there."""

    TABLES = "CREATE TABLE record (no INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, document TEXT)"

    def want(self, ids: Iterable[str]) -> None:
        """Ids whose records are still to come."""
        self._db.executemany("INSERT OR IGNORE INTO record (id) VALUES (?)", ((one.lower(),) for one in ids))

    def add(self, records: Iterable[Record]) -> None:
        rows = ((record.id.lower(), jsontext.dumps(record.wire)) for record in records)
        self._db.executemany(
            "INSERT INTO record (id, document) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET document = excluded.document", rows
        )

    def get(self, record_id: str) -> Record | None:
        """The record of an id, in any case; None for one that is not there."""
        found = self._db.execute("SELECT document FROM record WHERE id = ?", (record_id.lower(),)).fetchone()
        return Record.parse(jsontext.loads(found[0])) if found is not None and found[0] is not None else None

    def __len__(self) -> int:
        """How many ids there are."""
        return self._number("SELECT COUNT(*) FROM record")

    @property
    def found(self) -> int:
        """How many records are there."""
        return self._number("SELECT COUNT(*) FROM record WHERE document IS NOT NULL")

    def ids(self) -> Iterator[str]:
        """Every id, whether or not its record is there."""
        return (record_id for record_id, _ in self._rows())

    def missing(self) -> Iterator[str]:
        return (record_id for record_id, document in self._rows() if document is None)

    def __iter__(self) -> Iterator[Record]:
        return (Record.parse(jsontext.loads(document)) for _, document in self._rows() if document is not None)

    def _rows(self) -> Iterator[Sequence[str]]:
        last = 0
        query = "SELECT no, id, document FROM record WHERE no > ? ORDER BY no LIMIT ?"
        while rows := self._db.execute(query, (last, CHUNK_ROWS)).fetchall():
            last = rows[-1][0]
            yield from (row[1:] for row in rows)

    def _number(self, query: str) -> int:
        return int(self._db.execute(query).fetchone()[0])


def read_known(reader: Reader, wanted: Iterable[str], progress: Progress) -> KnownRecords:
    """The records of these ids as they are now. Raises what reading raises."""
    known = KnownRecords()
    with SeenIds() as ids:
        for one in wanted:
            ids.add(one.lower())
        progress.start("reading", len(ids))
        try:
            for chunk in ids.chunks(CHUNK_ROWS):
                known.want(chunk)
            for page in fetch(reader, ids):
                known.add(page)
                progress.advance(len(page))
        except BaseException:
            known.close()
            raise
        finally:
            progress.finish()
    return known
