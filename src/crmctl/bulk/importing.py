"""One import from its validated rows to its outcome: the check of the whole input, then sending. The journal decides what is left to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from crmctl.bulk.batches import Entry, Row, entry_of
from crmctl.bulk.delivery import Delivery, DeliveryOptions
from crmctl.bulk.findings import Finding, Severity
from crmctl.bulk.interrupts import Interrupt, watch_interrupts
from crmctl.bulk.journal import Journal
from crmctl.bulk.sender import Progress, Writer
from crmctl.bulk.spool import EntrySpool
from crmctl.bulk.states import JobState, RowState
from crmctl.clock import Clock
from crmctl.errors import CrmctlError, InterruptedByUser

CHUNK_ROWS = 500


class Payload(Row, Protocol):
    """A validated row and what was found wrong with it; the same each time the same input is read."""

    @property
    def findings(self) -> Sequence[Finding]: ...


Payloads = Callable[[], Iterable[Any]]
"""Reads the input anew, yielding `Payload`s in input order."""


@dataclass(frozen=True)
class ImportOptions:
    """`stop_on_error`: one locally invalid row means that nothing is sent."""

    stop_on_error: bool = True
    delivery: DeliveryOptions = field(default_factory=DeliveryOptions)


@dataclass(frozen=True)
class RunResult:
    """How one run of a job ended: the error that ended it early (an interrupt too), and what the user should know."""

    error: CrmctlError | None = None
    notes: tuple[str, ...] = ()


def run_import(
    writer: Writer,
    journal: Journal,
    payloads: Payloads,
    options: ImportOptions,
    clock: Clock,
    progress: Progress,
    report: Callable[[Finding], None],
) -> RunResult:
    """Do what is left of an import job: check the input where that is not done, then send the rows that may be sent.

    `report` hears every finding of the check. Everything about single rows is in the journal afterwards; an error that ended the run early
    is returned, not raised, because there is a summary all the same. Raises CrmctlError for an input that cannot be read, and UsageError
    when another process works on the job.
    """
    started = clock.monotonic()
    with journal.hold(), watch_interrupts() as interrupt:
        try:
            if doubtful := journal.recover():
                journal.note("recovered", f"{doubtful} requests were on their way when the program ended")
            if journal.state is not JobState.CHECKING:
                return _send(writer, journal, _unsent(journal, payloads), options, clock, progress, interrupt)
            with EntrySpool(journal.folder) as spool:
                try:
                    _check(journal, payloads, spool, options, progress, report, interrupt)
                except CrmctlError:
                    journal.set_state(JobState.REJECTED)
                    raise
                return _send(writer, journal, spool, options, clock, progress, interrupt)
        finally:
            journal.add_effort(0, clock.monotonic() - started)


def _check(
    journal: Journal,
    payloads: Payloads,
    spool: EntrySpool,
    options: ImportOptions,
    progress: Progress,
    report: Callable[[Finding], None],
    interrupt: Interrupt,
) -> None:
    """Read and validate everything before anything is sent; an interrupted check starts over the next time."""
    journal.restart_check()
    progress.start("checking")
    with_id = journal.header.mode == "upsert"
    rejected = fatal = False
    for chunk in chunks(payloads()):
        errors = {payload.ordinal: text for payload in chunk if payload.findings and (text := rejection(payload)) is not None}
        for finding in (finding for payload in chunk for finding in payload.findings):
            report(finding)
            fatal = fatal or finding.severity is Severity.FATAL
        journal.record_check(len(chunk), errors.items())
        spool.add(entry_of(payload, with_id=with_id) for payload in chunk if payload.ordinal not in errors)
        rejected = rejected or bool(errors)
        progress.advance(len(chunk))
        if interrupt.requested:
            progress.finish()
            return
    progress.finish()
    journal.set_state(JobState.REJECTED if fatal or (rejected and options.stop_on_error) else JobState.OPEN)


def _send(
    writer: Writer,
    journal: Journal,
    entries: Iterable[Entry],
    options: ImportOptions,
    clock: Clock,
    progress: Progress,
    interrupt: Interrupt,
) -> RunResult:
    if journal.state is not JobState.OPEN:
        return RunResult(InterruptedByUser("interrupted") if interrupt.requested else None)
    counts = journal.counts()
    delivery = Delivery(writer, journal, options.delivery, clock, progress, interrupt)
    progress.start("importing", counts[RowState.UNSENT])
    try:
        if counts[RowState.UNSENT]:
            delivery.run(entries)
    finally:
        progress.finish()
    counts = journal.counts()
    if not counts[RowState.UNSENT] and not counts[RowState.IN_DOUBT]:
        journal.set_state(JobState.FINISHED)
    return RunResult(delivery.error, tuple(delivery.notes))


def _unsent(journal: Journal, payloads: Payloads) -> Iterator[Entry]:
    """The rows of a job that goes on which may be sent: neither rejected, nor with an outcome, nor in doubt."""
    with_id = journal.header.mode == "upsert"
    for chunk in chunks(payloads()):
        taken = journal.taken(chunk[0].ordinal, chunk[-1].ordinal)
        for payload in chunk:
            if payload.ordinal not in taken:
                yield entry_of(payload, with_id=with_id)


def rejection(payload: Payload) -> str | None:
    """Why a row is not sent, in one line; None for a row that is."""
    rejecting = (finding for finding in payload.findings if finding.rejects)
    return "; ".join(finding.message if finding.column is None else f"{finding.column}: {finding.message}" for finding in rejecting) or None


def chunks(payloads: Iterable[Payload]) -> Iterator[list[Payload]]:
    iterator = iter(payloads)
    while chunk := list(islice(iterator, CHUNK_ROWS)):
        yield chunk
