"""Update and delete selected records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from crmctl.bulk_context import BulkContext, showing
from crmctl.client.answers import Page
from crmctl.client.directory import known_attributes
from crmctl.client.query.record_query import stray_finder
from crmctl.client.session import encode_json
from crmctl.errors import CrmctlError, ForbiddenError, PartialError, RejectedError, UsageError
from crmctl.files.cell_values import ValueOptions, check_region
from crmctl.files.mapping import MappingOptions, Mode
from crmctl.files.rows import SourceOptions, spool_ids
from crmctl.files.sources import STDIN, GivenInput, is_stream
from crmctl.files.validation import Entry, Payload
from crmctl.files.whole_files import check_place
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.ids import check_choice, is_uuid
from crmctl.models.resources import BULK_LIMIT, PAGE_LIMIT, Attribute, Record
from crmctl.plan.dry_run import seconds_for
from crmctl.plan.import_plan import Guard, ImportPlan, PlannedInput, RowAction, open_input
from crmctl.plan.job_hooks import (
    BACKUP_NAME,
    PLACE,
    Approve,
    ChangeForecast,
    Changing,
    DeleteHooks,
    KeptRecords,
    UpdateHooks,
)
from crmctl.plan.job_run import RunOptions, requests_made, run_or_leave_nothing
from crmctl.plan.job_start import ImportTarget, JobOptions, start_import, temporary_input, temporary_table
from crmctl.plan.requests import GuardedRequest, resolve_target, sample_records, store_of
from crmctl.plan.results import FindingLog, ImportResult, rejected_rows, service_words
from crmctl.read.read_back import Reader
from crmctl.read.records import PAGE_STEP, Cost, KnownRecords, fetch, scan
from crmctl.read.stable_pages import Listing, SeenIds
from crmctl.values.composites import currency_code, parse_assignments
from crmctl.values.filters import Condition, format_condition
from crmctl.write.database import JobKind, RowState
from crmctl.write.deletion import DeleteSummary, read_ids
from crmctl.write.in_flight import DeliveryOptions, write_requests
from crmctl.write.jobs import JobInfo, Summary, effort
from crmctl.write.journal import DOUBTED, SEEN


@dataclass
class _PricedReader(Reader):
    """Report the remaining cost of a list once its first page states the total: its pages, and one request from the other end."""

    tell: Callable[[Cost], None] | None = None

    def list_records(self, object_id: str, **asked: Any) -> Page[Record]:
        page = super().list_records(object_id, **asked)
        tell, self.tell = self.tell, None
        unread = (page.total or 0) - len(page.items)
        if tell is not None and unread > 0 and page.items:
            tell(Cost(-(-unread // PAGE_STEP) + (len(page.items) >= PAGE_LIMIT), as_a_whole=True))
        return page


@frozen
class Selection:
    """The records to change: ids from a file (`-` is stdin), given `ids`, or the matches of all conditions. `verb`: the change in words."""

    ids_file: str | None = None
    conditions: Sequence[Condition] = ()
    ids: Iterable[str] | None = None
    verb: str = "update"
    admits: Callable[[Record], bool] | None = None
    """Evaluates locally the conditions that the service does not support."""
    price: Callable[[int], None] = lambda _: None
    """Receives the number of requests before the records are read; raises CrmctlError to cancel."""
    typed: Sequence[str] = ()
    """The conditions as the user typed them."""

    @property
    def is_filter(self) -> bool:
        return bool(self.conditions) or self.admits is not None

    @property
    def name(self) -> str:
        """The origin of the records, as shown in job lists."""
        if self.ids_file is not None:
            return self.ids_file
        if not self.is_filter:
            return "ids"
        return " ".join(f"--filter '{text}'" for text in self.typed or map(format_condition, self.conditions))

    def check(self) -> None:
        """Raise UsageError if the selection is ambiguous or the file of ids cannot be read."""
        if sum((self.ids_file is not None, self.ids is not None, self.is_filter)) != 1:
            raise UsageError("say which records: either --ids or --filter", hint=f"crmctl bulk {self.verb} --help")
        if self.ids_file is not None:
            is_stream(self.ids_file)

    def read_ids(self, context: BulkContext, ids: SeenIds) -> None:
        """Add the given ids to `ids`. Raises RejectedError for a malformed id, UsageError for a file without any id."""
        if self.ids is not None:
            for record_id in self.ids:
                if not is_uuid(record_id):
                    raise RejectedError(f"{record_id!r} is not a record id; nothing was {self.verb}d", code="malformed_id")
                ids.add(record_id.lower())
        elif self.ids_file is not None:
            name = "stdin" if self.ids_file == STDIN else self.ids_file
            with temporary_input(store_of(context), self.ids_file, context.stdin) as ids_input:
                read_ids(ids_input.path, name, ids)
            if not len(ids):
                context.listener.note(f"{name} holds no ids: nothing to {self.verb}")

    def read(self, context: BulkContext, object_id: str, records: KnownRecords) -> int:
        """Read the records into `known` and return the number of requests. Raises reading errors and those of `read_ids`."""
        reader = _PricedReader(context.service, object_id, tell=self._tell if self.is_filter else None)
        with SeenIds() as ids:
            if self.is_filter:
                pages = scan(reader, Listing(object_id, self.conditions), ids)
            else:
                self.read_ids(context, ids)
                for chunk in ids.chunks(500):
                    records.want(chunk)
                pages = fetch(reader, ids, self._tell, lambda _: True)
            heeded, total = self._heeded(context, object_id), None if self.is_filter else len(ids)
            with showing(context.listener.progress, "collecting", total, PAGE_LIMIT) as progress:
                for page in pages:
                    records.add(filter(self.admits, heeded(page)) if self.admits is not None else heeded(page))
                    progress.advance(len(page))
        return reader.requests

    def _heeded(self, context: BulkContext, object_id: str) -> Callable[[Iterable[Record]], Iterable[Record]]:
        """Return a function that drops records which clearly fail the conditions, because a service may ignore a filter."""
        if not self.conditions:
            return lambda records: records
        find = stray_finder(known_attributes(context.directory, object_id, context.listener.note) or (), self.conditions)
        warnings: list[str] = []

        def heeded(records: Iterable[Record]) -> Iterator[Record]:
            for record in records:
                if (stray := find(record)) is None:
                    yield record
                elif not warnings:
                    warnings.append(stray)
                    context.listener.note(f"{stray}: such records are left alone")

        return heeded

    def _tell(self, cost: Cost) -> None:
        self.price(cost.requests)


NAMED = 5
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
            raise PartialError(f"not every record was deleted: {counts}{service_words(summary.refusals)}")


def example_deletion(object_name: str) -> dict[str, Any]:
    return DeleteSummary(object_name).to_document()


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
        is_read = _read(context, request, target.object_id, records)
        plan = _planned(request, target, records, is_read=is_read)
        _check_number(request, plan)
        if request.dry_run:
            return replace(plan, reads=requests_made(context))
        if not plan.records:
            return replace(plan, summary=DeleteSummary(request.object, not_found=plan.absent, requests=requests_made(context)))
        approve(plan)
        ids = chain((record.id for record in records), records.missing())  # in the service's spelling where the record was read
        ids_input = stack.enter_context(temporary_table(store, request.selection.name, partial(spool_ids, ids)))
        only_ids = ImportPlan(SourceOptions(format="csv", delimiter=","), MappingOptions(Mode.DELETE))
        job = start_import(store, target, ids_input, JobOptions(only_ids, kind=JobKind.DELETE))
        place = job.journal.folder / BACKUP_NAME if request.backup is True else request.backup
        job.journal.remember(PLACE, str(Path(place).absolute()) if place else None)
        hooks = (lambda job: DeleteHooks(job, records)) if is_read else DeleteHooks
        options = RunOptions(DeliveryOptions(concurrency=request.concurrency), hooks=hooks)
        result = run_or_leave_nothing(context, job, options)
        return deletion_of(context, store.find(job.id), result)


def resumed_deletion(context: BulkContext, result: ImportResult) -> Deletion | None:
    """Return the outcome of a resumed deletion; None for any other kind of job."""
    if result.summary.mode != JobKind.DELETE or result.job is None:
        return None
    return deletion_of(context, store_of(context).find(result.job), result)


def deletion_of(context: BulkContext, job: JobInfo, result: ImportResult) -> Deletion:
    """Return the outcome of a deletion job; `result` comes from its last run."""
    with closing(store_of(context).open(job)) as journal:
        counts, (requests, elapsed) = journal.counts(), effort(journal)
        absent, doubted = counts[RowState.CREATED], bool(journal.kept(DOUBTED)) and not journal.recall(SEEN)
        backup = KeptRecords.of(journal)
        summary = DeleteSummary(
            job.header.object,
            deleted=counts[RowState.UPDATED],
            not_found=counts[RowState.SKIPPED] + (0 if doubted else absent),
            failed=counts[RowState.FAILED],
            uncertain=absent if doubted else 0,
            in_doubt=counts[RowState.IN_DOUBT],
            unsent=counts[RowState.UNSENT],
            requests=requests,
            elapsed=elapsed,
            error=None if isinstance(result.error, PartialError | RejectedError) else result.error,
            job=job.id,
            backup=backup.path if backup is not None else None,
            refusals=tuple(journal.refusals()),
        )
    return Deletion(job.header.object, job.header.object_id, sum(job.counts.values()), (), summary)


def _read(context: BulkContext, request: DeleteRequest, object_id: str, records: KnownRecords) -> bool:
    """Fill `known`, and return whether crmctl may read records: a deletion by id without a backup needs only the ids."""
    try:
        request.selection.read(context, object_id, records)
        return True
    except ForbiddenError as error:
        if request.selection.conditions:
            raise
        if request.backup:
            error.hint = f"{error.hint}; or --no-backup deletes without a copy" if error.hint else "--no-backup deletes without a copy"
            raise
    return False


def _planned(request: DeleteRequest, target: ImportTarget, records: KnownRecords, *, is_read: bool) -> Deletion:
    count = records.found if is_read else len(records)
    first = list(islice((record.id for record in records) if is_read else records.ids(), BULK_LIMIT))
    named = list(islice(records, NAMED))
    absent = len(records) - count
    return Deletion(request.object, target.object_id, count, first, named=named, attributes=target.attributes, absent=absent)


def _check_number(request: DeleteRequest, plan: Deletion) -> None:
    if request.expect is not None and plan.records != request.expect:
        raise RejectedError(
            f"{plan.records:,} records would be deleted, --expect says {request.expect:,}; nothing was deleted",
            hint="--dry-run shows what would be done",
            code="unexpected_changes",
            details={"changes": plan.records},
        )


@frozen(kw_only=True)
class UpdateRequest(GuardedRequest):
    """A request to set `set_values` (`slug=value`) on the selected records, with the options of `crmctl bulk update`."""

    object: str
    selection: Selection
    set_values: Sequence[str]
    on_error: str = "stop"
    default_region: str | None = None
    currency: str | None = None

    def plan(self) -> ImportPlan:
        check_choice("--on-error", self.on_error, ("stop", "continue"))
        values = ValueOptions(default_region=check_region(self.default_region), currency=currency_code(self.currency))
        mapping = MappingOptions(Mode.UPSERT, set_values=tuple(self.set_values))
        return ImportPlan(SourceOptions(format="csv", delimiter=","), mapping, values, self.on_error == "stop")


@frozen
class UpdatePreview:
    """A preview of an update: its forecast, the complete first request, and the error that would stop it."""

    object_id: str
    forecast: ChangeForecast
    first: Sequence[Entry]
    reads: int
    seconds: float
    findings: FindingLog = field(default_factory=FindingLog)
    error: CrmctlError | None = None

    @property
    def requests(self) -> int:
        """The total number of requests, including those of the preview."""
        return self.reads + self.forecast.requests

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form: a summary, the first request, and sample changes with the values they overwrite. Every key is present."""
        forecast = self.forecast
        counts = dict.fromkeys(RowState, 0) | {
            RowState.UNSENT: forecast.changes, RowState.UNCHANGED: forecast.unchanged, RowState.REJECTED: forecast.rejected,
        }  # fmt: skip
        return {
            **Summary(None, forecast.object, JobKind.UPDATE, counts, self.requests, 0.0, {}).to_document(),
            "dryRun": True,
            "method": "POST",
            "path": f"/api/v1/objects/{self.object_id}/records/bulk",
            "body": {"mode": "upsert", "records": [jsontext.loads(entry.encoded) for entry in self.first]},
            "estimatedSeconds": round(self.seconds, 1),
            "samples": [change.to_document() for change in forecast.samples],
        }

    def raise_for_error(self) -> None:
        if self.error is not None:
            raise self.error


def update(context: BulkContext, request: UpdateRequest, approve: Approve) -> ImportResult:
    """Read the records, show the changes to `approve`, and write them as a job.

    The result holds the outcome of each record. Raises CrmctlError if the job cannot begin, and the error of `approve` if the user cancels;
    neither leaves a job.
    """
    _check(request)
    store = store_of(context)
    store.prepare()
    delivery, plan = request.delivery(), request.plan()
    target = resolve_target(context, request.object)
    with ExitStack() as stack:
        records = stack.enter_context(KnownRecords())
        ids_input, plan, guard = stack.enter_context(_prepared(context, request, target, plan, records))
        job_options = JobOptions(plan, kind=JobKind.UPDATE, guard=guard)
        job = start_import(store, target, ids_input, job_options)
        options = RunOptions(delivery, request.failed_copy, lambda job: UpdateHooks(job, approve, records))
        return run_or_leave_nothing(context, job, options)


def preview_update(context: BulkContext, request: UpdateRequest) -> UpdatePreview:
    """Read the records and return what would change, without creating a job. Raises the errors `update` raises before it prompts."""
    _check(request)
    request.delivery(), request.guard()
    requests_made(context)
    plan, target = request.plan(), resolve_target(context, request.object)
    with ExitStack() as stack:
        records = stack.enter_context(KnownRecords())
        ids_input, plan, guard = stack.enter_context(_prepared(context, request, target, plan, records))
        planned = open_input(plan.frozen(target.attributes), ids_input.path, ids_input.name, target.attributes)
        forecast, findings = ChangeForecast(request.object, target.attributes), FindingLog(context.listener.report)
        first = _compare(planned, records, forecast, findings)
        reads = requests_made(context)
        seconds = seconds_for(context, reads + forecast.requests)
    error = rejected_rows(forecast.rejected) if forecast.rejected else None
    try:
        guard.check(forecast.changes, forecast.rows)
    except RejectedError as refused:
        error = error or refused
    return UpdatePreview(target.object_id, forecast, first, reads, seconds, findings, error)


def _check(request: UpdateRequest) -> None:
    request.selection.check()
    if not request.set_values:
        raise UsageError("nothing to write", hint="say what to write with --set slug=value")


@contextmanager
def _prepared(
    context: BulkContext, request: UpdateRequest, target: ImportTarget, plan: ImportPlan, records: KnownRecords
) -> Iterator[tuple[GivenInput, ImportPlan, Guard]]:
    """Read the records and provide a temporary file with one row per id."""
    samples = sample_records(context, target)
    plan = replace(plan, values=replace(plan.values, samples=samples))
    values = parse_assignments(request.set_values, target.attributes).data  # before the first record is read
    request.selection.read(context, target.object_id, records)
    unique = [
        attribute.slug for attribute in target.attributes if attribute.is_unique and values.get(attribute.slug) not in (None, "", [], {})
    ]
    if unique and len(records) > 1:
        raise RejectedError(
            f"{unique[0]} must be unique, so {len(records):,} records cannot all have the same",
            hint=f"crmctl records update {request.object} changes one record",
            code="duplicate_value",
        )
    guard = request.guard()
    if guard.percent:
        total = context.crm.list_records(target.object_id, limit=1).total or len(records)
        guard = Guard(guard.expect, int((guard.most or 0) * total / 100))
    ids = (record.id if (record := records.get(record_id)) is not None else record_id for record_id in records.ids())
    with temporary_table(store_of(context), request.selection.name, partial(spool_ids, ids)) as ids_input:
        yield ids_input, plan, guard


def _compare(planned: PlannedInput, records: KnownRecords, forecast: ChangeForecast, findings: FindingLog) -> Sequence[Entry]:
    first: list[Entry] = []

    def valid() -> Iterator[Payload]:
        for row in planned.payloads():
            for finding in row.findings:
                findings(finding)
            if row.rejected:
                forecast.rows, forecast.rejected = forecast.rows + 1, forecast.rejected + 1
            else:
                yield row

    for change in Changing.of(planned).changes(valid(), records.get):
        forecast.add(change)
        if change.finding is not None:
            findings(change.finding)
        if change.action is RowAction.UPDATE and change.record is not None and len(first) < BULK_LIMIT:
            body = {"data": dict(change.sent), "id": change.record.id}
            first.append(Entry(change.ordinal, encode_json(body), change.record.id))
    return first
