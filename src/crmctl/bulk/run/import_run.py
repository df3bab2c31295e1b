"""One import from its validated rows to its outcome: the check of the whole input, then sending. The journal decides what is left to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from crmctl.bulk.findings import Finding, Severity
from crmctl.bulk.interrupts import watch_interrupts
from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.journal.states import JobState, RowState
from crmctl.bulk.match.key_index import KeyIndex
from crmctl.bulk.rows.batches import Entry, SendableRow, entry_of
from crmctl.bulk.rows.mapping import Mode
from crmctl.bulk.rows.markers import Marker
from crmctl.bulk.rows.validation import Payload
from crmctl.bulk.run.context import CheckedRow, ImportRun, InputRows
from crmctl.bulk.run.row_actions import NO_ID, NO_RECORD, Resolver
from crmctl.bulk.run.rows_to_send import chunks, deliver
from crmctl.bulk.send.context import Rows
from crmctl.bulk.send.entry_spool import EntrySpool
from crmctl.errors import CrmctlError, DeniedError, InterruptedByUser, RejectedError, ServiceError, StorageError, storage_error

SEAL = "rows kept"
"""The journal's fact: by which the rows that were kept are known to be whole."""


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
    with journal.hold(), watch_interrupts(run.interrupt):
        try:
            if doubtful := journal.recover():
                journal.note("recovered", f"{doubtful} requests were on their way when the program ended")
            return _check_and_send(run)
        except (StorageError, OSError, sqlite3.Error) as error:
            if (full := error if isinstance(error, StorageError) else storage_error(error)) is None:
                raise
            return RunResult(full)
        finally:
            journal.add_effort(0, run.clock.monotonic() - started)


def _check_and_send(run: ImportRun) -> RunResult:
    journal = run.journal
    if run.resolver is not None:
        if (failure := _resolve(run, run.resolver)) is not None:
            return RunResult(failure)
    elif journal.state is JobState.CHECKING:
        with EntrySpool(journal.folder) as spool:
            if (failure := _check_into(run, spool)) is not None:
                return RunResult(failure)
            if not run.hooks.changes_rows:
                return _send(run, spool)
    elif (kept := EntrySpool.kept(journal.folder, journal.recall(SEAL))) is not None:
        with kept:
            return _send(run, kept)
    return _send(run, _Rebuilt(journal, run.rows))


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
        remarkable = [row for row in chunk if row.findings]
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


def entry_maker(journal: Journal) -> Callable[[SendableRow], Entry]:
    """How the job makes a row into the record it sends: a function of the row, and of the record its key was found to belong to."""
    header = journal.header
    with_id = header.mode != "create"
    marker = Marker.of(header.marker, header.job) if header.marker is not None else None
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
