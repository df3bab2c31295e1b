"""Select records and update them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from crmctl.bulk_context import BulkContext, showing
from crmctl.client.answers import Page
from crmctl.client.directory import known_attributes
from crmctl.client.query.record_query import stray_finder
from crmctl.errors import CrmctlError, RejectedError, UsageError, reason
from crmctl.files.cell_values import ValueOptions, check_region
from crmctl.files.mapping import MappingOptions, Mode
from crmctl.files.rows import Format, Row, SourceOptions, spool_ids
from crmctl.files.sources import STDIN, GivenInput, is_stream, open_source
from crmctl.files.spills import chunks
from crmctl.files.validation import Entry, Payload
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.findings import Finding
from crmctl.models.ids import check_choice, is_uuid
from crmctl.models.resources import BULK_LIMIT, PAGE_LIMIT, Attribute, Record
from crmctl.plan.import_plan import (
    Guard,
    ImportPlan,
    PlannedInput,
    RowAction,
    before_image,
    finding_of_merge,
    open_input,
    unexpected_changes,
)
from crmctl.plan.job_run import JobHooks, requests_made, run_or_leave_nothing, seconds_for
from crmctl.plan.job_start import ImportRun, ImportTarget, JobOptions, start_import, temporary_input, temporary_table
from crmctl.plan.requests import GuardedRequest, check_places, resolve_target, sample_records, store_of
from crmctl.plan.results import FindingLog, ImportResult, rejected_rows
from crmctl.plan.row_actions import Resolution, write_down
from crmctl.read.read_back import Reader
from crmctl.read.records import PAGE_STEP, Cost, KnownRecords, fetch, read_known, scan
from crmctl.read.stable_pages import Listing, SeenIds
from crmctl.values.composites import Merger, currency_code, parse_assignments
from crmctl.values.equality import is_unchanged
from crmctl.values.filters import Condition, format_condition
from crmctl.write.database import JobKind, JobState, RowState
from crmctl.write.jobs import Summary
from crmctl.write.send_context import write_requests


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
        """Read the records into `records` and return the number of requests. Raises reading errors and those of `read_ids`."""

        def tell(cost: Cost) -> None:
            self.price(cost.requests)

        reader = _PricedReader(context.service, object_id, tell=tell if self.is_filter else None)
        if self.is_filter:
            pages, total = scan(reader, Listing(object_id, self.conditions)), None
        else:
            self.read_ids(context, records)
            pages, total = fetch(reader, records, tell, lambda _: True), len(records)
        heeded = self._heeded(context, object_id)
        with showing(context.listener.progress, "collecting", total, PAGE_LIMIT) as progress:
            for page in pages:
                records.keep(filter(self.admits, heeded(page)) if self.admits is not None else heeded(page))
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


SHOWN_PROBLEMS = 20


def read_ids(path: Path, name: str, ids: SeenIds) -> None:
    """Collect the ids of a file: one per line, a JSON array, or the `id` column of a table in any format.

    Ignores blank lines and repetitions, and accepts a file without rows. Raises UsageError for a file with content but no id, RejectedError
    for a file with ids and other content, with the lines.
    """
    problems: list[dict[str, Any]] = []
    for line, text in _candidates(path, name):
        if is_uuid(text):
            ids.add(text.lower())
        elif len(problems) < SHOWN_PROBLEMS:
            problems.append({"line": line, "value": text[:80]})
        elif len(ids):
            break
    if not problems:
        return
    first = problems[0]
    message = f"{name}, line {first['line']}: {first['value']!r} is not a record id"
    if not len(ids):
        raise UsageError(
            f"{message}, and there is none in the file", hint="one id a line, or a table with an id column", code="no_ids", details=problems
        )
    raise RejectedError(f"{message}; nothing was written", code="malformed_id", details=problems)


def _candidates(path: Path, name: str) -> Iterator[tuple[int, str]]:
    """Yield the texts that should be ids, with their lines: every line if the first one is an id, else the id of each row."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            lines = ((number, line.strip()) for number, line in enumerate(file, 1))
            filled = (line for line in lines if line[1])
            first = next(filled, None)
            if first is None or is_uuid(first[1]):
                yield from [first] if first else []
                yield from filled
                return
    except OSError as error:
        raise UsageError(f"cannot read {name}: {reason(error)}", code="unreadable_file") from error
    source = open_source(path, SourceOptions(format="json" if first[1].startswith("[") else None), name=name)
    headers = [header.strip().lower() for header in source.header]
    column = headers.index("id") if "id" in headers else None
    if column is None and source.dialect.format not in (Format.JSON, Format.JSONL):
        if len(headers) > 1:
            raise UsageError(f"{name}, line 1: neither a record id nor the names of columns with id among them", code="unknown_format")
        yield 1, source.header[0].strip()  # a list without a header
    yield from ((row.first_line, _id_text(row, column)) for row in source.rows())


def _id_text(row: Row, column: int | None) -> str:
    """Return the id of a row, or the row as written if it has none."""
    value: Any = None
    if row.value is not None:
        value = next((value for key, value in row.value.items() if key.strip().lower() == "id"), None)
    elif row.problem is not None and row.problem.code == "not_an_object":
        value = jsontext.loads(row.raw)  # an id in an array
    elif row.problem is None and column is not None:
        value = row.cells[column]
    return (value.strip() if isinstance(value, str) else "") or row.raw.strip().strip('"').strip()


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
    with _prepared(context, request) as (target, records, ids_input, plan, guard):
        job = start_import(store_of(context), target, ids_input, JobOptions(plan, kind=JobKind.UPDATE, guard=guard))
        return run_or_leave_nothing(context, UpdateHooks(job, approve, records), request.delivery(), request.failed_copy)


def preview_update(context: BulkContext, request: UpdateRequest) -> UpdatePreview:
    """Read the records and return what would change, without creating a job. Raises the errors `update` raises before it prompts."""
    requests_made(context)
    with _prepared(context, request) as (target, records, ids_input, plan, guard):
        planned = open_input(plan.frozen(target.attributes), ids_input.path, ids_input.name, target.attributes)
        forecast, findings = ChangeForecast(request.object, target.attributes), FindingLog(context.listener.report)
        first = _compare(planned, records, forecast, findings)
    reads = requests_made(context)
    error = rejected_rows(forecast.rejected) if forecast.rejected else None
    if error is None and (problem := guard.problem(forecast.changes, forecast.rows)) is not None:
        error = unexpected_changes(problem, forecast.changes)
    return UpdatePreview(target.object_id, forecast, first, reads, seconds_for(context, reads + forecast.requests), findings, error)


@contextmanager
def _prepared(context: BulkContext, request: UpdateRequest) -> Iterator[tuple[ImportTarget, KnownRecords, GivenInput, ImportPlan, Guard]]:
    """Check the request, read the records, and provide a temporary file with one row per id."""
    request.selection.check()
    check_places(request.failed_copy, request.selection.ids_file)
    if not request.set_values:
        raise UsageError("nothing to write", hint="say what to write with --set slug=value")
    store_of(context).prepare()
    plan, guard, _ = request.plan(), request.guard(), request.delivery()
    target = resolve_target(context, request.object)
    plan = replace(plan, values=replace(plan.values, samples=sample_records(context, target)))
    values = parse_assignments(request.set_values, target.attributes).data  # before the first record is read
    with KnownRecords() as records:
        request.selection.read(context, target.object_id, records)
        _refuse_shared_values(request.object, target.attributes, values, len(records))
        if guard.percent:
            total = context.crm.list_records(target.object_id, limit=1).total or len(records)
            guard = Guard(guard.expect, int((guard.most or 0) * total / 100))
        with temporary_table(store_of(context), request.selection.name, partial(spool_ids, records.ids())) as ids_input:
            yield target, records, ids_input, plan, guard


def _refuse_shared_values(object_name: str, attributes: Sequence[Attribute], values: Mapping[str, Any], count: int) -> None:
    unique = [attribute.slug for attribute in attributes if attribute.is_unique and values.get(attribute.slug) not in (None, "", [], {})]
    if unique and count > 1:
        raise RejectedError(
            f"{unique[0]} must be unique, so {count:,} records cannot all have the same",
            hint=f"crmctl records update {object_name} changes one record",
            code="duplicate_value",
        )


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

    for change in value_changes(planned, valid(), records.get):
        forecast.add(change)
        if change.outcome.finding is not None:
            findings(change.outcome.finding)
        if change.outcome.action is RowAction.UPDATE and len(first) < BULK_LIMIT:
            first.append(Entry.of(change.outcome.ordinal, dict(change.sent), change.outcome.record_id))
    return first


SHOWN_CHANGES = 5
"""The number of changed records a confirmation prompt shows."""

Find = Callable[[str], Record | None]
"""Returns the record with an id, or None."""


class ValueChange(NamedTuple):
    """The effect of one row: the decision, its record, and the values to send."""

    outcome: Resolution
    record: Record | None = None
    sent: Mapping[str, Any] = {}

    def to_document(self) -> dict[str, Any]:
        before = self.outcome.before or {}
        after = {slug: value for slug, value in self.sent.items() if slug in before}
        return {"id": self.outcome.record_id, "before": before, "after": after}


def value_changes(planned: PlannedInput, rows: Iterable[Payload], find: Find) -> Iterator[ValueChange]:
    """Compare rows with the records they name by id."""
    attributes = {attribute.slug: attribute for attribute in planned.shown_attributes}
    return (_value_change(row, find(row.id or ""), attributes, planned.merger) for row in rows)


def _value_change(row: Payload, record: Record | None, attributes: Mapping[str, Attribute], merger: Merger) -> ValueChange:
    if record is None:
        return _refused(row, Finding("no_record", "there is no such record").on("id", row.id))
    try:
        merged = merger.merge_all(row.parts, record.data) if row.parts else None
    except RejectedError as error:
        from crmctl.client.query.related_records import label_of  # only for a refused row: an import does without queries

        finding = finding_of_merge(error)
        return _refused(row, replace(finding, message=f"{label_of(record, attributes.values())}: {finding.message}"))
    sent = row.data | (merged or {})
    if is_unchanged(sent, record.data, attributes):
        return ValueChange(Resolution(row.ordinal, RowAction.UNCHANGED, record.id))
    outcome = Resolution(row.ordinal, RowAction.UPDATE, record.id, before=before_image(sent, record.data), whole=merged)
    return ValueChange(outcome, record, sent)


@dataclass
class ChangeForecast:
    """The predicted effect of changing many records.

    Of all `rows`, `changes` get a new value, `unchanged` already hold it, and `rejected` cannot be written. `samples` are the first
    changes; `attributes` determine how their values are shown.
    """

    object: str
    attributes: Sequence[Attribute] = ()
    rows: int = 0
    changes: int = 0
    unchanged: int = 0
    rejected: int = 0
    samples: list[ValueChange] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return write_requests(self.changes)

    def add(self, change: ValueChange) -> None:
        action = change.outcome.action
        self.rows += 1
        self.changes += action is RowAction.UPDATE
        self.unchanged += action is RowAction.UNCHANGED
        self.rejected += action is RowAction.REJECT
        if action is RowAction.UPDATE and len(self.samples) < SHOWN_CHANGES:
            self.samples.append(change)


def _refused(row: Payload, why: Finding) -> ValueChange:
    """Refuse a row without its place: the user's file has no such line."""
    return ValueChange(Resolution(row.ordinal, RowAction.REJECT, finding=replace(why, ordinal=row.ordinal)))


Approve = Callable[[ChangeForecast], None]
"""Receives the planned changes and raises CrmctlError to cancel them."""


def agree(_: object) -> None:
    """Approve without a prompt."""


@frozen
class UpdateHooks(JobHooks):
    """The steps of an update. `known` holds the records if they were just read; a resumed job reads them again."""

    approve_changes: Approve = agree
    known: KnownRecords | None = None

    def approve(self, run: ImportRun) -> None:
        journal = self.job.journal
        forecast = ChangeForecast(journal.header.object, self.job.input.attributes)
        try:
            with ExitStack() as stack:
                records = self.known or stack.enter_context(read_known(run.reader(), self._ids(), run.progress))
                for chunk in chunks(value_changes(self.job.input, self._valid(), records.get)):
                    for change in chunk:
                        forecast.add(change)
                    write_down(journal, (change.outcome for change in chunk), run.report)
            if forecast.rejected and run.stop_on_error:
                journal.state = JobState.REJECTED
                return
            run.guard.check(forecast.changes, forecast.rows)
            if forecast.changes:
                self.approve_changes(forecast)
        except RejectedError:
            journal.state = JobState.REJECTED
            raise
