"""Undo a job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from crmctl.bulk_context import BulkContext, Progress, watch_interrupts
from crmctl.client.crm import Crm
from crmctl.clock import Backoff
from crmctl.errors import UsageError
from crmctl.files.spills import chunks
from crmctl.files.validation import Entry
from crmctl.frozen import frozen
from crmctl.models.resources import BULK_LIMIT, PAGE_LIMIT, Record, document_of
from crmctl.plan.audit import name_records, walk_new
from crmctl.plan.feed import feed_of
from crmctl.plan.import_plan import ImportPlan
from crmctl.plan.import_run import deliver, rows_of
from crmctl.plan.job_run import requests_made, seconds_for
from crmctl.plan.job_start import ImportJob
from crmctl.plan.merge_steps import MODE
from crmctl.plan.requests import store_of
from crmctl.plan.resume import reopen_finished
from crmctl.plan.undo_deletions import Recreation, recreate_deleted
from crmctl.plan.undo_updates import LISTED, Parents, UndoReport, Updates, written_rows
from crmctl.read.read_back import Reader
from crmctl.read.records import Cost, announced, find, read_one
from crmctl.read.stable_pages import SeenIds
from crmctl.write.database import ABANDONED, JobKind, JobState, RowState
from crmctl.write.effect import Attributes, StepStanding, changed_last, standing
from crmctl.write.journal import BEFORE, UNDONE, Journal, entries_of, mark_undone, surplus_records
from crmctl.write.send_context import DeliveryOptions, SendContext, SentRows, write_requests
from crmctl.write.steps import Step, StepKind, StepOutcome, StepSender, deletions, take_steps

if TYPE_CHECKING:
    from crmctl.plan.unmerge import Separation

LOOKS = 5
"""Number of looks for the first undone record; GAPS are the seconds between them."""

GAPS = Backoff(longest=4.0, jitter=0.0)


@dataclass
class Listed:
    """Rows of one kind. All are counted, the first ones listed."""

    count: int = 0
    rows: list[Any] = field(default_factory=list)

    def add(self, row: Any) -> None:
        self.count += 1
        if len(self.rows) < LISTED:
            self.rows.append(row)


@dataclass
class Undo(UndoReport):
    """Undo of an import or update.

    Records: `found` to delete; `restorable` to restore; `back` already restored; `done` undone by earlier runs; `further` duplicates of the
    rows' records. `edited` and `changed`: created and updated records that another client changed since; `gone`: updated records that
    another client deleted.

    Rows: `unknown` created a record that crmctl cannot find; `kept` updated a record without a before image; `unsent` belong to an
    unfinished job and are abandoned.
    """

    found: int = 0
    restorable: int = 0
    back: int = 0
    done: int = 0
    kept: int = 0
    in_doubt: int = 0
    unsent: int = 0
    was_written: bool = False
    edited: Listed = field(default_factory=Listed)
    changed: Listed = field(default_factory=Listed)
    further: Listed = field(default_factory=Listed)
    unknown: Listed = field(default_factory=Listed)
    gone: Listed = field(default_factory=Listed)
    tested: int = 0
    """Number of records deleted to test the lists."""
    restored_first: int = 0
    """Number of records restored to test the lists."""
    deleted: StepOutcome | None = None
    restored: StepOutcome | None = None
    parents: Parents | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the job did nothing, and leaves nothing to abandon."""
        return not (self.was_written or self.work or self.done or self.left)

    @property
    def work(self) -> int:
        unsent = 0 if self.carried_out else self.unsent
        return self.found + self.restorable + unsent + (self.parents.found if self.parents is not None else 0)

    @property
    def refusals(self) -> Iterable[str]:
        return [reason for run in (self.restored, self.deleted) if run is not None for reason in run.failed.values()]

    @property
    def expected(self) -> int:
        """The estimated number of requests from now on."""
        parents = self.parents.requests if self.parents is not None else 0
        return write_requests(self.found) + write_requests(self.restorable) + parents + bool(self.restorable)

    def to_document(self) -> dict[str, Any]:
        deleted, restored, parents = self.deleted or StepOutcome(), self.restored or StepOutcome(), self.parents
        refused: list[Any] = [{"row": row, "error": reason} for row, reason in sorted(restored.failed.items())]
        refused += ({"id": deleted.targets[number], "error": reason} for number, reason in deleted.failed.items())
        kept = [*parents.edited, *parents.used] if parents else []
        rows = {
            "conflicts": [*self.edited.rows, *self.changed.rows][:LISTED],
            "duplicates": self.further.rows,
            "unknown": self.unknown.rows,
            "gone": self.gone.rows,
            "parents": kept[:LISTED],
            "failed": refused[:LISTED],
        }
        names = (
            "job object found deleted restorable restored undone_before failed conflicts duplicates unknown gone updates_kept parents "
            "parents_deleted parents_kept in_doubt abandoned requests estimated_seconds rows"
        )
        return document_of(
            self, names, deleted=deleted.done - deleted.absent + self.tested, restored=restored.done + self.restored_first,
            undoneBefore=self.done + self.back, failed=deleted.left + restored.left, conflicts=self.edited.count + self.changed.count,
            duplicates=self.further.count, unknown=self.unknown.count, gone=self.gone.count, updatesKept=self.kept,
            parents=parents.found if parents else 0, parentsDeleted=parents.deleted if parents else 0,
            parentsKept=len(kept) + (parents.failed if parents else 0), abandoned=self.unsent,
            estimatedSeconds=round(self.seconds, 1), rows=rows,
        )  # fmt: skip


class Lists(Enum):
    """How the lists of the service show a new change: without a known delay, after a wait, or never."""

    UNTESTED = auto()
    CURRENT = auto()
    STALE = auto()


@frozen
class UndoRequest:
    """An undo of `job` (its id or part of it).

    `include_changed`: also undo records that changed since.
    """

    job: str
    dry_run: bool = False
    include_changed: bool = False


def undo(
    context: BulkContext, request: UndoRequest, approve: Callable[[Undo | Recreation | Separation], None]
) -> Undo | Recreation | Separation:
    """Find what a job changed, pass it to `approve`, and undo it. `approve` raises to cancel. A dry run only finds the changes.

    The result says what remains and why. Raises UsageError if the job wrote nothing, is running or has a changed input, and read
    errors.
    """
    done = _undo(context, request, approve)
    done.requests = requests_made(context) if done.carried_out else done.requests
    return done


def _undo(
    context: BulkContext,
    request: UndoRequest,
    approve: Callable[[Undo | Recreation | Separation], None],
    lists: Lists = Lists.UNTESTED,
    abandoned: int = 0,
) -> Undo | Recreation | Separation:
    """Undo a job. `lists`: whether lists of records are known to be current; `abandoned`: rows that this undo has already abandoned."""
    if (info := store_of(context).find(request.job)).header.mode == MODE:
        from crmctl.plan.unmerge import separate_records

        return separate_records(context, info, approve, dry_run=request.dry_run, include_changed=request.include_changed)
    job = reopen_finished(context, request.job)
    if job.journal.header.kind == JobKind.DELETE:
        return recreate_deleted(context, job, approve, dry_run=request.dry_run)
    service, clock = context.service, context.clock
    references = job.input.references
    unlinked = references.is_unlinked if references is not None else lambda _: False
    attributes = context.directory.attributes(job.journal.header.object_id)
    with closing(job.journal) as journal, closing(job.input), journal.hold(), SeenIds() as ids, Updates(attributes, unlinked) as updates:
        parents = Parents(job, clock)
        parents.find(context)
        reader = Reader(service, journal.header.object_id, singly=lists is Lists.STALE)
        written = WrittenRecords(journal, written_rows(job, clock), ids, updates, parents, request.include_changed, reader.singly)
        plan = plan_undo(written, reader, context.listener.progress.note)
        plan.unsent += abandoned
        plan.requests = plan.expected + (requests_made(context) if request.dry_run else 0)  # the undo makes these again
        if plan.is_empty:
            raise UsageError(f"job {plan.job} wrote nothing", code="nothing_to_undo")
        plan.seconds = seconds_for(context, plan.requests)
        if request.dry_run:
            return plan
        approve(plan)
        known = lists
        if journal.state is JobState.OPEN:
            abandoned = abandon(context, job)
        else:
            with ExitStack() as stack:
                if plan_of_feed := ImportPlan.from_document(journal.header.plan).feed:
                    stack.enter_context(feed_of(journal, plan_of_feed, attributes)).bases.begin_undo(journal.header.job)
                if lists is Lists.UNTESTED:
                    lists = Lists.STALE if updates.lists_lag else _test_lists(written, plan, reader, context)
                if lists is known:
                    carry_out(written, plan, service, context.listener.progress)
                    return plan
    # Rows in doubt are settled now, or the lists were late, and the user has agreed: collect the work of the job again.
    done = _undo(context, request, lambda _: None, lists, abandoned)
    assert isinstance(done, Undo)
    # The records that were deleted or restored to test the lists belong to this undo.
    done.done -= plan.tested + plan.restored_first
    done.found, done.tested = done.found + plan.tested, done.tested + plan.tested
    done.restorable, done.restored_first = done.restorable + plan.restored_first, done.restored_first + plan.restored_first
    return done


def abandon(context: BulkContext, job: ImportJob) -> int:
    """End an unfinished job: settle its rows in doubt, and abandon its unsent rows. Return their number.

    Raises the error that prevents it.

    The service may have carried out a request that it refused for now: until the comparison with its records, the rows of such a request
    count as failed.
    """
    journal = job.journal
    rows = rows_of(journal, job.input.to_send)
    last = journal.last_sent
    unsent = (row.ordinal for row, entry in entries_of(journal, rows()) if entry is None)
    journal.conclude((ordinal, RowState.FAILED if ordinal <= last else RowState.SKIPPED, None, ABANDONED) for ordinal in unsent)
    with watch_interrupts(context.listener.progress.note) as interrupt:
        options = DeliveryOptions(settle_only=True)
        run = SendContext(context.service, journal, options, context.clock, context.listener.progress, interrupt=interrupt)
        result = deliver(run, SentRows(rows))
    if result.error is not None:
        raise result.error
    attributes = {attribute.slug: attribute for attribute in job.input.shown_attributes}
    number = 0
    entries = ((row, entry) for row, entry in entries_of(journal, rows()) if entry is not None and entry.error == ABANDONED)
    for chunk in chunks(entries):
        refused = [row for row, entry in chunk if entry.state is RowState.FAILED]
        updated = _updated(journal, run.reader(), refused, attributes) if refused else set()
        outcomes = ((RowState.UPDATED, row.id, None) if row.ordinal in updated else (RowState.SKIPPED, None, ABANDONED) for row in refused)
        journal.conclude((row.ordinal, *outcome) for row, outcome in zip(refused, outcomes, strict=True))
        number += len(chunk) - len(updated)
    journal.state = JobState.FINISHED
    return number


def _updated(journal: Journal, reader: Reader, rows: Sequence[Entry], attributes: Attributes) -> set[int]:
    by_id = {row.id.lower(): row for row in rows if row.id}
    images = journal.kept(BEFORE, rows[0].ordinal, rows[-1].ordinal)
    updated = set()
    for record in find(reader, by_id):
        row = by_id[record.id.lower()]
        before = images.get(row.ordinal, dict.fromkeys(row.data))
        if standing(before, row.data, record.data, attributes)[0] is StepStanding.AFTER:
            updated.add(row.ordinal)
    return updated


@frozen
class WrittenRecords:
    """Records written by a job, as an undo collects them.

    `ids`: records to delete; `updates`: records to restore; `parents`: parents found earlier. `again` reads all valid rows again.
    `include_changed`: also delete or restore records that changed since. `singly`: lists are out of date.
    """

    journal: Journal
    again: Callable[[], Iterable[Entry]]
    ids: SeenIds
    updates: Updates
    parents: Parents | None = None
    include_changed: bool = False
    singly: bool = False


def plan_undo(written: WrittenRecords, reader: Reader, tell: Callable[[str], None] = lambda _: None) -> Undo:
    """Find the current state of the records the job created and updated, and store new ids in the journal. Raises read errors."""
    journal, updates, parents = written.journal, written.updates, written.parents
    counts, announce = journal.counts(), announced(tell, "reading back what the job wrote")
    undo = Undo(journal.header.job, journal.header.object, in_doubt=counts[RowState.IN_DOUBT], done=journal.number_kept(UNDONE))
    undo.unsent = counts[RowState.UNSENT] if journal.state is JobState.OPEN else 0
    undo.was_written = bool(counts[RowState.CREATED] or counts[RowState.UPDATED])
    undo.parents = parents if parents is not None and parents.found + len(parents.edited) else None
    if counts[RowState.CREATED] or counts[RowState.FAILED]:
        announce(Cost(-(-counts[RowState.CREATED] // PAGE_LIMIT) + 1, as_a_whole=False))
        _find_created(written, reader, undo)
    if counts[RowState.UPDATED] or counts[RowState.FAILED]:
        updates.gather(journal, written.again)
        updates.read(reader, announce)
    undo.found = len(written.ids)
    undo.kept = updates.lost
    _tell(undo, written)
    return undo


def carry_out(written: WrittenRecords, undo: Undo, service: Crm, progress: Progress) -> None:
    """Restore and delete the collected records. After an interrupt, call it again: it skips records already undone."""
    journal, updates, clock = written.journal, written.updates, written.journal.clock
    header = journal.header
    undo.carried_out = True
    if undo.restorable and not (written.singly or updates.lists_lag):
        updates.look_again(Reader(service, header.object_id))
        _tell(undo, written)
    mark_undone(journal, updates.ids_back())
    if undo.restorable:
        progress.start("putting back", undo.restorable, BULK_LIMIT)
        steps = updates.to_put_back(header.object_id, include_changed=written.include_changed)
        sender = StepSender(service, clock, attributes={header.object_id: updates.attributes})
        undo.restored = take_steps(sender, progress, steps, undo.restorable - undo.restored_first, partial(mark_undone, journal))
        undo.error = undo.restored.error
    if undo.found and undo.error is None:
        count, steps = len(written.ids), deletions(header.object_id, written.ids)
        progress.start("deleting", count, BULK_LIMIT)
        undo.deleted = take_steps(StepSender(service, clock), progress, steps, count, partial(mark_undone, journal))
        undo.error = undo.deleted.error
    if undo.parents is not None and undo.error is None:
        undo.parents.delete(service, progress)
        undo.error = undo.parents.error
    if not undo.left and undo.error is None:
        journal.state = JobState.UNDONE


def _test_lists(written: WrittenRecords, undo: Undo, reader: Reader, context: BulkContext) -> Lists:
    """Undo one record and look whether the lists show that. If not, they may lack edits as well.

    Return UNTESTED if they show it at once, or cannot show it. Raises the errors of reading and writing.
    """
    journal, updates = written.journal, written.updates
    step = next(updates.to_put_back(reader.object_id), None)
    place, listed = 0, None
    if step is None:
        places = enumerate(walk_new(journal, reader) if undo.found else ())
        place, listed = next(((place, record) for place, record in places if record.id.lower() in written.ids), (0, None))
        if listed is None:
            return Lists.STALE if undo.found else Lists.UNTESTED
        step = Step(StepKind.DELETE, reader.object_id, listed.id)
    current, is_restored = read_one(reader, step.target), listed is None
    if current is None or (not updates.is_as_written(current) if listed is None else current.data != listed.data):
        return Lists.STALE
    if undo.found + undo.restorable == 1:
        return Lists.UNTESTED
    sender = StepSender(context.service, journal.clock, attributes={reader.object_id: updates.attributes})
    outcome = take_steps(sender, context.listener.progress, [step], 1, partial(mark_undone, journal))
    if outcome.error is not None:
        outcome.error.hint = outcome.error.hint or f"crmctl bulk undo {undo.job} goes on with it"
        raise outcome.error
    if not outcome.done:
        return Lists.STALE
    undo.restored_first += is_restored
    if is_restored:
        updates.mark_restored(step.target)
    else:
        undo.tested += 1
        written.ids.discard(step.target.lower())
    for look in GAPS.tries(LOOKS, journal.clock.sleep):
        if is_restored:
            page = changed_last(reader)
            shown: Iterable[Record] = page.items if page is not None else ()
        else:
            shown = islice(walk_new(journal, reader), place + PAGE_LIMIT)
        by_id = {record.id: record for record in shown}
        record = by_id.get(step.target)
        if (record is None) is not is_restored and (record is None or not updates.is_as_written(record)):
            return Lists.UNTESTED if look == 1 else Lists.CURRENT
    return Lists.STALE


def _find_created(written: WrittenRecords, reader: Reader, undo: Undo) -> None:
    journal = written.journal
    with SeenIds() as named:
        gone: set[str] = set()
        for chunk in chunks(name_records(journal, reader, written.again)):
            for row in chunk:
                if row.id is None:
                    undo.unknown.add(row.ordinal)
                    continue
                if row.edited and not written.include_changed:
                    undo.edited.add({"row": row.ordinal, "id": row.id})
                elif row.seen:
                    written.ids.add(row.id)
                else:
                    gone.add(row.id.lower())
                for record_id, edited in row.extra.items():
                    # A record with the same key may come from another client.
                    (undo.edited if edited else undo.further).add({"row": row.ordinal, "id": record_id})
                    named.add(record_id.lower())
            journal.name_rows({row.ordinal: row.id for row in chunk if row.id is not None and not row.edited})
        mark_undone(journal, gone)
        undo.done += len(gone)
        # Rows already undone no longer lead to their duplicates.
        surplus = {record_id.lower(): row for row, extra in surplus_records(journal).items() for record_id in extra}
        rows = {record_id: row for record_id, row in surplus.items() if record_id not in written.ids and record_id not in named}
        for record in find(reader, rows):
            undo.further.add({"row": rows[record.id.lower()], "id": record.id})


def _tell(undo: Undo, written: WrittenRecords) -> None:
    updates = written.updates
    undo.restorable = updates.count(StepStanding.AFTER) + undo.restored_first
    undo.back = updates.count(StepStanding.BEFORE) - undo.restored_first
    undo.changed, undo.gone = Listed(), Listed()
    if written.include_changed:
        undo.restorable += updates.count(StepStanding.CHANGED)
    for row in updates.conflicts() if not written.include_changed else ():
        undo.changed.add(row)
    for row in updates.gone():
        undo.gone.add(row)
