"""The context of one run of sending, and what crmctl knows of its rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, TypeVar

from crmctl.bulk_context import Interrupt, Progress
from crmctl.client.crm import Crm
from crmctl.client.session import AttemptObserver
from crmctl.clock import Backoff, Clock
from crmctl.files.validation import Entry
from crmctl.frozen import frozen
from crmctl.match.record_match import Known, Twins
from crmctl.models.resources import BULK_LIMIT, BulkResult
from crmctl.read.read_back import Reader
from crmctl.write.database import MAY_BE_THERE
from crmctl.write.journal import DUPLICATE, Journal

if TYPE_CHECKING:
    from crmctl.client.answers import Page
    from crmctl.models.resources import Record


PATIENCE = Backoff(first=1.0)

ATTEMPTS = 4
"""Most attempts of a request while its outcome is unknown."""

T = TypeVar("T")

AS_OF = "keys as of"
"""Journal fact: a moment of the service, in microseconds, before which crmctl saw every change."""

WITHOUT_EFFECT = "the service answered that it updated the record, which still holds its old values"

SETTLE_SECONDS = 120.0
"""How many seconds after the send a missing row may still appear."""


def samples(rows: Sequence[T]) -> Sequence[T]:
    """Return the last, the first and the middle one of these rows, as far as they differ."""
    return [rows[place] for place in dict.fromkeys([len(rows) - 1, 0, len(rows) // 2])] if rows else []


def write_requests(records: int) -> int:
    """Return the number of requests that update or delete this many records: crmctl reads one record after each."""
    return 2 * -(-records // BULK_LIMIT)


WriteBatch = Callable[[str, Sequence[bytes], AttemptObserver], BulkResult]
"""Writes the records of one batch into an object. Jobs that delete or edit supply their own."""


class SentRows:
    """Valid rows of a job as sent, in input order. Can be read any number of times."""

    def __init__(self, entries: Callable[[], Iterable[Entry]]) -> None:
        self._entries = entries

    def since(self, ordinal: int) -> Iterator[Entry]:
        return (entry for entry in self._entries() if entry.ordinal >= ordinal)


@frozen
class DeliveryOptions:
    """Options of one run.

    `max_failures`: stop after this many refused rows. `settle`: seconds to watch rows in doubt. `capture_ids`: learn the ids of created
    records.
    """

    concurrency: int = 2
    max_rows: int = BULK_LIMIT
    max_failures: int | None = None
    settle: float = SETTLE_SECONDS
    capture_ids: bool = False
    settle_only: bool = False
    """Only settle rows in doubt. Absent rows are abandoned, not sent again."""
    trusts_lists: bool = False
    """Rows in doubt since an earlier run are absent if settled lists do not show them, even if nothing proves the lists current."""


@frozen
class SendContext:
    """One run of sending the rows of one journal."""

    service: Crm
    journal: Journal
    options: DeliveryOptions
    clock: Clock
    progress: Progress
    interrupt: Interrupt = field(default_factory=Interrupt, kw_only=True)
    newest: Callable[[], Page[Record] | None] = field(default=lambda: None, kw_only=True)
    """Returns the records changed last, if they were just read."""
    write: WriteBatch | None = field(default=None, kw_only=True)
    """Writes a batch in place of the bulk-write request."""

    def write_batch(self, records: Sequence[bytes], watch: AttemptObserver) -> BulkResult:
        header = self.journal.header
        if self.write is not None:
            return self.write(header.object_id, records, watch)
        mode = "create" if header.mode == "create" else "upsert"
        return self.service.bulk_write(header.object_id, records, mode=mode, watch=watch)

    def reader(self) -> Reader:
        """Return a reader of the job's object. It counts its requests and stops waiting after an interrupt."""
        return Reader(self.service, self.journal.header.object_id, lambda: self.interrupt.requested, note=self.progress.note)


class Stopped(Exception):
    """Tells a sender to stop. Not an error."""


Alike = Callable[[Collection[str]], Mapping[str, Iterable[tuple[str, int]]]]
"""Returns form and ordinal of the job's other rows that have the given keys."""


def known(journal: Journal, entries: Sequence[Entry], alike: Alike) -> Known:
    """Return earlier findings about the records that may match these entries, which are in input order."""
    rows = journal.rows(entries[0].ordinal, entries[-1].ordinal) if entries else {}
    names = {entry.ordinal: name for entry in entries if (row := rows.get(entry.ordinal)) and (name := row.record_id) is not None}
    return Known(lambda keys: {key: _twins(journal, rows) for key, rows in alike(keys).items()}, names, further_records(journal))


def further_records(journal: Journal) -> frozenset[str]:
    """Return the surplus records of rows that exist twice."""
    return frozenset(journal.kept(DUPLICATE))


def _twins(journal: Journal, rows: Iterable[tuple[str, int]]) -> dict[str, Twins]:
    names: dict[str, list[str | None]] = defaultdict(list)
    for form, ordinal in rows:
        entry = journal.row(ordinal)
        if entry is not None and entry.state in MAY_BE_THERE:
            names[form].append(entry.record_id)
    return {form: Twins(frozenset(filter(None, ids)), ids.count(None)) for form, ids in names.items()}
