"""`bulk jobs`, `resume`, `repair`, `undo`, `export` and `inspect`."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from crmctl.cli.bulk_changes import OUTCOMES, approve, check_shown, show_resumed
from crmctl.cli.bulk_output import show, show_merges
from crmctl.cli.record_queries import FEW_REQUESTS, one_list, query_context
from crmctl.errors import PartialError, UsageError
from crmctl.models.numbers import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from crmctl.cli.runtime import Runtime
    from crmctl.plan.export import ExportRequest, Further
    from crmctl.plan.inspect_file import InspectRequest
    from crmctl.plan.resume import RepairRequest, ResumeRequest
    from crmctl.plan.undo import Undo
    from crmctl.plan.undo_deletions import Recreation
    from crmctl.plan.unmerge import Separation


_COUNTS = ("created", "updated", "deleted", "unchanged", "skipped", "failed", "rejected", "inDoubt", "unsent")
_JOB_FIELDS = f"job createdAt state mode object input rows {' '.join(_COUNTS)} host resumable"


def show_jobs(runtime: Runtime, reference: str | None, *, remove: bool) -> None:
    """List the jobs, show one, or remove its journal and result files."""
    from crmctl.plan.requests import store_of
    from crmctl.plan.resume import remove_job

    if reference is None:
        if remove:
            raise UsageError("say which job to remove", hint="crmctl bulk jobs JOB --remove")
        _list(runtime)
    elif remove:
        removed = remove_job(runtime, reference, keep=runtime.dry_run)
        runtime.done({"removed": removed}, f"removed job {removed}")
    else:
        runtime.emitter.emit_result(store_of(runtime).find(reference).to_document())


def _list(runtime: Runtime) -> None:
    from crmctl.output.views import table_view
    from crmctl.plan.requests import store_of

    store = store_of(runtime)
    for damaged in store.damaged():
        runtime.messages.warn(f"{damaged.error.message}; {damaged.error.hint}")
    rows = [job.to_document() for job in store.list()]
    if runtime.output_format != "table":
        runtime.emitter.emit_rows(rows, "jobs")
        return
    for row in rows:
        row["host"] = urlsplit(row["origin"]).netloc
        row["input"] = Path(row["input"]).name if row["input"].startswith("/") else row["input"]
        row["outcome"] = ", ".join(f"{row[name]:,} {OUTCOMES.get(name, name)}" for name in _COUNTS if row[name])
    runtime.emitter.emit_items(
        rows, table_view("jobs", "job createdAt object outcome state input mode rows host", f"{_JOB_FIELDS} outcome")
    )


def repair_job(runtime: Runtime, request: RepairRequest) -> None:
    """Look again for rows that were in doubt. Raises PartialError for duplicates."""
    from crmctl.plan.resume import repair

    _refuse_folder_job(runtime, request.job)
    done = repair(runtime, request)
    audit = done.found
    text = f"job {done.job}: {counted(audit.checked, 'row')} in doubt before, {len(audit.duplicates):,} of them exist more than once"
    show(runtime, done.to_document(), text)
    done.raise_for_error()


def undo_job(runtime: Runtime, reference: str, *, include_changed: bool = False) -> None:
    """Show the undo, ask, and carry it out. Raises PartialError if part of the job remains."""
    from crmctl.org.jobs import MODE
    from crmctl.plan.requests import store_of
    from crmctl.plan.undo import UndoRequest, undo

    if store_of(runtime).find(reference).header.mode == MODE:  # an unknown job is an error before any question
        _undo_apply(runtime, reference, include_changed=include_changed)
        return
    if not runtime.prompter.can_ask:
        runtime.confirm(f"Undo job {reference}")

    def approve(plan: Undo | Recreation | Separation) -> None:
        runtime.emitter.check_result(plan.to_document())
        if plan.work:
            if runtime.prompter.can_ask:
                runtime.messages.note(_undo_text(plan))
            elif plan.requests > FEW_REQUESTS:
                runtime.progress.note(_undo_text(plan))
            runtime.confirm(f"Undo job {plan.job} of {plan.object}: {_undo_steps(plan)}")

    plan = undo(runtime, UndoRequest(reference, runtime.dry_run, include_changed), approve)
    text = f"{_undo_text(plan)}; nothing was sent" if runtime.dry_run else _undo_text(plan)
    show(runtime, plan.to_document(), text)
    plan.raise_for_error()


def _undo_apply(runtime: Runtime, reference: str, *, include_changed: bool) -> None:
    """Undo the apply of a folder."""
    from crmctl.org.jobs import undo_apply
    from crmctl.plan.requests import store_of

    job = store_of(runtime).find(reference)
    plan = undo_apply(runtime, job, dry_run=True)
    description = f"{counted(plan['records'], 'record')}, {plan['activities']:,} activities, {plan['entries']:,} entries"
    description += f" and {counted(plan['schema'], 'change')} of the schema"
    runtime.confirm(f"Undo job {job.id}: {description}")
    if not runtime.dry_run:
        plan = undo_apply(runtime, job, dry_run=False, include_changed=include_changed)
        runtime.directory.forget()
    text = f"job {job.id}: {description} {'to undo; nothing was sent' if runtime.dry_run else 'undone'}"
    show(runtime, plan, text)
    if plan["left"]:
        raise PartialError(f"not everything the job did was undone: {plan['left'][0]}", details={"left": plan["left"]})


_UNDO_STEPS: dict[str, Sequence[tuple[str, str, str]]] = {
    "Undo": (
        ("found", "{records} to delete", "{deleted} of {records} deleted"),
        ("restorable", "{back} to put back", "{restored} of {back} put back"),
        ("parents", "{parents} to delete that they refer to", ""),
        ("parentsDeleted", "", "{parentsDeleted} deleted that they referred to"),
        ("undoneBefore", "{undoneBefore} undone before", "{undoneBefore} undone before"),
        ("abandoned", "{rows} not sent yet, and abandoned", "{rows} not sent yet, and abandoned"),
    ),
    "Recreation": (
        ("found", "{records} to create again, with new ids", "{created} of {records} created again, with new ids"),
        ("undoneBefore", "{undoneBefore} created again before", "{undoneBefore} created again before"),
        ("ids", "", "{ids} says which"),
        ("references", "", "{references} other records refer to them again"),
        ("activities", "", "{activities} activities linked again"),
    ),
    "Separation": (
        ("groups", "{losers} to create again, with new ids, in {groups}", "{undone} taken apart, {recreated} created again with new ids"),
        ("survivors", "", "{survivors} put back"),
        ("references", "", "{references} put back"),
        ("activities", "", "{activities} put back"),
    ),
}
"""Effects of each kind of undo: the count that must not be 0, the text before and the text after."""


def _undo_steps(plan: Undo | Recreation | Separation) -> str:
    document = plan.to_document()
    texts: dict[str, str] = {name: f"{value:,}" if isinstance(value, int) else str(value) for name, value in document.items()}
    kind, count = type(plan).__name__, document.get
    texts["records"], texts["rows"] = counted(count("found", 0), "record"), counted(count("abandoned", 0), "row")
    texts["back"] = texts.get("restorable", "") if count("found") else counted(count("restorable", 0), "record")
    if kind == "Separation":
        nouns = {"groups": "group", "undone": "group", "survivors": "survivor", "references": "reference", "activities": "activity"}
        texts |= {name: counted(document[name], noun) for name, noun in nouns.items()}
        texts["losers"] = counted(document["duplicates"], "record")
    steps = [(after if plan.carried_out else before).format_map(texts) for name, before, after in _UNDO_STEPS[kind] if count(name)]
    return ", ".join(filter(None, steps)) or "nothing to undo"


def _undo_text(plan: Undo | Recreation | Separation) -> str:
    from crmctl.output.progress import duration
    from crmctl.plan.undo_updates import LEFT

    before = plan.to_document()["undoneBefore"]
    parts = [f"nothing left to undo; {before:,} undone before" if before and not plan.work else _undo_steps(plan)]
    if not plan.carried_out and plan.requests:
        parts.append(f"{counted(plan.requests, 'request')}, about {duration(plan.seconds)}")
    return f"job {plan.job}: {'; '.join([*parts, *(f'{count:,} {LEFT[name]}' for name, count in plan.left.items())])}"


def export_records(runtime: Runtime, request: ExportRequest, filters: list[str] | None, *, strict: bool = False) -> None:
    """Write the records to stdout or a file. Raises UsageError for an existing file without --yes."""
    from crmctl.plan.export import Further, export

    request.check()
    names = runtime.take_fields()
    request = _with_format(runtime, request)
    if request.path is not None and request.path.is_file():
        runtime.confirm(f"Replace {request.path}")
    conditions, admits = one_list(runtime, request.object, filters, strict=strict)
    further = Further(tuple(filters or ()), admits)
    if names is not None:
        request, further = _with_fields(runtime, request, further, names)
    request = replace(request, conditions=conditions, further=further, replace=True)
    summary = export(runtime, request, runtime.streams.write_out)
    exported = f"exported {counted(summary.rows, 'record')}"
    if request.path is None:
        runtime.messages.note(exported)
    else:
        runtime.done(summary.to_document(), f"{exported} to {request.path}")
    for flag in summary.flags:
        runtime.messages.warn(WARNINGS[flag])


def _with_format(runtime: Runtime, request: ExportRequest) -> ExportRequest:
    """Return the request with its format. Raises UsageError for conflicting or useless options."""
    from crmctl.plan.export import example_export

    asked = runtime.flags.get("output") or ("json" if runtime.flags.get("json") else None)
    output_format = asked if request.path is None else None
    if output_format in ("table", "yaml", "ids"):
        raise UsageError(f"an export is jsonl, csv, tsv or json, not {output_format}", hint=f"crmctl records list --all -o {output_format}")
    if request.format is not None and output_format not in (None, request.format):
        raise UsageError(f"--format {request.format} and --output {output_format} exclude each other", hint="leave one of them out")
    request = replace(request, format=request.format or output_format)
    request = replace(request, format=request.chosen_format())
    if request.path is None and runtime.flags.get("query"):
        raise UsageError(
            "--query is not for records that an export writes to stdout",
            hint=f"crmctl records list {request.object} --all --query ..., or --filter and --fields here",
        )
    if request.path is not None and runtime.flags.get("query"):
        runtime.emitter.check_result(example_export(request.object, request.path))
    return request


def _with_fields(runtime: Runtime, request: ExportRequest, further: Further, names: list[str]) -> tuple[ExportRequest, Further]:
    """Return the request with the paths of the fields, and look-ups for fields of other records. Raises UsageError for unknown fields."""
    from crmctl.client.query.related_records import FieldLookups
    from crmctl.output.emitter import choose_fields
    from crmctl.output.views import record_view

    attributes = runtime.directory.attributes(request.object)
    lookups = FieldLookups(query_context(runtime), attributes, names)
    fields = choose_fields(names, record_view(attributes))
    if not lookups.slugs:
        return replace(request, fields=fields), further
    if request.format not in ("json", "jsonl"):  # the reference itself stays an id
        fields |= {slug: ("data", slug, "id") for slug in lookups.slugs if slug in fields}

    def expand(count: int, wires: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
        lookups.expect(count)
        return lookups.expand_all(wires)

    return replace(request, fields=fields), replace(further, expand=expand)


WARNINGS = {
    "unstable_ties": "records of one creation time changed order and content during the export: one of them may be missing",
    "unsorted": "the service does not sort by creation time; the export was read as one group",
    "updates_unseen": "the service does not sort by time of change: changes made during the export may be missing",
    "still_changing": "records kept changing until the end; each is as new as the last pass over the changes",
}


def inspect_input(runtime: Runtime, request: InspectRequest) -> None:
    """Read the file once and report on it: a table of columns for people, everything for programs."""
    from crmctl.plan.inspect_file import inspect_file

    report = inspect_file(runtime, request)
    file = request.file
    if runtime.output_format != "table":
        runtime.emitter.emit_result(report.to_document())
        return
    dialect = report.dialect
    runtime.messages.note(f"{file}: {dialect.described}, {counted(report.rows, 'row')}, {report.problems:,} unreadable")
    for note in dialect.notes:
        runtime.messages.note(note)
    shown = ("column", "target", "type", "samples", "note", "fillRate", "distinct", "suggestions")
    documents = report.column_documents()
    for document in documents:
        document["distinct"] = f"{document['distinct']:,}{'' if document['distinctExact'] else ' or more'}"
        document["fillRate"] = f"{document['fillRate']:.0%}"
    rows = [{name: document[name] for name in shown} for document in documents]
    runtime.emitter.emit_rows(rows, "columns")
    for finding in report.findings:
        runtime.messages.warn(finding.to_text())
    if report.duplicates is not None:
        duplicates = report.duplicates
        first = "; the first: lines " + ", ".join(map(str, duplicates.examples[0]["lines"])) if duplicates.examples else ""
        by = " or ".join(duplicates.match)
        runtime.messages.note(f"by {by}: {counted(duplicates.rows, 'duplicate')} in {counted(duplicates.groups, 'group')}{first}")
    if request.object is not None and (arguments := report.import_arguments()):
        runtime.messages.hint(shlex.join(["crmctl", "bulk", "import", request.object, file, *arguments]))


def _refuse_folder_job(runtime: Runtime, reference: str) -> None:
    """Raise UsageError for the job of `org apply`, which compares everything when it runs again."""
    from crmctl.org.jobs import MODE
    from crmctl.plan.requests import store_of

    job = store_of(runtime).find(reference)
    if job.header.mode == MODE:
        raise UsageError(f"job {job.id} applies a folder", hint=f"crmctl org apply {shlex.quote(job.header.input)} continues it")


def resume_job(runtime: Runtime, request: ResumeRequest) -> None:
    """Continue a job, or show the rest of it with --dry-run."""
    from crmctl.plan.merge_steps import MODE
    from crmctl.plan.requests import store_of
    from crmctl.plan.resume import choose_job, preview_resume, resume

    job = choose_job(store_of(runtime), request.job, last=request.last)
    if job.header.mode == MODE:
        from crmctl.plan.merge_records import resume_merges

        if runtime.dry_run:
            text = f"job {job.id}: {counted(job.to_document()['unsent'], 'group')} not merged; nothing was sent"
            show(runtime, job.to_document(), text)
        else:
            show_merges(runtime, resume_merges(runtime, job))
        return
    _refuse_folder_job(runtime, job.id)
    request = replace(request, job=job.id)
    if not runtime.dry_run:

        def run(request: ResumeRequest) -> None:
            show_resumed(runtime, resume(runtime, request, lambda: check_shown(runtime), lambda preview: approve(runtime, preview)))

        try:
            run(request)
        except UsageError as error:
            if error.code != "older_job" or not runtime.prompter.can_ask:
                raise
            runtime.prompter.confirm(f"{error.message}. Send its rows anyway?", flag="--allow-older")
            run(replace(request, allow_older=True))
        return
    document = preview_resume(runtime, request)
    text = f"job {document['job']}: {counted(document['unsent'], 'row')} not sent, {document['inDoubt']:,} in doubt; nothing was sent"
    runtime.emitter.emit_result(document, text=text)
