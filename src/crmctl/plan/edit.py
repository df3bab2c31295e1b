"""Write the changes a user made to one record in an editor, as a job of one row that can be resumed and undone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from crmctl.bulk_context import BulkContext
from crmctl.client.crm import Crm
from crmctl.client.session import AttemptObserver
from crmctl.errors import CrmctlError, InterruptedByUser, RejectedError, ServiceError
from crmctl.files.cell_values import ValueOptions, merger_of
from crmctl.files.mapping import MappingOptions, Mode
from crmctl.files.rows import SourceOptions, spool_ids
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.resources import Attribute, BulkResult, Record
from crmctl.plan.import_plan import ImportPlan, before_image
from crmctl.plan.job_run import JobHooks, run_job
from crmctl.plan.job_start import ImportRun, ImportTarget, JobOptions, start_import, temporary_table
from crmctl.plan.requests import store_of
from crmctl.plan.results import ImportResult
from crmctl.values.composites import Given, without_bare_amounts
from crmctl.write.database import JobKind
from crmctl.write.journal import BEFORE
from crmctl.write.send_context import DeliveryOptions, WriteBatch

NAME = "records edit"
"""The origin of the row, as shown in job lists."""


@frozen
class EditRequest:
    """The edit of one record.

    `shown` is the record as the user saw it, `changes` the values that differ from it, and `attributes` those of its object.
    """

    object: str
    shown: Record
    changes: Mapping[str, Any]
    attributes: Sequence[Attribute]


class Edited(NamedTuple):
    """The record after the edit, and the job that can undo it."""

    record: Record
    job: str


def preview_edit(context: BulkContext, request: EditRequest) -> None:
    """Compare the record and prepare the write; a read-only session shows the request instead of sending it."""
    Editing(context.service, request.object, request.shown).write(context.directory.object_id(request.object), _whole(request))


def edit(context: BulkContext, request: EditRequest) -> Edited:
    """Write the changes if the record is still as shown.

    The job is kept if the edit can be undone or its outcome is unknown. Raises RejectedError if another client changed the record, else
    the error that prevented the write.
    """
    store, editing = store_of(context), Editing(context.service, request.object, request.shown)
    object_id = context.directory.object_id(request.object)
    target = ImportTarget(request.object, object_id, context.origin, request.attributes, context.service)
    values = tuple(f"{slug}:={jsontext.dumps(value)}" for slug, value in _whole(request).items())
    plan = ImportPlan(SourceOptions(format="csv", delimiter=","), MappingOptions(Mode.UPSERT, set_values=values))
    job_options = JobOptions(plan, kind=JobKind.UPDATE, shown=request.shown.wire)
    with temporary_table(store, NAME, partial(spool_ids, [request.shown.id])) as ids_input:
        job = start_import(store, target, ids_input, job_options)
    result = run_job(context, EditHooks(job, editing), DeliveryOptions())
    document = result.summary.to_document()
    if document["updated"]:
        return Edited(editing.written or context.service.get_record(object_id, request.shown.id), job.id)
    error = _why(result, editing)
    if document["inDoubt"]:
        error.message += "; the record may have been written" if isinstance(error, InterruptedByUser) else ""
        error.outcome_unknown = True
        error.hint = f"crmctl bulk resume {job.id} finds out whether it was written"
    else:
        store.remove(store.find(job.id))
    raise error


def _whole(request: EditRequest) -> Mapping[str, Any]:
    """Return the changes to send. An amount without a currency keeps the currency of the record."""
    changes = without_bare_amounts(Given(dict(request.changes), {}), request.attributes)
    return changes.data | merger_of(request.attributes, ValueOptions()).merge_all(changes.parts, request.shown.data)


def _why(result: ImportResult, editing: Editing) -> CrmctlError:
    """Return the error that kept the row from being written: an interrupt, a finding, or the error of the write or the job."""
    if isinstance(result.error, InterruptedByUser):
        return result.error
    if result.findings.kept:
        finding = result.findings.kept[0]
        return RejectedError(finding.message, code=finding.code)
    return editing.error or result.error or CrmctlError("the record was not written")


CHANGED = 412
"""Status of a write to an outdated version."""


@dataclass
class Editing:
    """Writes the one row of an edit as a PATCH, if the record is still as `shown`. `written`: the record in the answer."""

    service: Crm
    object: str
    shown: Record
    written: Record | None = None
    error: CrmctlError | None = None

    def write_batch(self, object_id: str, records: Sequence[bytes], watch: AttemptObserver) -> BulkResult:
        """Write the one record. Raises RejectedError if another client has changed it."""
        if self.error is not None and (self.error.retryable or self.error.status is None):
            raise CrmctlError(self.error.message) from self.error  # not carried out, and already repeated often enough
        watch.sending()  # from here on the journal stores the outcome, even a refusal without a write
        try:
            self.written = self.write(object_id, jsontext.loads(records[0])["data"], watch)
        except CrmctlError as error:
            self.error = error
            if isinstance(error, ServiceError) and not error.outcome_unknown:
                raise CrmctlError(error.message) from error  # the comparison failed: nothing was written, and nothing is in doubt
            raise
        return BulkResult(updated=1)

    def write(self, object_id: str, data: Mapping[str, Any], watch: AttemptObserver | None = None) -> Record:
        now, version = self.service.get_version(object_id, self.shown.id)
        self._refuse_changed(now, "nothing was sent")
        try:
            return self.service.update_record(object_id, self.shown.id, data, version=version, watch=watch)
        except RejectedError as error:
            if error.status != CHANGED or version is None:
                raise
            now, _ = self.service.get_version(object_id, self.shown.id)
            if all(now.data.get(slug) == value for slug, value in data.items()):
                return now  # an earlier attempt wrote it, and its answer was lost
            self._refuse_changed(now, "the record does not hold all that you wrote")
            raise

    def _refuse_changed(self, now: Record, outcome: str) -> None:
        """Raise RejectedError if another client changed the record during the edit."""
        shown = self.shown
        changed = [slug for slug in {**shown.data, **now.data} if shown.data.get(slug) != now.data.get(slug)]
        if changed or shown.updated_at != now.updated_at:
            slugs = f": {', '.join(changed)}" if changed else ""
            raise RejectedError(
                f"another client changed the record while you edited it{slugs}; {outcome}",
                hint=f"crmctl records edit {self.object} {shown.id} shows it as it is now",
                code="changed_meanwhile",
            )


@frozen
class EditHooks(JobHooks):
    """The steps of an edit; `editing` writes the row."""

    editing: Editing

    def writer(self, service: Crm) -> WriteBatch:
        return self.editing.write_batch

    def approve(self, run: ImportRun) -> None:
        journal = self.job.journal
        if self.job.input.merged is not None:
            super().approve(run)
        else:
            journal.keep(BEFORE, ((row.ordinal, before_image(row.data, self.editing.shown.data)) for row in self._valid()))
