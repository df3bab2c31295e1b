"""Writing what somebody made of one record in an editor: a job of one row, so that nothing is lost, written twice, or gone for good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from crmctl.bulk.context import BulkContext
from crmctl.bulk.journal.states import JobKind
from crmctl.bulk.rows.cell_values import ValueOptions, merger_of
from crmctl.bulk.rows.mapping import MappingOptions, Mode
from crmctl.bulk.run.before_images import BeforeImages
from crmctl.bulk.run.edit_hooks import EditHooks, keep_text
from crmctl.bulk.run.job_start import ImportTarget, JobOptions, start_import, temporary_ids
from crmctl.bulk.run.plan import ImportPlan
from crmctl.bulk.send.edited_record import Editing
from crmctl.bulk.sources.rows import SourceOptions
from crmctl.bulk.usecases.job_run import RunOptions, run_to_result
from crmctl.bulk.usecases.results import ImportResult
from crmctl.bulk.usecases.targets import store_of
from crmctl.errors import CrmctlError, InterruptedByUser, RejectedError
from crmctl.models import jsontext
from crmctl.models.assignments import Given, without_bare_amounts
from crmctl.models.attributes import Attribute
from crmctl.models.records import Record

NAME = "records edit"
"""Where the row comes from, as lists of jobs have it."""


@dataclass(frozen=True)
class EditRequest:
    """`changes` are the values that are another than those of the record that was `shown`; `attributes` are those of its object. `text`:
    where they were written, which is removed when they are in the record."""

    object: str
    shown: Record
    changes: Mapping[str, Any]
    attributes: Sequence[Attribute]
    text: Path


class Edited(NamedTuple):
    """The record as it is now, and the job that takes it back."""

    record: Record
    job: str


def preview_edit(context: BulkContext, request: EditRequest) -> None:
    """Compare, and come as far as the write, which a session that only reads shows."""
    _editing(context, request).write(context.directory.object_id(request.object), _whole(request))


def edit(context: BulkContext, request: EditRequest) -> Edited:
    """Write the changes where the record still is as it was shown.

    A job stays where there is something to take back, or to find out. Raises the error of what was not written, RejectedError where
    somebody changed the record.
    """
    store, editing = store_of(context), _editing(context, request)
    object_id = context.directory.object_id(request.object)
    target = ImportTarget(request.object, object_id, context.origin, request.attributes, context.service)
    values = tuple(f"{slug}:={jsontext.dumps(value)}" for slug, value in _whole(request).items())
    plan = ImportPlan(SourceOptions(format="csv", delimiter=","), MappingOptions(Mode.UPSERT, set_values=values))
    made = JobOptions(plan, before_images=BeforeImages.YES, kind=JobKind.UPDATE, shown=request.shown.wire)
    with temporary_ids(store, [request.shown.id], NAME) as given:
        job = start_import(store, target, given, made)
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
    """The changes as they are sent: an amount without a currency keeps that of the record."""
    given = without_bare_amounts(Given(dict(request.changes), {}), request.attributes)
    return given.data | merger_of(request.attributes, ValueOptions()).merge_all(given.parts, request.shown.data)


def _why(result: ImportResult, editing: Editing) -> CrmctlError:
    """Why the row is not written: what the write, else what the job ended with."""
    if isinstance(result.error, InterruptedByUser):
        return result.error
    if result.findings.kept:
        finding = result.findings.kept[0]
        return RejectedError(finding.message, code=finding.code)
    return editing.error or result.error or CrmctlError("the record was not written")


def _editing(context: BulkContext, request: EditRequest) -> Editing:
    return Editing(context.service, request.object, request.shown)
