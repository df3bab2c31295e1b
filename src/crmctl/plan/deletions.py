"""Delete selected records, after a copy of them was saved."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from crmctl.bulk_context import BulkContext
from crmctl.client.crm import Crm
from crmctl.client.session import AttemptObserver
from crmctl.errors import CrmctlError, PartialError, RejectedError, StorageError, UsageError, reason
from crmctl.files.mapping import MappingOptions, Mode
from crmctl.files.rows import SourceOptions, spool_ids
from crmctl.files.spills import chunks
from crmctl.files.validation import Payload
from crmctl.files.whole_files import check_place, whole_bytes
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.resources import BULK_LIMIT, Attribute, BulkResult, Record, document_of
from crmctl.plan.changes import Selection
from crmctl.plan.import_plan import ImportPlan
from crmctl.plan.job_run import JobHooks, requests_made, run_or_leave_nothing
from crmctl.plan.job_start import ImportRun, JobOptions, start_import, temporary_table
from crmctl.plan.requests import resolve_target, store_of
from crmctl.plan.results import ImportResult, service_words
from crmctl.read.records import KnownRecords, read_known, read_one
from crmctl.write.database import JobKind, RowState
from crmctl.write.effect import delete_records
from crmctl.write.jobs import effort
from crmctl.write.journal import Journal, RowEntry, doubtful, entries_of
from crmctl.write.send_context import DeliveryOptions, WriteBatch, write_requests

NAMED_RECORDS = 5
"""The number of records a confirmation prompt names."""


@frozen
class DeleteRequest:
    """A request to delete records. `backup` is False for no backup, a path, or True for a file in the job's folder."""

    object: str
    selection: Selection
    backup: bool | str | Path = True
    expect: int | None = None
    concurrency: int = 2
    dry_run: bool = False


@dataclass
class DeleteSummary:
    """Counts by outcome. `unsent` ids were not requested."""

    object: str
    deleted: int = 0
    not_found: int = 0
    failed: int = 0
    in_doubt: int = 0
    unsent: int = 0
    requests: int = 0
    elapsed: float = 0.0
    error: CrmctlError | None = None
    job: str | None = None
    backup: Path | None = None
    refusals: Sequence[str] = ()
    is_resumable: bool = False

    def to_document(self) -> dict[str, Any]:
        names = "job object deleted not_found failed in_doubt unsent requests elapsed_seconds backup"
        return document_of(self, names, elapsedSeconds=round(self.elapsed, 3))


@frozen
class Deletion:
    """A planned deletion and, once it has run, its outcome. `first`: the ids of the first request; `named`: the first records."""

    object: str
    object_id: str
    records: int
    first: Sequence[str]
    summary: DeleteSummary | None = None
    named: Sequence[Record] = ()
    attributes: Sequence[Attribute] = ()
    absent: int = 0
    reads: int = 0

    @property
    def requests(self) -> int:
        """The total number of requests, including those that found the records."""
        return self.reads + write_requests(self.records)

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form: the outcome, or before the run the complete first request."""
        if self.summary is not None:
            return self.summary.to_document()
        path = f"/api/v1/objects/{self.object_id}/records/bulk"
        body = {"ids": list(self.first)}
        return {"dryRun": True, "method": "DELETE", "path": path, "body": body, "records": self.records, "requests": self.requests}

    def raise_for_error(self) -> None:
        summary = self.summary
        if summary is None:
            return
        if summary.error is not None:
            raise summary.error
        others = {"failed": summary.failed, "in doubt": summary.in_doubt, "not sent": summary.unsent}
        if counts := ", ".join(f"{count:,} {state}" for state, count in others.items() if count):
            message = f"not every record was deleted: {counts}{service_words(summary.refusals)}"
            raise PartialError(message, hint=f"crmctl bulk resume {summary.job}" if summary.is_resumable else None)


def delete(context: BulkContext, request: DeleteRequest, approve: Callable[[Deletion], None]) -> Deletion:
    """Read the records, show the plan to `approve`, and delete them as a job. A dry run returns the plan instead.

    `approve` raises to cancel. The result lists the records the service refused. Raises UsageError for an ambiguous selection,
    RejectedError for a malformed id or an unexpected number of records, and StorageError if the backup cannot be written. Each of these
    errors stops the deletion before its first request.
    """
    request.selection.check()
    store = store_of(context)
    if isinstance(request.backup, str | Path):
        check_place(Path(request.backup))
    target = resolve_target(context, request.object)
    with ExitStack() as stack:
        records = stack.enter_context(KnownRecords())
        request.selection.read(context, target.object_id, records)
        count, first = records.found, [record.id for record in islice(records, BULK_LIMIT)]
        plan = Deletion(
            request.object, target.object_id, count, first, named=list(islice(records, NAMED_RECORDS)), attributes=target.attributes,
            absent=len(records) - count,
        )  # fmt: skip
        if request.expect not in (None, count):
            message = f"{count:,} records would be deleted, --expect says {request.expect:,}; nothing was deleted"
            hint = "--dry-run shows what would be done"
            raise RejectedError(message, hint=hint, code="unexpected_changes", details={"changes": count})
        if request.dry_run:
            return replace(plan, reads=requests_made(context))
        if not plan.records:
            return replace(plan, summary=DeleteSummary(request.object, not_found=plan.absent, requests=requests_made(context)))
        approve(plan)
        ids_input = stack.enter_context(temporary_table(store, request.selection.name, partial(spool_ids, records.ids())))
        only_ids = ImportPlan(SourceOptions(format="csv", delimiter=","), MappingOptions(Mode.DELETE))
        job = start_import(store, target, ids_input, JobOptions(only_ids, kind=JobKind.DELETE))
        place = job.journal.folder / BACKUP_NAME if request.backup is True else request.backup
        job.journal.remember(PLACE, str(Path(place).absolute()) if place else None)
        hooks, delivery = DeleteHooks(job, records), DeliveryOptions(concurrency=request.concurrency)
        result = run_or_leave_nothing(context, hooks, delivery)
        return deletion_of(context, result)


def deletion_of(context: BulkContext, result: ImportResult) -> Deletion:
    """Return the outcome of a deletion job from the result of its last run."""
    store = store_of(context)
    job = store.find(str(result.job))
    with closing(store.open(job)) as journal:
        counts, (requests, elapsed) = journal.counts(), effort(journal)
        backup, refusals = KeptRecords.of(journal), journal.refusals()
        if not refusals:
            rows = chain.from_iterable(journal.rows(batch.first, batch.last).values() for batch in doubtful(journal))
            refusals = [row.error for row in rows if row.state is RowState.IN_DOUBT and row.error]
        summary = DeleteSummary(
            job.header.object,
            deleted=counts[RowState.UPDATED],
            not_found=counts[RowState.SKIPPED] + counts[RowState.CREATED],
            failed=counts[RowState.FAILED],
            in_doubt=counts[RowState.IN_DOUBT],
            unsent=counts[RowState.UNSENT],
            requests=requests,
            elapsed=elapsed,
            error=None if isinstance(result.error, PartialError | RejectedError) else result.error,
            job=job.id,
            backup=backup.path if backup is not None else None,
            refusals=tuple(refusals),
            is_resumable=job.is_resumable,
        )
    return Deletion(job.header.object, job.header.object_id, sum(job.counts.values()), (), summary)


BACKUP_NAME = "backup.jsonl"

PLACE = "backup to"
"""Journal fact: the path the backup will have; None for no backup."""

BACKUP = "backup"
"""Journal fact: the path of the backup and its SHA-256."""


class KeptRecords(NamedTuple):
    """A complete backup."""

    path: Path
    sha256: str

    @classmethod
    def of(cls, journal: Journal) -> KeptRecords | None:
        backup = journal.recall(BACKUP)
        return cls(Path(backup["path"]), backup["sha256"]) if backup else None

    def records(self) -> Iterator[Record]:
        """Yield every record of the backup. Raises UsageError if the file is missing or was changed."""
        try:
            with self.path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != self.sha256:
                raise UsageError(f"the backup {self.path} is not what was written", hint="put it back as it was", code="backup_changed")
            with self.path.open("rb") as file:
                yield from (Record.parse(jsontext.loads(line)) for line in file)
        except OSError as error:
            raise UsageError(f"cannot read the backup {self.path}: {reason(error)}", hint="put it back", code="backup_gone") from error


@frozen
class DeleteHooks(JobHooks):
    """The steps of a deletion. `known` holds the records if they were just read; a resumed job reads them again."""

    known: KnownRecords | None = None

    def writer(self, service: Crm) -> WriteBatch:
        return partial(self._delete, service)

    def _delete(self, service: Crm, object_id: str, records: Sequence[bytes], watch: AttemptObserver) -> BulkResult:
        """Delete the records of these rows. In the result, `updated` counts deleted records and `created` those already gone."""
        return delete_records(service, object_id, [str(jsontext.loads(record)["id"]) for record in records], watch=watch)[0]

    def approve(self, run: ImportRun) -> None:
        journal = self.job.journal
        place = journal.recall(PLACE)
        with ExitStack() as stack:
            records = self.known or stack.enter_context(read_known(run.reader(), self._ids(), run.progress))
            if place is not None:
                self._write(journal, Path(place), records)
            for chunk in chunks(self._valid()):
                absent = [row for row in chunk if records.get(row.id or "") is None]
                journal.conclude((row.ordinal, RowState.SKIPPED, row.id, "there is no such record") for row in absent)

    def _write(self, journal: Journal, place: Path, records: KnownRecords) -> None:
        digest = hashlib.sha256()
        try:
            with whole_bytes(place, mode=0o600) as file:
                for record in records:
                    line = f"{jsontext.dumps(record.wire)}\n".encode()
                    digest.update(line)
                    file.write(line)
        except StorageError as error:
            message = f"the backup cannot be written, nothing was deleted: {error.message}"
            raise StorageError(message, code=error.code, hint=error.hint) from error
        journal.remember(BACKUP, {"path": str(place.absolute()), "sha256": digest.hexdigest()})

    def compare_unsent(self, run: ImportRun) -> None:
        """Fail open rows whose records changed since they were copied: an undo would lose the change. Raises read errors."""
        journal, backup = self.job.journal, KeptRecords.of(self.job.journal)
        if backup is None:
            return
        with read_known(run.reader(), (str(row.id) for row, _ in self._open_rows()), run.progress) as records:
            changed = {old.id.lower() for old in backup.records() if (now := records.get(old.id)) is not None and now.data != old.data}
        rows = [(row, entry) for row, entry in self._open_rows() if str(row.id).lower() in changed]
        rows = [(row, entry) for row, entry in rows if entry is None or read_one(run.reader(), str(row.id)) is not None]
        for row, entry in rows:
            if entry is not None:  # in doubt, but not deleted
                journal.resolve(journal.batches_of(row.ordinal, row.ordinal)[row.ordinal], {}, (row.ordinal,))
        journal.conclude((row.ordinal, RowState.FAILED, row.id, "not deleted: it changed since the job began") for row, _ in rows)

    def _open_rows(self) -> Iterator[tuple[Payload, RowEntry | None]]:
        rows = entries_of(self.job.journal, self._valid())
        return ((row, entry) for row, entry in rows if row.id and (entry is None or entry.state is RowState.IN_DOUBT))
