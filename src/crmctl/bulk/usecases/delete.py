"""Deleting many records, given by id or by conditions: all are known, agreed to, and in a backup before the first one is deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from crmctl.bulk.atomic_file import check_place
from crmctl.bulk.context import BulkContext
from crmctl.bulk.journal.jobs import JobInfo
from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.journal.states import JobKind, RowState
from crmctl.bulk.read.known_records import KnownRecords
from crmctl.bulk.rows.mapping import MappingOptions, Mode
from crmctl.bulk.run.delete_hooks import BACKUP_NAME, PLACE, SEEN, DeleteHooks, KeptRecords
from crmctl.bulk.run.job_start import ImportTarget, JobOptions, start_import, temporary_ids
from crmctl.bulk.run.plan import ImportPlan
from crmctl.bulk.send.context import DeliveryOptions
from crmctl.bulk.send.deletion import DeleteSummary
from crmctl.bulk.sources.rows import SourceOptions
from crmctl.bulk.usecases.job_run import RunOptions, run_or_leave_nothing
from crmctl.bulk.usecases.results import ImportResult, service_words
from crmctl.bulk.usecases.selected_records import Selection
from crmctl.bulk.usecases.targets import resolve_target, store_of
from crmctl.errors import CrmctlError, DeniedError, PartialError, RejectedError
from crmctl.models.attributes import Attribute
from crmctl.models.records import BULK_LIMIT, Record

NAMED = 5
"""How many of the records a question names."""


@dataclass(frozen=True)
class DeleteRequest:
    """Records of `object`. `backup`: False for none, a path, or True for a file in the job's folder."""

    object: str
    selection: Selection
    backup: bool | str | Path = True
    expect: int | None = None
    concurrency: int = 2
    dry_run: bool = False


@dataclass(frozen=True)
class Deletion:
    """What a deletion is about to do, and, once it is done, what became of it. `first`: the ids of its first request, `named`: the first
    records, where they were read."""

    object: str
    object_id: str
    records: int
    first: Sequence[str]
    summary: DeleteSummary | None = None
    named: Sequence[Record] = ()
    attributes: Sequence[Attribute] = ()
    absent: int = 0

    @property
    def requests(self) -> int:
        return -(-self.records // BULK_LIMIT)

    def to_document(self) -> dict[str, Any]:
        """The JSON form: of what it did, else its first request in full."""
        if self.summary is not None:
            return self.summary.to_document()
        path = f"/api/v1/objects/{self.object_id}/records/bulk"
        body = {"ids": list(self.first)}
        return {"dryRun": True, "method": "DELETE", "path": path, "body": body, "records": self.records, "requests": self.requests}

    @property
    def error(self) -> CrmctlError | None:
        """What ended it early, or that not every record was deleted."""
        summary = self.summary
        if summary is None or summary.error is not None:
            return summary.error if summary is not None else None
        left = {"failed": summary.failed, "in doubt": summary.in_doubt, "not sent": summary.unsent}
        said = ", ".join(f"{count:,} {what}" for what, count in left.items() if count)
        return PartialError(f"not every record was deleted: {said}{service_words(summary.refusals)}") if said else None

    def raise_for_error(self) -> None:
        """Raises the error that goes with the outcome; nothing when every record is gone."""
        if self.error is not None:
            raise self.error


def example_deletion(object_name: str) -> dict[str, Any]:
    """What a deletion tells a program, without anything in it."""
    return DeleteSummary(object_name).to_document()


def delete(context: BulkContext, request: DeleteRequest, approve: Callable[[Deletion], None]) -> Deletion:
    """Read the records, show what is about to be deleted to `approve`, which raises to leave it, and delete them as a job; a dry run stops
    before that.

    What the service refuses is in the result. Raises UsageError when it is not clear which records are meant, RejectedError for what is no
    id and for another number of records than expected, and StorageError when the backup cannot be written: then nothing is deleted.
    """
    request.selection.check()
    store = store_of(context)
    if isinstance(request.backup, str | Path):
        check_place(Path(request.backup))
    target = resolve_target(context, request.object)
    with ExitStack() as stack:
        known = stack.enter_context(KnownRecords())
        is_read = _read(context, request, target.object_id, known)
        plan = _planned(request, target, known, is_read=is_read)
        _check_number(request, plan)
        if request.dry_run:
            return plan
        if not plan.records:
            return _done(plan, DeleteSummary(request.object, not_found=plan.absent))
        approve(plan)
        given = stack.enter_context(temporary_ids(store, _ids(known), request.selection.name))
        only_ids = ImportPlan(SourceOptions(format="csv", delimiter=","), MappingOptions(Mode.DELETE))
        job = start_import(store, target, given, JobOptions(only_ids, kind=JobKind.DELETE))
        place = job.journal.folder / BACKUP_NAME if request.backup is True else request.backup
        job.journal.remember(PLACE, str(Path(place).absolute()) if place else None)
        hooks = (lambda job: DeleteHooks(job, known)) if is_read else DeleteHooks
        options = RunOptions(DeliveryOptions(concurrency=request.concurrency), hooks=hooks)
        result = run_or_leave_nothing(context, job, options)
        return deletion_of(context, store.find(job.id), result)


def resumed_deletion(context: BulkContext, result: ImportResult) -> Deletion | None:
    """What became of a job that was gone on with; None for one that deletes nothing."""
    if result.summary.mode != JobKind.DELETE or result.job is None:
        return None
    return deletion_of(context, store_of(context).find(result.job), result)


def deletion_of(context: BulkContext, job: JobInfo, result: ImportResult | None = None) -> Deletion:
    """What became of a job that deletes; `result` is that of its last run."""
    with closing(store_of(context).open(job)) as journal:
        summary = _summary(journal, result)
    return _done(Deletion(job.header.object, job.header.object_id, sum(job.counts.values()), ()), summary)


def _done(plan: Deletion, summary: DeleteSummary) -> Deletion:
    return Deletion(plan.object, plan.object_id, plan.records, plan.first, summary)


def _summary(journal: Journal, result: ImportResult | None) -> DeleteSummary:
    counts, (requests, elapsed) = journal.counts(), journal.effort()
    absent, doubted = counts[RowState.CREATED], bool(journal.doubted()) and not journal.recall(SEEN)
    error = result.error if result is not None and not isinstance(result.error, PartialError | RejectedError) else None
    backup = KeptRecords.of(journal)
    return DeleteSummary(
        journal.header.object,
        deleted=counts[RowState.UPDATED],
        not_found=counts[RowState.SKIPPED] + (0 if doubted else absent),
        failed=counts[RowState.FAILED],
        uncertain=absent if doubted else 0,
        in_doubt=counts[RowState.IN_DOUBT],
        unsent=counts[RowState.UNSENT],
        requests=requests,
        elapsed=elapsed,
        error=error,
        job=journal.header.job,
        backup=backup.path if backup is not None else None,
        refusals=tuple(journal.refusals()),
    )


def _read(context: BulkContext, request: DeleteRequest, object_id: str, known: KnownRecords) -> bool:
    """Fill `known`; without the right to read, with ids only, where no backup is wanted. Says whether records were read."""
    try:
        request.selection.read(context, object_id, known)
        return True
    except DeniedError as error:
        if error.status != 403 or request.selection.conditions:
            raise
        if request.backup:
            error.hint = f"{error.hint}; or --no-backup deletes without a copy" if error.hint else "--no-backup deletes without a copy"
            raise
    return False


def _planned(request: DeleteRequest, target: ImportTarget, known: KnownRecords, *, is_read: bool) -> Deletion:
    count = known.found if is_read else len(known)
    first = list(islice((record.id for record in known) if is_read else known.ids(), BULK_LIMIT))
    named = list(islice(known, NAMED))
    absent = len(known) - count
    return Deletion(request.object, target.object_id, count, first, named=named, attributes=target.attributes, absent=absent)


def _check_number(request: DeleteRequest, plan: Deletion) -> None:
    if request.expect is not None and plan.records != request.expect:
        raise RejectedError(
            f"{plan.records:,} records would be deleted, --expect says {request.expect:,}; nothing was deleted",
            hint="--dry-run shows what would be done",
            code="unexpected_changes",
            details={"changes": plan.records},
        )


def _ids(known: KnownRecords) -> Iterator[str]:
    """Every id, as the service spells it where it is known."""
    return chain((record.id for record in known), known.missing())
