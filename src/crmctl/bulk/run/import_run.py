"""One import from its validated rows to its outcome: the check of the whole input, then sending. The journal decides what is left to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from crmctl.bulk.findings import Finding, Severity
from crmctl.bulk.interrupts import Interrupt, watch_interrupts
from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.journal.states import JobState, RowState
from crmctl.bulk.match.key_index import KeyIndex
from crmctl.bulk.progress import Progress
from crmctl.bulk.rows.batches import Entry, SendableRow, entry_of
from crmctl.bulk.rows.markers import Marker
from crmctl.bulk.run.guards import Guard
from crmctl.bulk.run.hooks import ROWS_ONLY, Hooks
from crmctl.bulk.run.row_actions import Resolver
from crmctl.bulk.run.rows_to_send import ImportService, Rows, chunks, deliver
from crmctl.bulk.send.entry_spool import EntrySpool
from crmctl.bulk.send.pipeline import DeliveryOptions
from crmctl.clock import Clock
from crmctl.errors import CrmctlError, DeniedError, InterruptedByUser, RejectedError, ServiceError, StorageError, storage_error

SEAL = "rows kept"
"""The journal's fact: by which the rows that were kept are known to be whole."""


class CheckedRow(SendableRow, Protocol):
    """A validated row and what was found wrong with it; the same each time the same input is read."""

    @property
    def findings(self) -> Sequence[Finding]: ...


Payloads = Callable[[], Iterable[Any]]
"""Reads the input anew, yielding `CheckedRow`s in input order."""

Keep = Callable[[Sequence[Any]], None]
"""Takes valid `CheckedRow`s."""


@dataclass(frozen=True)
class ImportOptions:
    """`stop_on_error`: one locally invalid row means that nothing is sent. `guard`: how much may change."""

    stop_on_error: bool = True
    guard: Guard = field(default_factory=Guard)
    delivery: DeliveryOptions = field(default_factory=DeliveryOptions)


@dataclass(frozen=True)
class RunResult:
    """How one run of a job ended: the error that ended it early (an interrupt too), and what the user should know."""

    error: CrmctlError | None = None
    notes: tuple[str, ...] = ()


def run_import(
    service: ImportService,
    journal: Journal,
    payloads: Payloads,
    options: ImportOptions,
    clock: Clock,
    progress: Progress,
    report: Callable[[Finding], None],
    resolver: Resolver | None = None,
    stages: Hooks = ROWS_ONLY,
) -> RunResult:
    """Do what is left of an import job: check the input where that is not done, then send the rows that may be sent.

    `report` hears every finding of the check, `resolver` says which rows update which records, `stages` is what else there is to do.
    Everything about single rows is in the journal afterwards; an error that ended the run early is returned, not raised, because there is
    a summary all the same. Raises CrmctlError for an input that cannot be read, and UsageError when another process works on the job.
    """
    started = clock.monotonic()
    with journal.hold(), watch_interrupts() as interrupt:
        try:
            if doubtful := journal.recover():
                journal.note("recovered", f"{doubtful} requests were on their way when the program ended")
            if resolver is not None:
                failure = _resolve(service, journal, payloads, resolver, options, progress, report, interrupt, stages)
                if failure is not None:
                    return RunResult(failure)
            elif journal.state is JobState.CHECKING:
                with EntrySpool(journal.folder) as spool:
                    entry = entry_maker(journal)
                    keep: Keep = lambda rows: spool.add(map(entry, rows))  # noqa: E731
                    state = _check(journal, payloads, keep, options, progress, report, interrupt)
                    if state is JobState.OPEN and (failure := stages.approve(spool.since(1), interrupt)) is not None:
                        return RunResult(failure)
                    state = JobState.REJECTED if _is_rejected(journal) else state
                    if state is JobState.OPEN and not stages.changes_rows:
                        journal.remember(SEAL, spool.keep())
                    journal.set_state(state)
                    if not stages.changes_rows:
                        return _send(service, journal, spool, options, clock, progress, interrupt, stages)
            elif (kept := EntrySpool.kept(journal.folder, journal.recall(SEAL))) is not None:
                with kept:
                    return _send(service, journal, kept, options, clock, progress, interrupt, stages)
            return _send(service, journal, _Rebuilt(journal, payloads), options, clock, progress, interrupt, stages)
        except (StorageError, OSError, sqlite3.Error) as error:
            if (full := error if isinstance(error, StorageError) else storage_error(error)) is None:
                raise
            return RunResult(full)
        finally:
            journal.add_effort(0, clock.monotonic() - started)


def _is_rejected(journal: Journal) -> bool:
    return journal.state is JobState.REJECTED


def _check(
    journal: Journal,
    payloads: Payloads,
    keep: Keep,
    options: ImportOptions,
    progress: Progress,
    report: Callable[[Finding], None],
    interrupt: Interrupt,
) -> JobState:
    """Read and validate everything before anything is sent; `keep` gets the valid rows. Returns the state the job is in then: an
    interrupted check starts over the next time. An input that cannot be read rejects the job, and is raised."""
    try:
        return _read_all(journal, payloads, keep, options, progress, report, interrupt)
    except StorageError:
        raise
    except CrmctlError:
        journal.set_state(JobState.REJECTED)
        raise
    finally:
        progress.finish()


def _read_all(
    journal: Journal,
    payloads: Payloads,
    keep: Keep,
    options: ImportOptions,
    progress: Progress,
    report: Callable[[Finding], None],
    interrupt: Interrupt,
) -> JobState:
    journal.restart_check()
    progress.start("checking")
    rejected = fatal = False
    for chunk in chunks(payloads()):
        remarkable = [payload for payload in chunk if payload.findings]
        errors = {payload.ordinal: text for payload in remarkable if (text := rejection(payload)) is not None}
        for finding in (finding for payload in remarkable for finding in payload.findings):
            report(finding)
            fatal = fatal or finding.severity is Severity.FATAL
        journal.record_check(len(chunk), errors.items())
        keep([payload for payload in chunk if payload.ordinal not in errors] if errors else chunk)
        rejected = rejected or bool(errors)
        progress.advance(len(chunk))
        if interrupt.requested:
            return JobState.CHECKING
    return JobState.REJECTED if fatal or (rejected and options.stop_on_error) else JobState.OPEN


def _resolve(
    service: ImportService,
    journal: Journal,
    payloads: Payloads,
    resolver: Resolver,
    options: ImportOptions,
    progress: Progress,
    report: Callable[[Finding], None],
    interrupt: Interrupt,
    stages: Hooks,
) -> CrmctlError | None:
    """Check the input and find the record of every row; for a job that was begun, of those that are still to be created.

    Returns the error that kept the service from being read: then nothing is sent.
    """
    lookup = resolver.lookup(service, lambda: interrupt.requested, progress)
    try:
        with KeyIndex(resolver.rule) as index:
            if journal.state is not JobState.CHECKING:
                resolver.refresh(journal, index, lookup, _unsettled(journal, payloads))
                return None
            state = _check(journal, payloads, index.want_all, options, progress, report, interrupt)
            if state is JobState.OPEN:
                progress.start("looking up")
                lookup.fill(index)
                if (refusal := stages.approve_keys(resolver, index)) is not None:
                    return refusal
                if resolver.resolve(journal, index, lookup, report) and options.stop_on_error:
                    state = JobState.REJECTED
            journal.set_state(state)
    except (ServiceError, RejectedError, DeniedError, InterruptedByUser) as failure:
        if journal.state is JobState.REJECTED:
            raise
        return failure
    finally:
        progress.finish()
        journal.add_effort(lookup.requests, 0.0)
    return None


def _unsettled(journal: Journal, payloads: Payloads) -> Iterator[Any]:
    """Valid rows that were not sent yet."""
    if journal.state is not JobState.OPEN:
        return
    for chunk in chunks(payloads()):
        taken = journal.taken(chunk[0].ordinal, chunk[-1].ordinal)
        yield from (payload for payload in chunk if payload.ordinal not in taken)


def _send(
    service: ImportService,
    journal: Journal,
    rows: Rows,
    options: ImportOptions,
    clock: Clock,
    progress: Progress,
    interrupt: Interrupt,
    stages: Hooks,
) -> RunResult:
    if journal.state is not JobState.OPEN:
        return RunResult(InterruptedByUser("interrupted") if interrupt.requested else None)
    counts = journal.counts()
    if not journal.has_sent:
        try:
            options.guard.check(counts[RowState.UNSENT], sum(counts.values()))
        except RejectedError as refusal:
            EntrySpool.discard(journal.folder)
            journal.set_state(JobState.REJECTED)
            return RunResult(refusal)
    if (failure := stages.before_rows(interrupt)) is not None:
        return RunResult(failure)
    error, notes = deliver(service, journal, rows, options.delivery, clock, progress, interrupt)
    if error is None and stages.frees_rows(interrupt):
        error, more = deliver(service, journal, rows, options.delivery, clock, progress, interrupt)
        notes = [*notes, *more]
    counts = journal.counts()
    if not counts[RowState.UNSENT] and not counts[RowState.IN_DOUBT]:
        failure = stages.after_rows(interrupt)
        error = error or failure
        if failure is None:
            EntrySpool.discard(journal.folder)
            journal.set_state(JobState.FINISHED)
    return RunResult(error, tuple(notes))


def entry_maker(journal: Journal) -> Callable[[SendableRow], Entry]:
    """How the job makes a row into the record it sends: a function of the row, and of the record its key was found to belong to."""
    header = journal.header
    with_id = header.mode == "upsert"
    marker = Marker.of(header.marker, header.job) if header.marker is not None else None
    if not header.keys:
        return lambda row: entry_of(row, with_id=with_id, marker=marker)
    return lambda row: entry_of(row, with_id=True, marker=marker, target=journal.target(row.ordinal))


def rows_of(journal: Journal, payloads: Payloads) -> Callable[[], Iterator[Entry]]:
    """Reads all valid rows of a job anew, as they are sent."""

    def again() -> Iterator[Entry]:
        entry = entry_maker(journal)
        return (entry(payload) for payload in payloads() if not payload.findings or rejection(payload) is None)

    return again


@dataclass(frozen=True)
class _Rebuilt:
    """Rows read and typed anew, where they were not kept."""

    journal: Journal
    payloads: Payloads

    def since(self, ordinal: int) -> Iterator[Entry]:
        return (entry for entry in rows_of(self.journal, self.payloads)() if entry.ordinal >= ordinal)


def rejection(payload: CheckedRow) -> str | None:
    """Why a row is not sent, in one line; None for a row that is."""
    rejecting = (finding for finding in payload.findings if finding.rejects)
    return "; ".join(finding.message if finding.column is None else f"{finding.column}: {finding.message}" for finding in rejecting) or None
