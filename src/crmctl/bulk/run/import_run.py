"""One import from its validated rows to its outcome: the check of the whole input, then sending. The journal decides what is left to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import cast

from crmctl.bulk.findings import Finding, Severity
from crmctl.bulk.interrupts import watch_interrupts
from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.journal.states import JobState, RowState
from crmctl.bulk.match.key_index import KeyIndex
from crmctl.bulk.read.read_back import Baseline, Reader
from crmctl.bulk.rows.batches import Entry, SendableRow, entry_of
from crmctl.bulk.rows.mapping import Mode
from crmctl.bulk.rows.markers import Marker
from crmctl.bulk.rows.validation import Payload
from crmctl.bulk.run.context import CheckedRow, ImportRun, InputRows
from crmctl.bulk.run.lost_requests import LostRequests
from crmctl.bulk.run.row_actions import NO_ID, NO_RECORD, Resolver
from crmctl.bulk.run.rows_to_send import chunks, rows_left
from crmctl.bulk.send.context import Rows, SendContext
from crmctl.bulk.send.entry_spool import EntrySpool
from crmctl.bulk.send.pipeline import Delivery
from crmctl.bulk.send.reconcile import Reconciler
from crmctl.errors import CrmctlError, DeniedError, InterruptedByUser, RejectedError, ServiceError, StorageError, storage_error
from crmctl.models.records import BULK_LIMIT

SEAL = "rows kept"
"""The journal's fact: by which the rows that were kept are known to be whole."""

LABELS = {"update": "updating", "delete": "deleting", "recreate": "creating again"}
"""What a progress bar says, by the kind of a job."""

Keep = Callable[[Sequence[CheckedRow]], None]
"""Takes valid rows."""


@dataclass(frozen=True)
class RunResult:
    """How one run of a job ended: the error that ended it early (an interrupt too), and what the user should know."""

    error: CrmctlError | None = None
    notes: tuple[str, ...] = ()


def run_import(run: ImportRun) -> RunResult:
    """Do what is left of an import job: check the input where that is not done, then send the rows that may be sent.

    Everything about single rows is in the journal afterwards; an error that ended the run early is returned, not raised, because there is
    a summary all the same. Raises CrmctlError for an input that cannot be read, and UsageError when another process works on the job.
    """
    journal, started = run.journal, run.clock.monotonic()
    with journal.hold(), watch_interrupts(run.progress.note, run.interrupt):
        try:
            if doubtful := journal.recover():
                journal.note("recovered", f"{doubtful} requests were on their way when the program ended")
            with ExitStack() as kept:
                rows = _checked_rows(run, kept)
                return RunResult(rows) if isinstance(rows, CrmctlError) else _send(run, rows)
        except (StorageError, OSError, sqlite3.Error) as error:
            if (full := error if isinstance(error, StorageError) else storage_error(error)) is None:
                raise
            return RunResult(full)
        except KeyboardInterrupt:
            return RunResult(InterruptedByUser("interrupted"))
        finally:
            journal.add_effort(0, run.clock.monotonic() - started)


def _checked_rows(run: ImportRun, kept: ExitStack) -> Rows | CrmctlError:
    """The valid rows, checked now where they were not, and where they can be kept, in `kept`; or why nothing is sent now."""
    journal = run.journal
    if run.resolver is not None:
        if (failure := _resolve(run, run.resolver)) is not None:
            return failure
    elif journal.state is JobState.CHECKING:
        spool = kept.enter_context(EntrySpool(journal.folder))
        if (failure := _check_into(run, spool)) is not None:
            return failure
        if not run.hooks.changes_rows:
            return spool
        kept.close()
    elif (sealed := EntrySpool.kept(journal.folder, journal.recall(SEAL))) is not None:
        return kept.enter_context(sealed)
    return _Rebuilt(journal, run.rows)


def _check_into(run: ImportRun, spool: EntrySpool) -> CrmctlError | None:
    """Check the input, and keep the valid rows as they are sent. Returns the error because of which nothing is sent now."""
    journal, entry = run.journal, entry_maker(run.journal)
    state = _check(run, lambda rows: spool.add(map(entry, rows)))
    if state is JobState.OPEN and (failure := run.hooks.approve(run, spool.since(1))) is not None:
        return failure
    state = JobState.REJECTED if journal.state is JobState.REJECTED else state
    if state is JobState.OPEN and not run.hooks.changes_rows:
        journal.remember(SEAL, spool.keep())
    journal.set_state(state)
    return None


def _check(run: ImportRun, keep: Keep) -> JobState:
    """Read and validate everything before anything is sent; `keep` gets the valid rows. Returns the state the job is in then: an
    interrupted check starts over the next time. An input that cannot be read rejects the job, and is raised."""
    try:
        return _read_all(run, keep)
    except StorageError:
        raise
    except CrmctlError:
        run.journal.set_state(JobState.REJECTED)
        raise
    finally:
        run.progress.finish()


def _read_all(run: ImportRun, keep: Keep) -> JobState:
    run.journal.restart_check()
    run.progress.start("checking")
    rejected = fatal = False
    updates_by_id = run.journal.header.mode == Mode.UPDATE and run.resolver is None
    for chunk in chunks(run.rows()):
        remarkable = [row for row in chunk if type(row) is not Entry and row.findings]
        errors = {row.ordinal: text for row in remarkable if (text := rejection(row)) is not None}
        for finding in (finding for row in remarkable for finding in row.findings):
            run.report(finding)
            fatal = fatal or finding.severity is Severity.FATAL
        run.journal.record_check(len(chunk), errors.items())
        valid = [row for row in chunk if row.ordinal not in errors] if errors else chunk
        keep(_with_ids(run, valid) if updates_by_id else valid)
        rejected = rejected or bool(errors)
        run.progress.advance(len(chunk))
        if run.interrupt.requested:
            return JobState.CHECKING
    return JobState.REJECTED if fatal or (rejected and run.stop_on_error) else JobState.OPEN


def _with_ids(run: ImportRun, rows: Sequence[CheckedRow]) -> Sequence[CheckedRow]:
    """The rows that name a record; the others are skipped."""
    without = [row for row in rows if row.id is None]
    for row in without:
        line = getattr(row, "first_line", row.ordinal)
        finding = Finding(NO_RECORD, f"skipped: {NO_ID}", hint="--mode upsert creates it", severity=Severity.WARNING)
        run.report(finding.at(row.ordinal, line, getattr(row, "last_line", line)))
    run.journal.conclude((row.ordinal, RowState.SKIPPED, None, NO_ID) for row in without)
    return [row for row in rows if row.id is not None] if without else rows


def _resolve(run: ImportRun, resolver: Resolver) -> CrmctlError | None:
    """Check the input and find the record of every row; for a job that was begun, of those that are still to be created.

    Returns the error that kept the service from being read: then nothing is sent.
    """
    journal = run.journal
    lookup = resolver.lookup(run.service, lambda: run.interrupt.requested, run.progress)
    lookup.at_hand = run.at_hand
    lookup.newest = run.newest.if_new(run.clock) if run.newest is not None else None
    try:
        with KeyIndex(resolver.rule) as index:
            if journal.state is not JobState.CHECKING:
                resolver.refresh(journal, index, lookup, _unsettled(run))
                return None
            state = _check(run, lambda rows: index.want_all(cast("Sequence[Payload]", rows)))
            if state is JobState.OPEN:
                run.progress.start("looking up")
                lookup.fill(index)
                if lookup.head is not None and (known := Baseline.of_changed(lookup.head)) is not None:
                    journal.remember("baseline", known.to_document())
                if (refusal := run.hooks.approve_keys(run, index)) is not None:
                    return refusal
                if resolver.resolve(journal, index, lookup, run.report) and run.stop_on_error:
                    state = JobState.REJECTED
            journal.set_state(state)
    except (ServiceError, RejectedError, DeniedError, InterruptedByUser) as failure:
        if journal.state is JobState.REJECTED:
            raise
        return failure
    finally:
        run.progress.finish()
        journal.add_effort(lookup.requests, 0.0)
    return None


def _unsettled(run: ImportRun) -> Iterator[Payload]:
    """Valid rows that were not sent yet."""
    if run.journal.state is not JobState.OPEN:
        return
    for chunk in chunks(run.rows()):
        taken = run.journal.taken(chunk[0].ordinal, chunk[-1].ordinal)
        yield from (cast("Payload", row) for row in chunk if row.ordinal not in taken)


def _send(run: ImportRun, rows: Rows) -> RunResult:
    journal = run.journal
    if journal.state is not JobState.OPEN:
        return RunResult(InterruptedByUser("interrupted") if run.interrupt.requested else None)
    counts = journal.counts()
    if not journal.has_sent:
        try:
            run.guard.check(counts[RowState.UNSENT], sum(counts.values()))
        except RejectedError as refusal:
            EntrySpool.discard(journal.folder)
            journal.set_state(JobState.REJECTED)
            return RunResult(refusal)
    if (failure := run.hooks.before_rows(run)) is not None:
        return RunResult(failure)
    error, notes = deliver(run, rows)
    if error is None and run.hooks.frees_rows(run):
        error, more = deliver(run, rows)
        notes = [*notes, *more]
    counts = journal.counts()
    if not counts[RowState.UNSENT] and not counts[RowState.IN_DOUBT]:
        failure = run.hooks.after_rows(run)
        error = error or failure
        if failure is None:
            EntrySpool.discard(journal.folder)
            journal.set_state(JobState.FINISHED)
    return RunResult(error, tuple(notes))


def deliver(context: SendContext, rows: Rows) -> tuple[CrmctlError | None, Sequence[str]]:
    """Send the rows of an open job that are left, and settle those in doubt: the error that ended it early, and notes for the user."""
    said: list[str] = []
    try:
        for last in chain(LostRequests(context, rows, said.append).parts(), [None]):
            counts, reader, notes = context.journal.counts(), context.reader(), list[str]()
            if not (left := counts[RowState.UNSENT] + counts[RowState.IN_DOUBT]):
                error = None
            elif (error := _take_baseline(context, reader)) is None:
                reconciler = Reconciler(context, reader, lambda: rows.since(1))
                reconciler.evidence.accepts_older_lists = last is not None
                delivery = Delivery(context, reconciler)
                with _shown(context, reader, left):
                    delivery.run(rows_left(context.journal, rows, reconciler, last))
                    counted = reconciler.evidence.verdict() if delivery.error is None and last is None else None
                error, notes = delivery.error, [*delivery.notes, *filter(None, [counted])]
            if error is not None or context.interrupt.requested:
                break
    except StorageError as failure:
        return failure, said
    return error, [*said, *notes]


@contextmanager
def _shown(context: SendContext, reader: Reader, left: int) -> Iterator[None]:
    """While `left` rows are sent, a bar is shown; what was read to settle doubts counts as requests of the job."""
    context.progress.start(LABELS.get(context.journal.header.kind, "importing"), left, BULK_LIMIT)
    try:
        yield
    finally:
        context.progress.finish()
        context.journal.add_effort(reader.requests, 0.0)


def _take_baseline(context: SendContext, reader: Reader) -> CrmctlError | None:
    """Remember what is there before anything is sent. Without the right to read, doubts will stay doubts. Returns why it cannot be read.

    It is part of the preparations, like reading the attributes, and not counted as a request of the job.
    """
    journal = context.journal
    if journal.has_sent or journal.recall("baseline") is not None or journal.header.kind in ("update", "delete"):
        return None
    newest = context.newest.if_new(context.clock) if context.newest is not None else None
    try:
        known = Baseline.of_changed(newest) if newest is not None else None
        journal.remember("baseline", (known or Baseline.of(reader.page())).to_document())
    except (ServiceError, RejectedError):
        return None
    except CrmctlError as failure:
        return None if isinstance(failure, DeniedError) and failure.status == 403 else failure
    finally:
        reader.requests = 0
    return None


def entry_maker(journal: Journal) -> Callable[[SendableRow], Entry]:
    """How the job makes a row into the record it sends: a function of the row, and of the record its key was found to belong to."""
    header = journal.header
    with_id = header.mode != "create"
    marker = Marker.of(header.marker, header.job) if header.marker is not None else None
    if not header.keys and not with_id and marker is None:
        return lambda row: row if type(row) is Entry else entry_of(row, with_id=False)
    if not header.keys:
        return lambda row: entry_of(row, with_id=with_id, marker=marker)
    return lambda row: entry_of(row, with_id=True, marker=marker, target=journal.target(row.ordinal))


def rows_of(journal: Journal, rows: InputRows) -> Callable[[], Iterator[Entry]]:
    """Reads all valid rows of a job anew, as they are sent."""

    def again() -> Iterator[Entry]:
        entry = entry_maker(journal)
        return (entry(row) for row in rows() if not row.findings or rejection(row) is None)

    return again


@dataclass(frozen=True)
class _Rebuilt:
    """Rows read and typed anew, where they were not kept."""

    journal: Journal
    rows: InputRows

    def since(self, ordinal: int) -> Iterator[Entry]:
        return (entry for entry in rows_of(self.journal, self.rows)() if entry.ordinal >= ordinal)


def rejection(row: CheckedRow) -> str | None:
    """Why a row is not sent, in one line; None for a row that is."""
    rejecting = (finding for finding in row.findings if finding.rejects)
    return "; ".join(finding.message if finding.column is None else f"{finding.column}: {finding.message}" for finding in rejecting) or None
