"""The rows of an open job that are left to be sent, in input order, and those in doubt, put together again: handed to the delivery."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import TypeVar

from crmctl.bulk.journal.journal import Doubt, Journal
from crmctl.bulk.journal.states import BatchState, RowState
from crmctl.bulk.read.read_back import Baseline, Reader
from crmctl.bulk.rows.batches import Batch, Entry
from crmctl.bulk.run.lost_requests import LostRequests
from crmctl.bulk.send.context import Rows, SendContext
from crmctl.bulk.send.evidence import Sent
from crmctl.bulk.send.pipeline import Delivery
from crmctl.bulk.send.reconcile import Reconciler
from crmctl.errors import CrmctlError, DeniedError, RejectedError, ServiceError, StorageError
from crmctl.models.records import BULK_LIMIT

R = TypeVar("R")

CHUNK_ROWS = 500
LABELS = {"update": "updating", "delete": "deleting", "recreate": "creating again"}
"""What a progress bar says, by the kind of a job."""


def deliver(context: SendContext, rows: Rows) -> tuple[CrmctlError | None, Sequence[str]]:
    """Send the rows of an open job that are left, and settle those in doubt: the error that ended it early, and notes for the user."""
    said: list[str] = []
    try:
        for last in LostRequests(context, rows, said.append).parts():
            error, notes = _deliver_up_to(context, rows, last)
            if error is not None or context.interrupt.requested:
                return error, [*said, *notes]
        error, notes = _deliver_up_to(context, rows, None)
    except StorageError as failure:
        return failure, said
    return error, [*said, *notes]


def _deliver_up_to(context: SendContext, rows: Rows, last: int | None) -> tuple[CrmctlError | None, Sequence[str]]:
    """Send what is left, of the rows up to `last` where that is given."""
    journal = context.journal
    counts = journal.counts()
    left = counts[RowState.UNSENT] + counts[RowState.IN_DOUBT]
    if not left:
        return None, ()
    reader = context.reader()
    try:
        _take_baseline(context, reader)
    except CrmctlError as failure:
        return failure, ()
    reconciler = Reconciler(context, reader, lambda: rows.since(1))
    delivery = Delivery(context, reconciler)
    context.progress.start(LABELS.get(journal.header.kind, "importing"), left, BULK_LIMIT)
    try:
        reconciler.evidence.accepts_older_lists = last is not None
        delivery.run(_left(journal, rows, reconciler, last))
        counted = reconciler.evidence.verdict() if delivery.error is None and last is None else None
    finally:
        context.progress.finish()
        journal.add_effort(reader.requests, 0.0)
    return delivery.error, [*delivery.notes, *([counted] if counted else [])]


def _take_baseline(context: SendContext, reader: Reader) -> None:
    """Remember what is there before anything is sent. Without the right to read, doubts will stay doubts.

    It is part of the preparations, like reading the attributes, and not counted as a request of the job.
    """
    journal = context.journal
    if journal.has_sent or journal.recall("baseline") is not None or journal.header.kind in ("update", "delete"):
        return
    newest = context.newest.if_new(context.clock) if context.newest is not None else None
    try:
        known = Baseline.of_changed(newest) if newest is not None else None
        journal.remember("baseline", (known or Baseline.of(reader.page())).to_document())
    except (ServiceError, RejectedError):
        return
    except DeniedError as error:
        if error.status != 403:
            raise
    finally:
        reader.requests = 0


def _left(journal: Journal, rows: Rows, reconciler: Reconciler, last_row: int | None = None) -> Iterator[Entry]:
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
