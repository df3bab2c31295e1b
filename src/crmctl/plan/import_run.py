"""One run of an import: check the input, then send the remaining rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from crmctl.bulk_context import showing, watch_interrupts
from crmctl.errors import (
    CrmctlError,
    DeniedError,
    ForbiddenError,
    InterruptedByUser,
    RejectedError,
    ServiceError,
    StorageError,
    UsageError,
    storage_error,
)
from crmctl.files.mapping import Mode
from crmctl.files.spills import chunks
from crmctl.files.validation import Batch, Entry, Payload, SendableRow, entry_of
from crmctl.models.findings import Finding, Severity
from crmctl.models.resources import BULK_LIMIT, PAGE_LIMIT
from crmctl.plan.final_count import UNVERIFIED, RunResult, conclude_job
from crmctl.plan.import_plan import NO_ID, NO_RECORD
from crmctl.plan.job_start import ImportRun, InputRows
from crmctl.read.read_back import Baseline, Reader
from crmctl.values.moments import micros_of
from crmctl.write.database import BatchState, JobState, RowState
from crmctl.write.jobs import effort
from crmctl.write.journal import TARGET, Journal, created_in, doubtful, entries_of
from crmctl.write.reconcile import Reconciler, Task
from crmctl.write.send_context import AS_OF, SendContext, SentRows
from crmctl.write.sender import Delivery, EntrySpool

if TYPE_CHECKING:
    from crmctl.plan.row_actions import Resolver


def rows_left(journal: Journal, rows: SentRows, reconciler: Reconciler) -> Generator[Entry, None, None]:
    """Yield the rows still to send. Rows with an outcome are skipped; batches in doubt are reassembled and parked."""
    doubts = {doubt.number: doubt for doubt in doubtful(journal)}
    gathered: dict[int, list[Entry]] = {number: [] for number in doubts}
    control = _last_confirmed(journal) if doubts else None
    shown: list[Entry] = []
    start = _first_open(journal)
    for chunk in chunks(rows.since(start if control is None else min(start, control[0]))):
        first, last = chunk[0].ordinal, chunk[-1].ordinal
        states = journal.rows(first, last)
        if not states:
            yield from chunk
            continue
        numbers = journal.batches_of(first, last) if doubts else {}
        for entry in chunk:
            row = states.get(entry.ordinal)
            if row is not None and row.state is RowState.IN_DOUBT:
                number = numbers[entry.ordinal]
                gathered[number].append(entry)
                if len(gathered[number]) == doubts[number].size:
                    doubt, batch = doubts[number], Batch(tuple(gathered.pop(number)))
                    if doubt.state is not BatchState.UNKNOWN and batch.digest != doubt.digest:
                        raise CrmctlError(f"the rows of batch {number} are not what was sent", code="job_changed")
                    reconciler.park(Task(batch, number, doubt.sent_at, known_at=doubt.sent_at, is_resumed=True))
            elif row is None:
                yield entry
            elif control is not None and control[0] <= entry.ordinal <= control[1]:
                shown.append(entry)
                if entry.ordinal == control[1]:
                    reconciler.confirm(shown, *control[2:])


def _first_open(journal: Journal) -> int:
    """Return the first row after the batches from the start of which every row was written: no row before it is open or in doubt."""
    done = {
        batch.first: batch.last
        for batch in journal.batches()
        if batch.state is BatchState.CONFIRMED and batch.created + batch.updated == batch.size == batch.last - batch.first + 1
    }
    ordinal = 1
    while ordinal in done:
        ordinal = done[ordinal] + 1
    return ordinal


def _last_confirmed(journal: Journal) -> tuple[int, int, float, float] | None:
    """Return the newest batch whose rows were all created: first and last row, Unix times of send and answer.

    Without such a batch, return the first batch in doubt whose rows were all found, with the current time as its answer.
    """
    batches = journal.batches()
    for batch in reversed(batches):
        if batch.state is BatchState.CONFIRMED and batch.created == batch.size == batch.last - batch.first + 1:
            return batch.first, batch.last, batch.sent_at, batch.settled_at or batch.sent_at
    for batch in batches:
        if batch.state is BatchState.RECONCILED and created_in(journal, batch) == batch.last - batch.first + 1:
            return batch.first, batch.last, batch.sent_at, journal.clock.now()
    return None


SEAL = "rows kept"
"""Journal fact: the seal that proves the spooled rows are complete."""

LABELS = {"update": "updating", "delete": "deleting", "recreate": "creating again"}
"""Labels of the progress bar by kind of job."""


class RunEnded(Exception):
    """Ends a run whose job still has a summary. `error` says why."""

    def __init__(self, error: CrmctlError) -> None:
        super().__init__(error.message)
        self.error = error


@contextmanager
def _ending_run() -> Iterator[None]:
    """Let an error of the block end the run instead of the command."""
    try:
        yield
    except CrmctlError as error:
        raise RunEnded(error) from error


def run_import(run: ImportRun) -> RunResult:
    """Run or resume an import job: check the input unless it is checked, then send the remaining rows.

    The journal then holds the outcome of each row. The result holds an error that ended the run early, because the job still has a
    summary. Raises CrmctlError for an unreadable input and UsageError if another process is working on the job.
    """
    journal, started = run.journal, run.clock.monotonic()
    with journal.hold(), watch_interrupts(run.progress.note, run.interrupt):
        try:
            is_resumed = journal.state is JobState.OPEN
            with ExitStack() as kept:
                return _send(run, _checked_rows(run, kept), is_resumed=is_resumed)
        except RunEnded as ended:
            return RunResult(ended.error)
        except (StorageError, OSError, sqlite3.Error) as error:
            if not isinstance(full := storage_error(error), StorageError):
                raise
            return RunResult(full)
        except KeyboardInterrupt:
            return RunResult(InterruptedByUser("interrupted"))
        finally:
            effort(journal, elapsed=run.clock.monotonic() - started)


def _checked_rows(run: ImportRun, kept: ExitStack) -> SentRows:
    """Check the input unless it is checked, and return the valid rows. If the rows can be spooled, `kept` closes the spool."""
    journal = run.journal
    if run.resolver is not None:
        _resolve(run, run.resolver)
    elif journal.state is JobState.CHECKING:
        spool = kept.enter_context(EntrySpool(journal.folder))
        _check_into(run, spool)
        if not run.hooks.changes_rows:
            return spool
        kept.close()
    elif (sealed := EntrySpool.kept(journal.folder, journal.recall(SEAL))) is not None:
        return kept.enter_context(sealed)
    return SentRows(rows_of(journal, run.rows))


def _check_into(run: ImportRun, spool: EntrySpool) -> None:
    journal, entry = run.journal, entry_maker(run.journal)
    state = _check(run, lambda rows: spool.add([*map(entry, rows)]))
    if state is JobState.OPEN:
        with _ending_run():
            run.hooks.approve(run)
    state = JobState.REJECTED if journal.state is JobState.REJECTED else state
    if state is JobState.OPEN and not run.hooks.changes_rows:
        journal.remember(SEAL, spool.keep())
    journal.state = state


def _check(run: ImportRun, keep: Callable[[Sequence[SendableRow]], None]) -> JobState:
    """Validate all rows, pass the valid ones to `keep`, and return the new state of the job.

    An interrupted check starts again in the next run. An unreadable input rejects the job and raises its error.
    """
    journal, rejected, fatal = run.journal, False, False
    updates_by_id = journal.header.mode == Mode.UPDATE and run.resolver is None
    try:
        journal.restart_check()
        with showing(run.progress, "checking"):
            for chunk in chunks(run.rows()):
                remarkable = [row for row in chunk if type(row) is not Entry and row.findings]
                errors = {row.ordinal: text for row in remarkable if (text := rejection(row)) is not None}
                for finding in (finding for row in remarkable for finding in row.findings):
                    run.report(finding)
                    fatal = fatal or finding.severity is Severity.FATAL
                journal.conclude(((ordinal, RowState.REJECTED, None, error) for ordinal, error in errors.items()), len(chunk))
                valid = [row for row in chunk if row.ordinal not in errors] if errors else chunk
                keep(_with_ids(run, valid) if updates_by_id else valid)
                rejected = rejected or bool(errors)
                run.progress.advance(len(chunk))
                if run.interrupt.requested:
                    return JobState.CHECKING
    except CrmctlError as error:
        if not isinstance(error, StorageError):
            journal.state = JobState.REJECTED
        raise
    return JobState.REJECTED if fatal or (rejected and run.stop_on_error) else JobState.OPEN


def _with_ids(run: ImportRun, rows: Sequence[SendableRow]) -> Sequence[SendableRow]:
    """Return the rows that name a record, and mark the others as skipped."""
    without = [row for row in rows if row.id is None]
    for row in without:
        line = getattr(row, "first_line", row.ordinal)
        finding = Finding(NO_RECORD, f"skipped: {NO_ID}", hint="--mode upsert creates it", severity=Severity.WARNING)
        run.report(finding.at(row.ordinal, line, getattr(row, "last_line", line)))
    run.journal.conclude((row.ordinal, RowState.SKIPPED, None, NO_ID) for row in without)
    return [row for row in rows if row.id is not None] if without else rows


def _resolve(run: ImportRun, resolver: Resolver) -> None:
    """Check the input and find the record of each row. In a resumed job, look only for rows that were not sent."""
    from crmctl.match.key_lookups import Lookup
    from crmctl.match.keys import KeyIndex

    journal, progress = run.journal, run.progress
    lookup = Lookup(
        run.service, journal.header.object_id, lambda: run.interrupt.requested, progress.advance, progress.note, run.newest(), run.at_hand
    )
    try:
        with KeyIndex(resolver.rule) as index:
            if journal.state is not JobState.CHECKING:
                if journal.state is JobState.OPEN:
                    unsettled = (cast("Payload", row) for row, entry in entries_of(journal, run.rows()) if entry is None)
                    resolver.refresh(journal, index, lookup, unsettled)
                return
            state = _check(run, lambda rows: index.want_all(cast("Sequence[Payload]", rows)))
            if state is JobState.OPEN:
                run.progress.start("looking up")
                lookup.fill(index)
                if lookup.head is not None and (baseline := Baseline.of_changed(lookup.head)) is not None:
                    journal.remember("baseline", baseline.to_document())
                with _ending_run():
                    run.hooks.approve_keys(run, index)
                if resolver.resolve(journal, index, lookup, run.report) and run.stop_on_error:
                    state = JobState.REJECTED
            journal.state = state
    except (ServiceError, RejectedError, DeniedError, InterruptedByUser) as failure:
        if journal.state is JobState.REJECTED:
            raise
        raise RunEnded(failure) from failure
    finally:
        run.progress.finish()


def _send(run: ImportRun, rows: SentRows, *, is_resumed: bool) -> RunResult:
    journal = run.journal
    if journal.state is not JobState.OPEN:
        return RunResult(InterruptedByUser("interrupted") if run.interrupt.requested else None)
    counts = journal.counts()
    if not journal.has_sent:
        try:
            run.guard.check(counts[RowState.UNSENT], sum(counts.values()))
        except RejectedError as refusal:
            EntrySpool.discard(journal.folder)
            journal.state = JobState.REJECTED
            return RunResult(refusal)
    with _ending_run():
        run.hooks.before_rows(run)
        if is_resumed:
            run.hooks.compare_unsent(run)
    result = deliver(run, rows)
    if result.error is None and run.hooks.frees_rows(run):
        again = deliver(run, rows)
        result = replace(again, notes=(*result.notes, *again.notes))
    counts = journal.counts()
    if counts[RowState.UNSENT] or counts[RowState.IN_DOUBT] or journal.recall(UNVERIFIED):
        return result
    try:
        run.hooks.after_rows(run)
        EntrySpool.discard(journal.folder)
        journal.state = JobState.FINISHED
    except CrmctlError as error:
        return replace(result, error=result.error or error)
    return result


def deliver(context: SendContext, rows: SentRows) -> RunResult:
    """Send the remaining rows of an open job, settle those in doubt, and compare the rows with the records of the service."""
    notes: tuple[str, ...] = ()
    try:
        context.journal.refuse_lost_sends()
        for is_last in (False, True):
            result = _deliver_once(context, rows)
            notes += result.notes
            if result.error is not None or is_last or not result.sends_again:
                break
    except (StorageError, UsageError) as error:
        return RunResult(error, notes)
    return replace(result, notes=notes)


def _deliver_once(context: SendContext, rows: SentRows) -> RunResult:
    counts, reader = context.journal.counts(), context.reader()
    unsent = counts[RowState.UNSENT] + counts[RowState.IN_DOUBT]
    if not unsent and not context.journal.recall(UNVERIFIED):
        return RunResult()
    try:
        _take_baseline(context, reader)
    except CrmctlError as error:
        return RunResult(error)
    context.journal.remember(UNVERIFIED, context.journal.recall("baseline") is not None)
    reconciler = Reconciler(context, reader, lambda: rows.since(1))
    delivery, ended = Delivery(context, reconciler), RunResult()
    with showing(context.progress, LABELS.get(context.journal.header.kind, "importing"), unsent, BULK_LIMIT):
        with closing(rows_left(context.journal, rows, reconciler)) as entries:  # the input has a database of this thread
            delivery.run(entries)
        if delivery.error is None and not context.interrupt.requested:
            ended = conclude_job(context, reader, reconciler.evidence, rows.since)
    return replace(ended, error=delivery.error or ended.error, notes=(*delivery.notes, *ended.notes))


def _take_baseline(context: SendContext, reader: Reader) -> None:
    """Store the baseline before the first request. Without the right to read there is none, and rows in doubt stay in doubt."""
    journal = context.journal
    if journal.has_sent or journal.recall("baseline") is not None or journal.header.kind in ("update", "delete"):
        return
    newest = context.newest()
    try:
        if newest is None and journal.header.mode != "create":
            with suppress(RejectedError):
                newest = reader.list_records(reader.object_id, sort="updated_at", order="desc", limit=PAGE_LIMIT)
        baseline = Baseline.of_changed(newest) if newest is not None else None
        journal.remember("baseline", (baseline or Baseline.of(reader.page())).to_document())
        if baseline is not None and newest is not None and journal.recall(AS_OF) is None:
            journal.remember(AS_OF, max((micros_of(record.updated_at) or 0 for record in newest.items), default=0))
    except (ServiceError, RejectedError, ForbiddenError):
        pass


def entry_maker(journal: Journal) -> Callable[[SendableRow], Entry]:
    """Return the function that turns a row into the entry to send, with the id of the record that its key identifies."""
    header = journal.header
    with_id = header.mode != "create"
    if not header.keys and not with_id:
        return lambda row: row if type(row) is Entry else entry_of(row, with_id=False)
    if not header.keys:
        return lambda row: entry_of(row, with_id=True)
    return lambda row: entry_of(row, with_id=True, target=journal.recall(row.ordinal, TARGET))


def rows_of(journal: Journal, rows: InputRows) -> Callable[[], Iterator[Entry]]:
    entry = entry_maker(journal)
    return lambda: (entry(row) for row in rows() if not row.findings or rejection(row) is None)


def rejection(row: SendableRow) -> str | None:
    """Return the reasons for rejecting a row in one line; None if the row is valid."""
    rejecting = (finding for finding in row.findings if finding.rejects)
    return "; ".join(finding.message if finding.column is None else f"{finding.column}: {finding.message}" for finding in rejecting) or None
