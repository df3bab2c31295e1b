"""`bulk jobs`, `bulk repair` and `bulk undo`: from options to crmctl.bulk and its result on the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from typing import TYPE_CHECKING

from crmctl.cli.bulk_runs import resolve_target
from crmctl.errors import CrmctlError, PartialError, UsageError

if TYPE_CHECKING:
    from crmctl.bulk.imports.starting import Job
    from crmctl.bulk.journal.jobs import JobInfo, JobStore
    from crmctl.bulk.payloads.batches import Entry
    from crmctl.bulk.undoing import Undo
    from crmctl.cli.runtime import Runtime


def show_jobs(runtime: Runtime, reference: str | None, *, remove: bool) -> None:
    """List the jobs, show one, or remove its journal and result files."""
    from crmctl.output.views import generic_view

    store = _store(runtime)
    if reference is None:
        if remove:
            raise UsageError("say which job to remove", hint="crmctl bulk jobs JOB --remove")
        rows = [job.to_document() for job in store.list()]
        runtime.emitter.emit_items(rows, generic_view(rows, "jobs"))
        return
    job = store.find(reference)
    if not remove:
        runtime.emitter.emit_result(job.to_document(), text=_job_text(job))
        return
    lost = "; it can still be resumed" if job.is_resumable and job.has_sent else ""
    runtime.confirm(f"Remove the journal and the result files of job {job.id}{lost}")
    if not runtime.dry_run:
        store.remove(job)
    runtime.done({"removed": job.id}, f"removed job {job.id}")


def _job_text(job: JobInfo) -> str:
    document = job.to_document()
    width = max(map(len, document))
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in document.items())


def repair(runtime: Runtime, reference: str, *, delete_duplicates: bool, clear_marker: bool) -> None:
    """Look once more at rows that were in doubt. Raises PartialError when rows are there more than once."""
    from crmctl.bulk.imports import repairing
    from crmctl.bulk.imports.importing import rows_of
    from crmctl.bulk.records.reading import Reader

    job = _reopened(runtime, _finished(_store(runtime).find(reference)))
    service = runtime.connect(lane="bulk")
    with closing(job.journal) as journal, journal.hold():
        reader = Reader(service, journal.header.object_id)
        found = repairing.audit(journal, reader, rows_of(journal, job.input.payloads), runtime.clock)
        extra = sum(len(ids) for _, ids in found.duplicates.values())
        document = {
            "job": job.id, "checked": found.checked, "unreadable": found.unreadable, "final": found.final,
            "duplicates": found.to_document(), "deleted": 0, "cleared": 0,
        }  # fmt: skip
        if extra and delete_duplicates:
            runtime.confirm(f"Delete {extra:,} records that are there a second time")
            if not runtime.dry_run:
                document["deleted"] = repairing.delete_duplicates(journal, service, found.duplicates)
                extra = 0
        if clear_marker:
            runtime.confirm(f"Clear the markers of job {job.id}")
            if not runtime.dry_run:
                document["cleared"] = repairing.clear_markers(journal, service, reader)
    text = f"job {job.id}: {found.checked:,} rows were in doubt, {len(found.duplicates):,} of them are there more than once"
    runtime.emitter.emit_result(document, text=text)
    if extra:
        hint = f"crmctl bulk repair {job.id} --delete-duplicates"
        raise PartialError(f"{len(found.duplicates):,} rows are there more than once", hint=hint, details=document["duplicates"])


def undo(runtime: Runtime, reference: str) -> None:
    """Show what an undo would do, ask, do it. Raises PartialError when something of the job is left."""
    from crmctl.bulk.imports.importing import rows_of
    from crmctl.bulk.records.reading import Reader
    from crmctl.bulk.records.seen import SeenIds
    from crmctl.bulk.undoing import carry_out, plan_undo

    if not runtime.prompter.can_ask:
        runtime.confirm(f"Undo job {reference}")
    job = _reopened(runtime, _finished(_store(runtime).find(reference)))
    service = runtime.connect(lane="bulk")
    with closing(job.journal) as journal, journal.hold(), SeenIds() as ids:
        again: Callable[[], Iterable[Entry]] = rows_of(journal, job.input.payloads)
        plan = plan_undo(journal, Reader(service, journal.header.object_id), again, ids)
        if runtime.dry_run:
            runtime.emitter.emit_result({"dryRun": True, **plan.to_document()}, text=f"{_undo_text(plan)}; nothing was sent")
            return
        if plan.found:
            if runtime.prompter.can_ask:
                runtime.messages.note(_undo_text(plan))
            runtime.confirm(f"Delete {plan.found:,} records of {plan.object} that job {job.id} created")
        carry_out(journal, service, plan, ids, runtime.clock, runtime.progress)
    runtime.emitter.emit_result(plan.to_document(), text=_undo_text(plan))
    if plan.deleted is not None and plan.deleted.error is not None:
        raise plan.deleted.error
    if not plan.is_whole or plan.unknown_count:
        raise PartialError("not everything the job did was undone", details={name: plan.to_document()[name] for name in _LEFT})


_LEFT = ("failed", "conflicts", "unknown", "updatesKept", "inDoubt")


def _undo_text(plan: Undo) -> str:
    document = plan.to_document()
    lines = [
        f"job {plan.job}: {document['deleted']:,} of {plan.found:,} records deleted"
        if plan.deleted
        else f"{plan.found:,} records to delete"
    ]
    said = {
        "conflicts": "changed by somebody since, kept",
        "unknown": "not found, or not to be told from others",
        "updatesKept": "updates: what the records held before is not known, so they stay",
        "inDoubt": "in doubt: resume the job first",
    }
    lines += [f"{document[name]:,} {text}" for name, text in said.items() if document[name]]
    return "; ".join(lines)


def _store(runtime: Runtime) -> JobStore:
    from crmctl.bulk.journal.jobs import JobStore

    return JobStore(runtime.paths.state, runtime.clock)


def _finished(job: JobInfo) -> JobInfo:
    if job.is_running:
        raise UsageError(f"job {job.id} is running", code="job_running")
    return job


def _reopened(runtime: Runtime, info: JobInfo) -> Job:
    from crmctl.bulk.imports.resuming import reopen

    _, attributes = resolve_target(runtime, info.header.object_id)
    try:
        return reopen(_store(runtime), info, runtime.settings.require_origin(), attributes)
    except CrmctlError as error:
        error.hint = error.hint or "the rows of a job are recognised by its input: put the file back as it was"
        raise
