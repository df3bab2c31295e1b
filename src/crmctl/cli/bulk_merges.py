"""`bulk dedupe`, and `bulk apply`, `resume` and `undo` of merges: the use case is called and its outcome shown."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from crmctl.cli.bulk_context import RuntimeContext
from crmctl.cli.counted_words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crmctl.bulk.usecases.apply_plan import ApplyRequest
    from crmctl.bulk.usecases.dedupe import DedupeRequest, DedupeResult
    from crmctl.bulk.usecases.merge_records import MergePreview, MergeResult
    from crmctl.bulk.usecases.unmerge_records import UnmergeResult
    from crmctl.cli.runtime import Runtime


def dedupe_records(runtime: Runtime, request: DedupeRequest) -> None:
    """Find duplicates, write the plan, show what was found: a review as a table, else the counts."""
    from crmctl.bulk.usecases.dedupe import dedupe
    from crmctl.models.timestamps import in_a_sentence
    from crmctl.output.views import generic_view

    found = dedupe(RuntimeContext(runtime), request)
    if found.mirrored:
        runtime.messages.note(f"from the mirror, as of {in_a_sentence(found.as_of or '', runtime.clock.now())}")
    if found.crowded:
        values = "value is" if found.crowded == 1 else "values are"
        runtime.messages.note(f"{found.crowded:,} {values} shared by more than {request.most} records and say nothing; --max-group N")
    if found.windowed:
        runtime.messages.note(
            f"a word or value of the rules is shared by so many records that {found.windowed:,} were compared with their nearest neighbours"
            " only; a further term that has to be equal tells them apart"
        )
    if found.counts.too_large:
        runtime.messages.note(f"{counted(found.counts.too_large, 'group')} of more than {request.most} records left out; --max-group N")
    if runtime.output_format != "table" or not request.review:
        runtime.emitter.emit_result(found.to_document(), text=_dedupe_text(found))
        return
    rows = _review(found)
    runtime.emitter.emit_items(rows, generic_view(rows, "duplicates", first=("group", "score", "what", "of", "value")))
    if rows:
        runtime.messages.note("* is what is kept; what all records of a group have alike is not shown")
    runtime.messages.note(_dedupe_text(found))
    if found.groups > len(found.least_certain):
        runtime.messages.note(f"showing the {len(found.least_certain):,} least certain of {found.groups:,} groups; the plan has all")


def _dedupe_text(found: DedupeResult) -> str:
    groups = f"{counted(found.groups, 'group')} with {counted(found.duplicates, 'duplicate')}" if found.groups else "no duplicates"
    text = f"{counted(found.records, 'record')} of {found.object}: {groups}"
    if found.plan is None:
        return f"{text}; --plan FILE keeps them"
    return f"{text}; read {found.plan}, then: crmctl bulk apply {shlex.quote(str(found.plan))}" if found.groups else text


def _review(found: DedupeResult) -> Sequence[dict[str, Any]]:
    """For each of the least certain groups why it is one, and below each other what its records have of every attribute in which they
    differ, the survivor's first, with a sign before what is kept."""
    rows: list[dict[str, Any]] = []
    for merge in found.least_certain:
        members = {merge.survivor: "survivor", **dict.fromkeys(merge.losers, "merged")}
        rules = ", ".join(dict.fromkeys(reason.rule for reason in merge.why))
        rows.append({"group": merge.group, "score": f"{merge.score:.2f}", "what": "why", "of": "", "value": rules})
        told = {slug: {one: _told(merge.record(one).data.get(slug)) or "-" for one in members} for slug in merge.values}
        for slug, texts in {**told, "id": {one: one for one in members}}.items():
            kept = merge.values[slug].sources if slug in merge.values else ()
            names = [slug] if len(set(texts.values())) > 1 else []
            for one, text in texts.items() if names else ():
                value = f"* {text}" if one in kept and text != "-" else f"  {text}"
                rows.append({"group": "", "score": "", "what": names.pop() if names else "", "of": members[one], "value": value})
    return rows


def _told(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, dict):
        return " ".join(filter(None, map(_told, value.values())))
    if isinstance(value, list):
        return ", ".join(filter(None, map(_told, value)))
    return "" if value is None else str(value)


def apply_merges(runtime: Runtime, request: ApplyRequest) -> None:
    """Carry out a merge plan, or with --dry-run compare it with what is there now."""
    from crmctl.bulk.usecases.merge_records import example_merge, merge_records, preview_merges

    context = RuntimeContext(runtime)
    if runtime.dry_run:
        preview = preview_merges(context, request)
        takes = _takes(preview.requests, preview.seconds, "; {}")
        text = f"{_preview_text(preview)}; {len(preview.moved):,} not as planned any more{takes}; nothing was sent"
        runtime.emitter.emit_result(preview.to_document(), text=text)
        return
    runtime.emitter.check_result(example_merge())
    show_merges(runtime, merge_records(context, request, lambda preview: runtime.confirm(_merge_question(preview))))


def show_merges(runtime: Runtime, result: MergeResult) -> None:
    """Show what became of a plan. Raises the error that goes with it."""
    runtime.emitter.emit_result(result.to_document(), text=_merged_text(result))
    if result.error is not None:
        raise result.error


def resume_merges(runtime: Runtime, reference: str | None, *, last: bool) -> bool:
    """Go on with a job that merges; False for any other job."""
    from crmctl.bulk.usecases.jobs import merge_job
    from crmctl.bulk.usecases.merge_records import resume_merges

    context = RuntimeContext(runtime)
    job = merge_job(context, reference, last=last)
    if job is None:
        return False
    if runtime.dry_run:
        document = job.to_document()
        text = f"job {job.id}: {counted(document['unsent'], 'group')} not merged; nothing was sent"
        runtime.emitter.emit_result({"dryRun": True, **document}, text=text)
        return True
    show_merges(runtime, resume_merges(context, job))
    return True


def undo_merges(runtime: Runtime, reference: str) -> bool:
    """Take apart what a job has merged; False for any other job."""
    from crmctl.bulk.usecases.jobs import merge_job
    from crmctl.bulk.usecases.unmerge_records import unmerge_records

    context = RuntimeContext(runtime)
    job = merge_job(context, reference)
    if job is None:
        return False

    def approve(plan: UnmergeResult) -> None:
        runtime.emitter.check_result(plan.to_document())
        takes = _takes(plan.expected, plan.seconds, " ({})", "at most")
        runtime.confirm(f"Make {counted(plan.losers, 'record')} of {plan.object} again, and so undo job {plan.job}{takes}")

    result = unmerge_records(context, job, approve, dry_run=runtime.dry_run)
    document = result.to_document()
    if runtime.dry_run:
        runtime.emitter.emit_result({"dryRun": True, **document}, text=f"{_unmerge_text(result)}; nothing was sent")
        return True
    runtime.emitter.emit_result(document, text=_unmerge_text(result))
    if result.error is not None:
        raise result.error
    return True


def _preview_text(preview: MergePreview) -> str:
    return f"{preview.path}: {counted(preview.losers, 'record')} of {preview.object} to merge in {counted(preview.groups, 'group')}"


def _merge_question(preview: MergePreview) -> str:
    into, takes = counted(preview.groups, "other"), _takes(preview.requests, preview.seconds, " ({})")
    return f"Merge {counted(preview.losers, 'record')} of {preview.object} into {into}, and delete them{takes}"


def _takes(requests: int, seconds: float, form: str, how: str = "about") -> str:
    """How long it takes, where that is worth a word."""
    from crmctl.output.progress import duration

    return form.format(f"{how} {counted(requests, 'request')}, {duration(seconds)} at the rate of the service") if seconds >= 1 else ""


def _merged_text(result: MergeResult) -> str:
    from crmctl.output.progress import duration

    document = result.to_document()
    lines = [f"job {result.job}: {document['merged']:,} of {counted(document['groups'], 'group')} of {result.object} merged"]
    lines += [f"  {name.ljust(10)} {document[name]:,}" for name in ("deleted", "references", "activities")]
    lines += [f"  {name.ljust(10)} {document[name]:,}" for name in ("refused", "failed", "unsent", "undone") if document[name]]
    lines += [f"  requests   {document['requests']:,} in {duration(result.elapsed)}"]
    lines += [f"group {row['group']}: {row['error']}" for name in ("refused", "failed") for row in document["rows"][name]]
    return "\n".join(lines)


def _unmerge_text(result: UnmergeResult) -> str:
    from crmctl.bulk.usecases.unmerge_records import LEFT

    document = result.to_document()
    if not result.carried_out:
        takes = _takes(result.expected, result.seconds, "; {}", "at most")
        return f"job {result.job}: {counted(result.losers, 'record')} to make again in {counted(result.groups, 'group')}{takes}"
    parts = [f"job {result.job}: {counted(document['undone'], 'group')} taken apart, {document['recreated']:,} made again with new ids"]
    parts += [f"{document[name]:,} {name} put back" for name in ("survivors", "references", "activities") if document[name]]
    parts += [f"{document[name]:,} {text}" for name, text in LEFT.items() if document[name]]
    return "; ".join(parts)
