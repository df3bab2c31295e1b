"""Taking back what a job did: created records are deleted, changed ones put back. What somebody has changed since stays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Protocol

from crmctl.bulk.context import BulkContext
from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.journal.states import JobKind, JobState, RowState
from crmctl.bulk.match.key_lookups import FEW
from crmctl.bulk.progress import Progress
from crmctl.bulk.read.read_back import Reader
from crmctl.bulk.read.records_by_id import fetch
from crmctl.bulk.read.seen_ids import SeenIds
from crmctl.bulk.rows.batches import Entry
from crmctl.bulk.run.created_ids import CreatedId, name_records
from crmctl.bulk.run.feed import FeedPlan, feed_of
from crmctl.bulk.run.request_limit import current_limit
from crmctl.bulk.send.context import ImportService
from crmctl.bulk.send.deletion import DeletedObject, Deleter, DeleteSummary, delete_records
from crmctl.bulk.undo.made_parents import Parents
from crmctl.bulk.undo.restore import Restored, Restorer
from crmctl.bulk.undo.update_status import UpdateStatus
from crmctl.bulk.undo.updates import Updates
from crmctl.bulk.undo.written import written_rows
from crmctl.bulk.usecases.recreate import Recreation, recreate_deleted
from crmctl.bulk.usecases.results import service_words
from crmctl.bulk.usecases.resume import reopen_finished
from crmctl.errors import CrmctlError, PartialError, UsageError
from crmctl.models.records import BULK_LIMIT, PAGE_LIMIT

LISTED = 1000
"""How many rows of a kind a report lists; the counts are exact."""

CHUNK_ROWS = 500

LEFT = {
    "failed": "refused by the service",
    "conflicts": "changed by somebody since, kept",
    "duplicates": "there a second time, kept: they may be somebody else's",
    "unknown": "not found, or not to be told from others",
    "gone": "deleted by somebody since",
    "updatesKept": "updates: what the records held before was not kept, so they stay",
    "parentsKept": "records that rows refer to: changed since, or still referred to, kept",
    "inDoubt": "in doubt: resume the job first",
}
"""What of a job may be left, in words."""


class UndoService(ImportService, Deleter, Protocol):
    """The calls of the client that an undo makes."""


@dataclass
class Listed:
    """Rows of one kind: all are counted, the first ones listed."""

    count: int = 0
    rows: list[Any] = field(default_factory=list)

    def add(self, row: Any) -> None:
        self.count += 1
        if len(self.rows) < LISTED:
            self.rows.append(row)


@dataclass
class Undo:
    """What an undo would do, or did.

    `found`: records to delete; `restorable`: records to put back; `back`: those that are as they were already. `edited` and `changed`:
    created and changed records that somebody changed since. `further`: records that are there besides those of the rows. `unknown`: created
    rows whose record is not found. `gone`: changed records that somebody deleted. `kept`: rows that changed records, and what those held
    before was not kept. `done`: records that earlier runs took back. `seconds`: how long it will take, about.
    """

    job: str
    object: str
    found: int = 0
    restorable: int = 0
    back: int = 0
    done: int = 0
    kept: int = 0
    in_doubt: int = 0
    seconds: float = 0.0
    carried_out: bool = False
    edited: Listed = field(default_factory=Listed)
    changed: Listed = field(default_factory=Listed)
    further: Listed = field(default_factory=Listed)
    unknown: Listed = field(default_factory=Listed)
    gone: Listed = field(default_factory=Listed)
    deleted: DeleteSummary | None = None
    restored: Restored | None = None
    parents: Parents | None = None

    @property
    def work(self) -> int:
        """How many records it changes."""
        return self.found + self.restorable + (self.parents.found if self.parents is not None else 0)

    @property
    def error(self) -> CrmctlError | None:
        """What ended it early."""
        errors = (run.error for run in (self.restored, self.deleted, self.parents) if run is not None)
        return next((error for error in errors if error is not None), None)

    @property
    def outcome(self) -> CrmctlError | None:
        """The error that says why not everything is taken back; None when all is, and before anything was done."""
        if not self.carried_out:
            return None
        if self.error is not None:
            self.error.hint = self.error.hint or f"crmctl bulk undo {self.job} goes on with it"
            return self.error
        if not self.left:
            return None
        hint = "crmctl bulk import keeps what updates overwrite with --key, or with --before-images yes" if self.kept else None
        said = ", ".join(f"{count:,} {LEFT[name]}" for name, count in self.left.items())
        reasons = [*(self.restored or Restored()).failed.values(), *(self.deleted or DeleteSummary(self.object)).refusals]
        return PartialError(f"not everything the job did was undone: {said}{service_words(reasons)}", hint=hint, details=self.left)

    @property
    def left(self) -> dict[str, int]:
        """What of the job is not taken back, by why; empty when all is."""
        document = self.to_document()
        return {name: document[name] for name in LEFT if document[name]}

    @property
    def requests(self) -> int:
        """How many requests it took; before that, how many it will take."""
        if not self.carried_out:
            parents = self.parents.found if self.parents is not None else 0
            looks = parents - (-parents // BULK_LIMIT) + bool(self.restorable)
            return -(-self.found // BULK_LIMIT) - (-self.restorable // BULK_LIMIT) + looks
        return sum(run.requests for run in (self.parents, self.deleted, self.restored) if run is not None)

    def to_document(self) -> dict[str, Any]:
        """The JSON form, every key always present."""
        deleted, restored = self.deleted or DeleteSummary(self.object), self.restored or Restored()
        failed = deleted.failed + deleted.in_doubt + deleted.unsent + len(restored.failed) + restored.in_doubt + restored.unsent
        refused = [{"row": row, "error": reason} for row, reason in sorted(restored.failed.items())]
        return {
            "job": self.job,
            "object": self.object,
            "found": self.found,
            "deleted": deleted.deleted,
            "restorable": self.restorable,
            "restored": restored.restored,
            "undoneBefore": self.done + self.back,
            "failed": failed,
            "conflicts": self.edited.count + self.changed.count,
            "duplicates": self.further.count,
            "unknown": self.unknown.count,
            "gone": self.gone.count,
            "updatesKept": self.kept,
            "parents": self.parents.found if self.parents else 0,
            "parentsDeleted": self.parents.deleted if self.parents else 0,
            "parentsKept": len(self.parents.edited) + len(self.parents.used) + self.parents.failed if self.parents else 0,
            "inDoubt": self.in_doubt,
            "requests": self.requests,
            "estimatedSeconds": round(self.seconds, 1),
            "rows": {
                "conflicts": [*self.edited.rows, *self.changed.rows][:LISTED],
                "duplicates": self.further.rows,
                "unknown": self.unknown.rows,
                "gone": self.gone.rows,
                "parents": [*self.parents.edited, *self.parents.used][:LISTED] if self.parents else [],
                "failed": refused[:LISTED],
            },
        }


@dataclass(frozen=True)
class UndoRequest:
    """`job`: its id or a part of it. `estimates`: also say how long it takes, which costs one request."""

    job: str
    dry_run: bool = False
    estimates: bool = True


def undo(context: BulkContext, request: UndoRequest, approve: Callable[[Undo | Recreation], None]) -> Undo | Recreation:
    """Find what a job did, show that to `approve`, which raises to leave it, and take it back; a dry run stops before that.

    What is left, and why, is in the result. Raises UsageError for a job that wrote nothing, is running, or whose input is not what it was,
    and what reading raises.
    """
    job = reopen_finished(context, request.job)
    if job.journal.header.kind == JobKind.DELETE:
        return recreate_deleted(context, job, approve, dry_run=request.dry_run, estimates=request.estimates)
    service, clock = context.service, context.clock
    references = job.input.references
    unlinked = references.is_unlinked if references is not None else lambda _: False
    attributes = context.directory.attributes(job.journal.header.object_id)
    with closing(job.journal) as journal, closing(job.input), journal.hold(), SeenIds() as ids, Updates(attributes, unlinked) as updates:
        parents = Parents(job, attributes, clock)
        parents.find(service)
        written = WrittenRecords(journal, written_rows(job, clock), ids, updates, parents)
        plan = plan_undo(written, Reader(service, journal.header.object_id), context.listener.progress.note)
        if request.estimates:
            plan.seconds = current_limit(context).time_for(plan.requests)
        if not request.dry_run:
            approve(plan)
            with feed_of(journal, FeedPlan.from_document(journal.header.plan.get("feed")), attributes) as feed:
                if feed is not None:
                    feed.bases.begin_undo(journal.header.job)
                carry_out(written, plan, service, context.listener.progress)
    return plan


@dataclass(frozen=True)
class WrittenRecords:
    """What a job wrote, where an undo gathers it: records to delete in `ids`, those to put back in `updates`, and the `parents` that were
    found already. `again` reads all valid rows anew."""

    journal: Journal
    again: Callable[[], Iterable[Entry]]
    ids: SeenIds
    updates: Updates
    parents: Parents | None = None


def plan_undo(written: WrittenRecords, reader: Reader, tell: Callable[[str], None] = lambda _: None) -> Undo:
    """Find what the job created and changed, as it is now; `tell` hears before what takes many requests.

    Changes nothing in the service; ids that are learnt are kept. Raises what reading raises, and UsageError for a job that wrote nothing.
    """
    journal, updates, parents = written.journal, written.updates, written.parents
    counts = journal.counts()
    undo = Undo(journal.header.job, journal.header.object, in_doubt=counts[RowState.IN_DOUBT], done=journal.undone_count)
    undo.parents = parents if parents is not None and parents.found + len(parents.edited) else None
    if counts[RowState.CREATED] or counts[RowState.FAILED]:
        _price(-(-counts[RowState.CREATED] // PAGE_LIMIT) + 1, tell)
        _find_created(written, reader, undo)
    if counts[RowState.UPDATED] or counts[RowState.FAILED]:
        updates.gather(journal, written.again)
        updates.read(reader, lambda cost: _price(cost.requests, tell))
    undo.found = len(written.ids)
    undo.kept = updates.lost
    _tell(undo, updates)
    if not (counts[RowState.CREATED] or counts[RowState.UPDATED] or undo.work or undo.done or undo.left):
        raise UsageError(f"job {undo.job} wrote nothing", code="nothing_to_undo")
    return undo


def _price(requests: int, tell: Callable[[str], None]) -> None:
    if requests > FEW:
        tell(f"reading back what the job wrote: about {requests:,} requests")


def carry_out(written: WrittenRecords, undo: Undo, service: UndoService, progress: Progress) -> None:
    """Put back and delete what was found. Interrupted, it can be done again: what is done is remembered, or seen.

    Raises what reading raises, before anything is written.
    """
    journal, updates, clock = written.journal, written.updates, written.journal.clock
    header = journal.header
    undo.carried_out = True
    if undo.restorable:
        updates.look_again(Reader(service, header.object_id))
        _tell(undo, updates)
    journal.note("undo", f"{undo.restorable} records to put back, {undo.found} to delete")
    journal.mark_undone(updates.ids_back())
    if undo.restorable:
        undo.restored = Restorer(service, header.object_id, journal).put_back(updates.to_put_back(), undo.restorable, clock, progress)
    if undo.found and undo.error is None:
        target = DeletedObject(service, header.object, header.object_id, remember=journal.mark_undone)
        undo.deleted = delete_records(target, written.ids, clock, progress)
    if undo.parents is not None and undo.error is None:
        undo.parents.delete(service, service, progress)
    if not undo.left and undo.error is None:
        journal.set_state(JobState.UNDONE)


def _find_created(written: WrittenRecords, reader: Reader, undo: Undo) -> None:
    journal = written.journal
    rows = name_records(journal, reader, written.again)
    with SeenIds() as missing, SeenIds() as named:
        places: dict[str, int] = {}
        while chunk := list(islice(rows, CHUNK_ROWS)):
            for row in chunk:
                _sort_in(row, written.ids, undo, named, marked=journal.header.marker is not None)
                if row.id is not None and not row.seen and missing.add(row.id.lower()):
                    places[row.id.lower()] = row.ordinal
            journal.name_rows({row.ordinal: row.id for row in chunk if row.id is not None and not row.edited})
        for record in chain.from_iterable(fetch(reader, missing)):
            # It is there, and cannot be recognised any more.
            undo.edited.add({"row": places[record.id.lower()], "id": record.id})
            del places[record.id.lower()]
        journal.mark_undone(places)
        undo.done += len(places)
        _find_further(journal, reader, undo, lambda record_id: record_id in written.ids or record_id in named)


def _find_further(journal: Journal, reader: Reader, undo: Undo, is_told: Callable[[str], bool]) -> None:
    """Name the records that are known to be too many, and still there; a row that is undone does not lead to them any more."""
    rows = {one.lower(): row for row, extra in journal.duplicates().items() for one in extra if not is_told(one.lower())}
    with SeenIds() as ids:
        for record_id in rows:
            ids.add(record_id)
        for record in chain.from_iterable(fetch(reader, ids)):
            undo.further.add({"row": rows[record.id.lower()], "id": record.id})


def _sort_in(row: CreatedId, ids: SeenIds, undo: Undo, named: SeenIds, *, marked: bool) -> None:
    """Where a created row belongs: to be deleted, a conflict, or unknown."""
    if row.id is None:
        undo.unknown.add(row.ordinal)
        return
    if row.edited:
        undo.edited.add({"row": row.ordinal, "id": row.id})
    elif row.seen:
        ids.add(row.id)
    for record_id, edited in row.extra.items():
        # A marker is the job's own; another record with the same key may be anybody's.
        if marked and not edited:
            ids.add(record_id)
        else:
            (undo.edited if edited else undo.further).add({"row": row.ordinal, "id": record_id})
            named.add(record_id.lower())


def _tell(undo: Undo, updates: Updates) -> None:
    """Bring the report up to date with how the changed records stand."""
    undo.restorable, undo.back = updates.count(UpdateStatus.WROTE), updates.count(UpdateStatus.BACK)
    undo.changed, undo.gone = Listed(), Listed()
    for conflict in updates.conflicts():
        undo.changed.add({"row": conflict.ordinal, "id": conflict.id, "attributes": list(conflict.attributes)})
    for gone in updates.gone():
        undo.gone.add({"row": gone.ordinal, "id": gone.id})
