"""`bulk jobs`, `bulk repair` and `bulk undo`: the use case is called and its outcome shown."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from crmctl.cli.bulk_context import RuntimeContext
from crmctl.cli.counted_words import counted
from crmctl.cli.record_queries import FEW_REQUESTS
from crmctl.errors import UsageError

if TYPE_CHECKING:
    from crmctl.bulk.usecases.recreate import Recreation
    from crmctl.bulk.usecases.repair import RepairRequest
    from crmctl.bulk.usecases.undo import Undo
    from crmctl.cli.runtime import Runtime


_JOB_COLUMNS = (
    "job",
    "createdAt",
    "state",
    "object",
    "host",
    "rejected",
    "input",
    "failed",
    "mode",
    "rows",
    "created",
    "updated",
    "deleted",
    "inDoubt",
    "unsent",
)


def show_jobs(runtime: Runtime, reference: str | None, *, remove: bool) -> None:
    """List the jobs, show one, or remove its journal and result files."""
    from crmctl.bulk.usecases.jobs import find_job, remove_job

    context = RuntimeContext(runtime)
    if reference is None:
        if remove:
            raise UsageError("say which job to remove", hint="crmctl bulk jobs JOB --remove")
        _list(runtime)
    elif remove:
        removed = remove_job(context, reference, keep=runtime.dry_run)
        runtime.done({"removed": removed}, f"removed job {removed}")
    else:
        runtime.emitter.emit_result(find_job(context, reference).to_document())


def _list(runtime: Runtime) -> None:
    from crmctl.bulk.usecases.jobs import list_jobs
    from crmctl.output.views import generic_view

    found = list_jobs(RuntimeContext(runtime))
    for damaged in found.damaged:
        runtime.messages.warn(f"{damaged.error.message}; {damaged.error.hint}")
    rows = [job.to_document() for job in found.jobs]
    if runtime.output_format == "table":
        rows = [{"host": urlsplit(row.pop("origin")).netloc, **row} for row in rows]
    runtime.emitter.emit_items(rows, generic_view(rows, "jobs", first=_JOB_COLUMNS))


def repair_job(runtime: Runtime, request: RepairRequest) -> None:
    """Look once more at rows that were in doubt. Raises PartialError when rows are there more than once."""
    from crmctl.bulk.usecases.repair import repair

    done = repair(RuntimeContext(runtime), request)
    found = done.found
    text = f"job {done.job}: {counted(found.checked, 'row')} in doubt before, {len(found.duplicates):,} of them there more than once"
    runtime.emitter.emit_result(done.to_document(), text=text)
    if done.error is not None:
        raise done.error


def undo_job(runtime: Runtime, reference: str) -> None:
    """Show what an undo would do, ask, do it. Raises PartialError when something of the job is left."""
    from crmctl.bulk.usecases.undo import UndoRequest, undo
    from crmctl.cli.bulk_merges import undo_merges

    if undo_merges(runtime, reference):
        return
    if not runtime.prompter.can_ask:
        runtime.confirm(f"Undo job {reference}")

    def approve(plan: Undo | Recreation) -> None:
        runtime.emitter.check_result(plan.to_document())
        if plan.work:
            if runtime.prompter.can_ask:
                runtime.messages.note(_undo_text(plan))
            elif plan.requests > FEW_REQUESTS:
                runtime.progress.note(_undo_text(plan))
            runtime.confirm(_undo_question(plan))

    estimates = runtime.dry_run or runtime.prompter.can_ask
    plan = undo(RuntimeContext(runtime), UndoRequest(reference, runtime.dry_run, estimates), approve)
    if runtime.dry_run:
        runtime.emitter.emit_result({"dryRun": True, **plan.to_document()}, text=f"{_undo_text(plan)}; nothing was sent")
        return
    runtime.emitter.emit_result(plan.to_document(), text=_undo_text(plan))
    if plan.outcome is not None:
        raise plan.outcome


def _undo_question(plan: Undo | Recreation) -> str:
    from crmctl.bulk.usecases.recreate import Recreation

    if isinstance(plan, Recreation):
        return f"Create {counted(plan.found, 'record')} of {plan.object} again, with new ids, and so undo job {plan.job}"
    parts = [f"put back {counted(plan.restorable, 'record')}"] if plan.restorable else []
    created = plan.work - plan.restorable
    parts += [f"delete {created:,} that it created"] if created else []
    text = " and ".join(parts)
    return f"{text[0].upper()}{text[1:]}, of {plan.object}, and so undo job {plan.job}"


def _undo_text(plan: Undo | Recreation) -> str:
    from crmctl.bulk.usecases.recreate import Recreation
    from crmctl.bulk.usecases.undo import LEFT
    from crmctl.output.progress import duration

    if isinstance(plan, Recreation):
        return _recreation_text(plan)

    document = plan.to_document()
    back = f"{plan.restorable:,}" if plan.found else counted(plan.restorable, "record")
    if not plan.carried_out:
        steps = [f"{counted(plan.found, 'record')} to delete"] if plan.found or not plan.work else []
        steps += [f"{back} to put back"] if plan.restorable else []
        steps += [f"{document['parents']:,} to delete that they refer to"] if document["parents"] else []
        takes = f"; {counted(plan.requests, 'request')}, about {duration(plan.seconds)}" if plan.requests else ""
    else:
        steps = [f"{document['deleted']:,} of {counted(plan.found, 'record')} deleted"] if plan.found or not plan.restorable else []
        steps += [f"{document['restored']:,} of {back} put back"] if plan.restorable else []
        steps += [f"{document['parentsDeleted']:,} deleted that they referred to"] if document["parentsDeleted"] else []
        takes = ""
    lines = [f"job {plan.job}: {', '.join(steps)}{takes}"]
    lines += [f"{document['undoneBefore']:,} undone before"] if document["undoneBefore"] else []
    return "; ".join([*lines, *(f"{document[name]:,} {text}" for name, text in LEFT.items() if document[name])])


def _recreation_text(plan: Recreation) -> str:
    from crmctl.bulk.usecases.recreate import LEFT
    from crmctl.output.progress import duration

    document, result = plan.to_document(), plan.result
    if result is None:
        takes = f"; {counted(plan.requests, 'request')}, about {duration(plan.seconds)}"
        return f"job {plan.job}: {counted(plan.found, 'record')} to create again, with new ids{takes}"
    before = [f"{plan.done:,} created again before"] if plan.done else []
    lines = [f"job {plan.job}: {result.created:,} of {counted(plan.found, 'record')} created again, with new ids", *before]
    lines += [f"{plan.ids} says which"] if plan.ids is not None else []
    words = {
        "references": "other records refer to them again",
        "activities": "activities linked again",
        **LEFT,
    }
    return "; ".join([*lines, *(f"{document[name]:,} {text}" for name, text in words.items() if document[name])])
