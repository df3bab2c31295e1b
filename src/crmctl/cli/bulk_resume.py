"""`bulk resume`: a job of any kind is gone on with, and its outcome shown as its kind does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crmctl.cli.bulk_changes import approve, show_resumed
from crmctl.cli.bulk_context import RuntimeContext
from crmctl.cli.bulk_imports import check_shown
from crmctl.cli.counted_words import counted

if TYPE_CHECKING:
    from crmctl.bulk.usecases.resume import ResumeRequest
    from crmctl.cli.runtime import Runtime


def resume_job(runtime: Runtime, request: ResumeRequest) -> None:
    """Go on with a job, or with --dry-run say what is left of it."""
    from crmctl.bulk.usecases.resume import preview_resume, resume
    from crmctl.cli.bulk_merges import resume_merges

    if resume_merges(runtime, request.job, last=request.last):
        return

    context = RuntimeContext(runtime)
    if not runtime.dry_run:
        show_resumed(runtime, resume(context, request, lambda: check_shown(runtime), lambda found: approve(runtime, found)))
        return
    preview = preview_resume(context, request)
    document = preview.to_document()
    text = f"job {document['job']}: {counted(document['unsent'], 'row')} not sent, {document['inDoubt']:,} in doubt; nothing was sent"
    runtime.emitter.emit_result(document, text=text)
