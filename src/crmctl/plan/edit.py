"""Write the changes a user made to one record in an editor, as a job of one row that can be resumed and undone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from crmctl.bulk_context import BulkContext
from crmctl.errors import CrmctlError, InterruptedByUser, RejectedError
from crmctl.files.cell_values import ValueOptions, merger_of
from crmctl.files.mapping import MappingOptions, Mode
from crmctl.files.rows import SourceOptions, spool_ids
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.resources import Attribute, Record
from crmctl.plan.import_plan import ImportPlan
from crmctl.plan.job_hooks import EditHooks, keep_text
from crmctl.plan.job_run import RunOptions, run_to_result
from crmctl.plan.job_start import ImportTarget, JobOptions, start_import, temporary_table
from crmctl.plan.requests import store_of
from crmctl.plan.results import ImportResult
from crmctl.values.composites import Given, without_bare_amounts
from crmctl.write.database import JobKind
from crmctl.write.deletion import Editing

NAME = "records edit"
"""The origin of the row, as shown in job lists."""


@frozen
class EditRequest:
    """The edit of one record.

    `shown` is the record as the user saw it, `changes` the values that differ from it, and `attributes` those of its object. `text` is the
    edited file; crmctl deletes it once the record holds the changes.
    """

    object: str
    shown: Record
    changes: Mapping[str, Any]
    attributes: Sequence[Attribute]
    text: Path


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
    keep_text(job.journal, request.text)
    result = run_to_result(context, job, RunOptions(hooks=lambda job: EditHooks(job, editing)))
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
