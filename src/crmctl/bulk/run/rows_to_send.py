"""The rows of an open job that are left to be sent, in input order; those in doubt are put together again and parked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from typing import TypeVar

from crmctl.bulk.journal.journal import Doubt, Journal
from crmctl.bulk.journal.states import BatchState
from crmctl.bulk.rows.batches import Batch, Entry
from crmctl.bulk.send.context import Rows
from crmctl.bulk.send.evidence import Sent
from crmctl.bulk.send.reconcile import Reconciler
from crmctl.errors import CrmctlError

R = TypeVar("R")

CHUNK_ROWS = 500


def rows_left(journal: Journal, rows: Rows, reconciler: Reconciler, last_row: int | None = None) -> Iterator[Entry]:
    """The rows to be sent, up to `last_row`: those that have an outcome are passed over, batches in doubt are put together again and
    parked."""
    doubts = {doubt.number: doubt for doubt in journal.doubts()}
    gathered: dict[int, list[Entry]] = {number: [] for number in doubts}
    control = journal.last_confirmed() if doubts else None
    shown: list[Entry] = []
    start = journal.first_open()
    found = rows.since(start if control is None else min(start, control[0]))
    for chunk in chunks(found if last_row is None else takewhile(lambda entry: entry.ordinal <= last_row, found)):
        first, last = chunk[0].ordinal, chunk[-1].ordinal
        taken = journal.taken(first, last)
        doubtful = journal.doubtful(first, last) if doubts else {}
        if not taken and not doubtful:
            yield from chunk
            continue
        for entry in chunk:
            number = doubtful.get(entry.ordinal)
            if number is not None:
                gathered[number].append(entry)
                if len(gathered[number]) == doubts[number].size:
                    _park(reconciler, doubts[number], gathered.pop(number))
            elif entry.ordinal not in taken:
                yield entry
            elif control is not None and control[0] <= entry.ordinal <= control[1]:
                shown.append(entry)
                if entry.ordinal == control[1]:
                    reconciler.confirm(shown, *control[2:])


def _park(reconciler: Reconciler, doubt: Doubt, entries: list[Entry]) -> None:
    batch = Batch(tuple(entries))
    if doubt.state is not BatchState.UNKNOWN and batch.digest != doubt.digest:
        raise CrmctlError(f"the rows of batch {doubt.number} are not what was sent", code="job_changed")
    reconciler.park(Sent(doubt.number, batch, doubt.sent_at, known_at=doubt.sent_at))


def chunks(rows: Iterable[R], size: int = CHUNK_ROWS) -> Iterator[list[R]]:
    iterator = iter(rows)
    while chunk := list(islice(iterator, size)):
        yield chunk
