"""The rows of a job that changed records: what they wrote, what was there before, and how the records stand now. Reads, writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from crmctl.bulk.journal.journal import Journal, RowEntry
from crmctl.bulk.journal.states import RowState
from crmctl.bulk.match.key_lookups import Lookup
from crmctl.bulk.match.reference_values import as_sent
from crmctl.bulk.read.read_back import Reader
from crmctl.bulk.read.records_by_id import Cost, fetch
from crmctl.bulk.read.seen_ids import SeenIds
from crmctl.bulk.rows.batches import Entry
from crmctl.bulk.spill import Spill
from crmctl.bulk.undo.update_status import UpdateStatus, standing
from crmctl.client.http.session import encode_json
from crmctl.models import jsontext
from crmctl.models.attributes import Attribute
from crmctl.models.records import Record
from crmctl.models.timestamps import micros_of

CHUNK_ROWS = 500

_TABLE = """
CREATE TABLE one (
    id TEXT PRIMARY KEY, ordinal INTEGER NOT NULL, given TEXT NOT NULL, sent TEXT NOT NULL, before TEXT NOT NULL, standing TEXT,
    changed TEXT NOT NULL DEFAULT '[]'
) WITHOUT ROWID;
CREATE INDEX one_standing ON one (standing, ordinal);
"""


class UndoConflict(NamedTuple):
    """A row whose record somebody changed since, and in which attributes."""

    ordinal: int
    id: str
    attributes: Sequence[str]


class Updates(Spill):
    """`lost`: rows of which nothing was kept. `unlinked` says
    which rows failed only because they could not be linked: they were written."""

    TABLES = _TABLE

    def __init__(self, attributes: Sequence[Attribute], unlinked: Callable[[int], bool] = lambda _: False) -> None:
        super().__init__()
        self._attributes: Mapping[str, Attribute] = {attribute.slug: attribute for attribute in attributes}
        self._unlinked = unlinked
        self.lost = 0
        self._as_of = 0

    def gather(self, journal: Journal, again: Callable[[], Iterable[Entry]]) -> None:
        """Take the updated rows of the job that are not undone yet."""
        entries = iter(again())
        while chunk := list(islice(entries, CHUNK_ROWS)):
            first, last = chunk[0].ordinal, chunk[-1].ordinal
            known, images = journal.rows(first, last), journal.before(first, last)
            for entry in chunk:
                row = known.get(entry.ordinal)
                if entry.id is None or row is None or not self._is_written(row, entry.ordinal) or journal.is_undone(entry.id):
                    continue
                if (before := images.get(entry.ordinal)) is None:
                    self.lost += 1
                else:
                    sent = entry.data
                    overwritten = jsontext.dumps({slug: value for slug, value in before.items() if slug in sent})
                    values = (entry.id.lower(), entry.ordinal, entry.id, jsontext.dumps(sent), overwritten)
                    self._db.execute("INSERT OR IGNORE INTO one (id, ordinal, given, sent, before) VALUES (?, ?, ?, ?, ?)", values)

    def _is_written(self, row: RowEntry, ordinal: int) -> bool:
        return row.state is RowState.UPDATED or (row.state is RowState.FAILED and self._unlinked(ordinal))

    def read(self, reader: Reader, tell: Callable[[Cost], None] = lambda _: None) -> None:
        """See how every record stands; `tell` hears before what that takes. Raises what reading raises."""
        with SeenIds() as ids:
            for (record_id,) in self._db.execute("SELECT id FROM one ORDER BY ordinal"):
                ids.add(record_id)
            if not len(ids):
                return
            newest = reader.list_records(reader.object_id, sort="updated_at", order="desc", limit=1).items
            self._as_of = max((micros_of(record.updated_at) or 0 for record in newest), default=0)
            for page in fetch(reader, ids, tell):
                self.see(page)

    def look_again(self, reader: Reader) -> None:
        """See what has changed since `read`: it takes a moment to say yes."""
        lookup = Lookup(reader, reader.object_id, as_of=self._as_of)
        lookup.refresh(self)

    def see(self, records: Iterable[Record]) -> None:
        for record in records:
            found = self._db.execute("SELECT sent, before FROM one WHERE id = ?", (record.id.lower(),)).fetchone()
            if found is not None:
                sent, before = map(jsontext.loads, found)
                stands, changed = standing(sent, before, record.data, self._attributes)
                values = (stands, jsontext.dumps(changed), record.id.lower())
                self._db.execute("UPDATE one SET standing = ?, changed = ? WHERE id = ?", values)

    def count(self, stands: UpdateStatus | None) -> int:
        """How many records stand so; None: are gone."""
        return int(self._db.execute("SELECT COUNT(*) FROM one WHERE standing IS ?", (stands,)).fetchone()[0])

    def conflicts(self) -> Iterator[UndoConflict]:
        rows = self._db.execute("SELECT ordinal, given, changed FROM one WHERE standing = ? ORDER BY ordinal", (UpdateStatus.CHANGED,))
        return (UndoConflict(ordinal, record_id, jsontext.loads(changed)) for ordinal, record_id, changed in rows)

    def gone(self) -> Iterator[UndoConflict]:
        """Rows whose record somebody deleted."""
        rows = self._db.execute("SELECT ordinal, given FROM one WHERE standing IS NULL ORDER BY ordinal")
        return (UndoConflict(ordinal, record_id, ()) for ordinal, record_id in rows)

    def ids_back(self) -> Iterator[str]:
        """The records that are as they were already."""
        return (given for (given,) in self._db.execute("SELECT given FROM one WHERE standing = ?", (UpdateStatus.BACK,)))

    def to_put_back(self) -> Iterator[Entry]:
        """What has to be sent so that records are as they were."""
        rows = self._db.execute("SELECT ordinal, given, before FROM one WHERE standing = ? ORDER BY ordinal", (UpdateStatus.WROTE,))
        for ordinal, record_id, before in rows:
            data: dict[str, Any] = {slug: as_sent(self._attributes.get(slug), value) for slug, value in jsontext.loads(before).items()}
            yield Entry(ordinal, encode_json({"data": data, "id": record_id}), record_id)
