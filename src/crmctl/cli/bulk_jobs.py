"""`bulk jobs`, `bulk repair` and `bulk undo`: from options to crmctl.bulk and its result on the screen."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from crmctl.cli.bulk_runs import current_limit, resolve_target
from crmctl.cli.counted_words import counted
from crmctl.errors import CrmctlError, PartialError, UsageError

if TYPE_CHECKING:
    from crmctl.bulk.journal.jobs import JobInfo, JobStore
    from crmctl.bulk.run.job_start import ImportJob
    from crmctl.bulk.usecases.undo import Undo
    from crmctl.cli.runtime import Runtime


_JOB_COLUMNS = (
    "job",
    "state",
    "object",
    "input",
    "host",
    "createdAt",
    "rows",
    "created",
    "updated",
    "failed",
    "rejected",
    "inDoubt",
    "unsent",
)


def show_jobs(runtime: Runtime, reference: str | None, *, remove: bool) -> None:
    """List the jobs, show one, or remove its journal and result files."""
    from crmctl.bulk.journal.jobs import JobInfo
    from crmctl.output.views import generic_view

    store = _store(runtime)
    if reference is None:
        if remove:
            raise UsageError("say which job to remove", hint="crmctl bulk jobs JOB --remove")
        for damaged in store.damaged():
            runtime.messages.warn(f"{damaged.error.message}; {damaged.error.hint}")
        rows = [job.to_document() for job in store.list()]
        if runtime.output_format == "table":
            rows = [{**row, "host": urlsplit(row["origin"]).netloc} for row in rows]
        runtime.emitter.emit_items(rows, generic_view(rows, "jobs", first=_JOB_COLUMNS))
        return
    if not remove:
        job = store.find(reference)
        runtime.emitter.emit_result(job.to_document(), text=_job_text(job))
        return
    found = store.find_any(reference)
    lost = "; it can still be resumed" if isinstance(found, JobInfo) and found.is_resumable and found.has_sent else ""
    runtime.confirm(f"Remove the journal and the result files of job {found.id}{lost}")
    if not runtime.dry_run:
        store.remove(found)
    runtime.done({"removed": found.id}, f"removed job {found.id}")


def _job_text(job: JobInfo) -> str:
    document = job.to_document()
    width = max(map(len, document))
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in document.items())


def repair(runtime: Runtime, reference: str, *, delete_duplicates: bool, clear_marker: bool) -> None:
    """Look once more at rows that were in doubt. Raises PartialError when rows are there more than once."""
    from crmctl.bulk.read.read_back import Reader
    from crmctl.bulk.run import audit
    from crmctl.bulk.run.import_run import rows_of

    job = _reopened(runtime, reference)
    service = runtime.connect(lane="bulk")
    with closing(job.journal) as journal, closing(job.input), journal.hold():
        reader = Reader(service, journal.header.object_id)
        found = audit.audit(journal, reader, rows_of(journal, job.input.payloads), runtime.clock)
        extra = sum(len(ids) for _, ids in found.duplicates.values())
        document = {
            "job": job.id, "checked": found.checked, "unreadable": found.unreadable, "final": found.final,
            "duplicates": found.to_document(), "deleted": 0, "cleared": 0,
        }  # fmt: skip
        if extra and delete_duplicates:
            runtime.confirm(f"Delete {counted(extra, 'record')} that {'is' if extra == 1 else 'are'} there a second time")
            if not runtime.dry_run:
                document["deleted"] = audit.delete_duplicates(journal, service, found.duplicates)
                extra = 0
        if clear_marker:
            runtime.confirm(f"Clear the markers of job {job.id}")
            if not runtime.dry_run:
                document["cleared"] = audit.clear_markers(journal, service, reader)
    text = f"job {job.id}: {counted(found.checked, 'row')} in doubt before, {len(found.duplicates):,} of them there more than once"
    runtime.emitter.emit_result(document, text=text)
    if extra:
        hint = f"crmctl bulk repair {job.id} --delete-duplicates"
        raise PartialError(f"there more than once: {counted(len(found.duplicates), 'row')}", hint=hint, details=document["duplicates"])


def undo(runtime: Runtime, reference: str) -> None:
    """Show what an undo would do, ask, do it. Raises PartialError when something of the job is left."""
    from crmctl.bulk.read.read_back import Reader
    from crmctl.bulk.read.seen_ids import SeenIds
    from crmctl.bulk.undo.made_parents import Parents
    from crmctl.bulk.undo.updates import Updates
    from crmctl.bulk.undo.written import written_rows
    from crmctl.bulk.usecases.undo import carry_out, plan_undo

    if not runtime.prompter.can_ask:
        runtime.confirm(f"Undo job {reference}")
    job = _reopened(runtime, reference)
    service = runtime.connect(lane="bulk")
    references = job.input.references
    unlinked = references.is_unlinked if references is not None else lambda _: False
    attributes = runtime.directory.attributes(job.journal.header.object_id)
    with closing(job.journal) as journal, closing(job.input), journal.hold(), SeenIds() as ids, Updates(attributes, unlinked) as updates:
        parents = Parents(job, attributes, runtime.clock)
        parents.find(service)
        reader = Reader(service, journal.header.object_id)
        plan = plan_undo(journal, reader, written_rows(job, runtime.clock), ids, updates, parents)
        if runtime.dry_run or runtime.prompter.can_ask:
            plan.seconds = current_limit(runtime).time_for(plan.requests)
        if runtime.dry_run:
            runtime.emitter.emit_result({"dryRun": True, **plan.to_document()}, text=f"{_undo_text(plan)}; nothing was sent")
            return
        runtime.emitter.check_result(plan.to_document())
        if plan.work:
            if runtime.prompter.can_ask:
                runtime.messages.note(_undo_text(plan))
            runtime.confirm(_undo_question(plan))
        carry_out(journal, service, plan, ids, updates, runtime.clock, runtime.progress)
    runtime.emitter.emit_result(plan.to_document(), text=_undo_text(plan))
    if plan.error is not None:
        plan.error.hint = plan.error.hint or f"crmctl bulk undo {job.id} goes on with it"
        raise plan.error
    if plan.left:
        raise PartialError("not everything the job did was undone", hint=_why_left(plan), details=plan.left)


_LEFT = {
    "failed": "refused by the service",
    "conflicts": "changed by somebody since, kept",
    "unknown": "not found, or not to be told from others",
    "gone": "deleted by somebody since",
    "updatesKept": "updates: what the records held before was not kept, so they stay",
    "parentsKept": "records that rows refer to: changed since, or still referred to, kept",
    "inDoubt": "in doubt: resume the job first",
}


def _undo_question(plan: Undo) -> str:
    parts = [f"put back {counted(plan.restorable, 'record')}"] if plan.restorable else []
    created = plan.work - plan.restorable
    parts += [f"delete {created:,} that it created"] if created else []
    text = " and ".join(parts)
    return f"{text[0].upper()}{text[1:]}, of {plan.object}, and so undo job {plan.job}"


def _undo_text(plan: Undo) -> str:
    from crmctl.output.progress import duration

    document = plan.to_document()
    if not plan.carried_out:
        parents = f", {document['parents']:,} to delete that they refer to" if document["parents"] else ""
        takes = f"; {counted(plan.requests, 'request')}, about {duration(plan.seconds)}" if plan.requests else ""
        lines = [f"job {plan.job}: {counted(plan.found, 'record')} to delete, {plan.restorable:,} to put back{parents}{takes}"]
    else:
        lines = [
            f"job {plan.job}: {document['deleted']:,} of {counted(plan.found, 'record')} deleted, "
            f"{document['restored']:,} of {plan.restorable:,} put back"
            + (f", {document['parentsDeleted']:,} deleted that they referred to" if document["parentsDeleted"] else "")
        ]
    lines += [f"{document['undoneBefore']:,} undone before"] if document["undoneBefore"] else []
    return "; ".join([*lines, *(f"{document[name]:,} {text}" for name, text in _LEFT.items() if document[name])])


def _why_left(plan: Undo) -> str | None:
    """What would have made it possible."""
    if plan.kept:
        return "crmctl bulk import keeps what updates overwrite with --key, or with --before-images yes"
    return None


def _store(runtime: Runtime) -> JobStore:
    from crmctl.bulk.journal.jobs import JobStore

    return JobStore(runtime.paths.state, runtime.clock)


def _reopened(runtime: Runtime, reference: str) -> ImportJob:
    from crmctl.bulk.journal.jobs import refuse_running
    from crmctl.bulk.usecases.resume import check_service, reopen

    store, origin = _store(runtime), runtime.settings.require_origin()
    info = store.find(reference)
    refuse_running(info)
    check_service(info.header, origin)
    _, attributes = resolve_target(runtime, info.header.object_id)
    try:
        return reopen(store, info, origin, attributes)
    except CrmctlError as error:
        error.hint = error.hint or "the rows of a job are recognised by its input: put the file back as it was"
        raise
