"""`bulk import` and `bulk apply`: the use case is called and its outcome shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crmctl.cli.bulk_context import PreviewListener, RuntimeContext
from crmctl.cli.bulk_findings import tell_findings
from crmctl.cli.counted_words import counted
from crmctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from crmctl.bulk.usecases.apply_plan import ApplyRequest, PlanPreview
    from crmctl.bulk.usecases.import_preview import ImportPreview
    from crmctl.bulk.usecases.results import ImportResult
    from crmctl.cli.runtime import Runtime


def import_file(runtime: Runtime, options: Mapping[str, Any]) -> None:
    """Import a file, or with --dry-run or --plan say what that would do; as a report for a build system where that is asked for."""
    from crmctl.bulk.usecases.requests import ImportRequest

    request, report = ImportRequest.taken(options), options["report"]
    if runtime.dry_run or request.plan_path is not None:
        runtime.flags["dry_run"] = True
        if report is not None:
            from crmctl.cli.bulk_reports import report_import

            report_import(runtime, request, report, preview_text)
            return
        from crmctl.bulk.usecases.import_preview import preview_import

        _show_preview(runtime, preview_import(RuntimeContext(runtime, PreviewListener(runtime)), request))
        return
    if report is not None:
        raise UsageError("--report says what --dry-run finds", hint="give --dry-run too")
    from crmctl.bulk.usecases.import_records import import_records

    check_shown(runtime)
    show_result(runtime, import_records(RuntimeContext(runtime), request))


def apply_saved(runtime: Runtime, request: ApplyRequest) -> None:
    """Do what a plan says, or with --dry-run show it."""
    from crmctl.bulk.usecases.apply_plan import apply_plan, preview_plan
    from crmctl.bulk.usecases.merge_records import holds_merges

    if holds_merges(request.file):
        from crmctl.cli.bulk_merges import apply_merges

        apply_merges(runtime, request)
        return
    context = RuntimeContext(runtime)
    if runtime.dry_run:
        preview = preview_plan(context, request)
        runtime.emitter.emit_result(preview.to_document(), text=_plan_text(preview, runtime.clock.now()))
        if preview.error is not None:
            raise preview.error
        return
    check_shown(runtime)
    show_result(runtime, apply_plan(context, request))


def check_shown(runtime: Runtime) -> None:
    """Refuse a --fields or --query that does not fit the summary of a job before it begins. Raises UsageError."""
    from crmctl.bulk.usecases.results import example_summary

    runtime.emitter.check_result(example_summary())


def show_result(runtime: Runtime, result: ImportResult) -> None:
    """Show a job's findings, notes and summary. Raises the error that goes with its exit code, if it has one."""
    error = result.error
    tell_findings(runtime, result.findings, error)
    if result.rivals is not None and error is not None and error.code != result.rivals.code:
        runtime.messages.warn(result.rivals.message)
    for note in result.notes:
        runtime.messages.note(note)
    runtime.emitter.emit_result(result.summary.to_document(), text=_summary_text(result))
    if error is not None:
        raise error


_WORDS = {
    "created": "created",
    "updated": "updated",
    "unchanged": "unchanged",
    "failed": "failed",
    "rejected": "invalid",
    "skipped": "skipped",
    "inDoubt": "in doubt",
    "unsent": "not sent",
}


def _summary_text(result: ImportResult) -> str:
    from crmctl.output.progress import duration

    summary, document = result.summary, result.summary.to_document()
    counts = ", ".join(f"{document[name]:,} {word}" for name, word in _WORDS.items() if document[name]) or "none"
    into = f"{summary.object}" if document["mode"] == "update" else f"{result.input} into {summary.object}"
    lines = [
        f"{into}, job {summary.job}",
        f"  rows       {summary.rows:,}: {counts}",
        f"  requests   {summary.requests:,} in {duration(summary.elapsed)}",
    ]
    lines[2:2] = [f"  values     {people}"] if (people := _people_text(document)) else []
    lines += [f"  {_WORDS.get(name, name).ljust(9)}  {path}" for name, path in document["files"].items() if path and name != "ok"]
    return "\n".join(lines)


def _people_text(document: Mapping[str, Any]) -> str:
    """Of a feed: what people changed."""
    kept = f"{counted(document['kept'], 'value')} kept as people changed them" if document.get("kept") else ""
    return ", ".join(part for part in (kept, counted(document["conflicts"], "conflict") if document.get("conflicts") else "") if part)


_CHOICES_SHOWN, _VALUE_SHOWN = 20, 40


def _choices_text(choices: Sequence[Mapping[str, Any]]) -> str:
    """A line for each value of which it had to be chosen whose counts."""
    from crmctl.models import jsontext
    from crmctl.output.columns import aligned, cell_width, pad
    from crmctl.output.control_characters import clean

    def said(value: Any) -> str:
        text = "-" if value in (None, "") else clean(value if isinstance(value, str) else jsontext.dumps(value))
        return pad(text, min(cell_width(text), _VALUE_SHOWN), False)

    rows = [("LINE", "ATTRIBUTE", "CHOICE", "BASE", "FILE", "RECORD")]
    for one in choices[:_CHOICES_SHOWN]:
        known = "known" if one["baseKnown"] else "unknown"
        choice = f"conflict: {one['choice']}" if one["conflict"] else one["choice"]
        rows.append((str(one["line"]), one["attribute"], choice, known, said(one["file"]), said(one["record"])))
    more = len(choices) - _CHOICES_SHOWN
    return "\n".join([*aligned(rows), *([f"and {more:,} more; -o json has them"] if more > 0 else [])]) + "\n"


_FORECAST = {"create": "to create", "update": "to update", "unchanged": "unchanged", "skip": "skipped", "ambiguous": "ambiguous"}


def _show_preview(runtime: Runtime, preview: ImportPreview) -> None:
    """Raises the error of what would not be imported, after the report."""
    tell_findings(runtime, preview.findings, preview.error)
    document = preview.to_document()
    text = preview_text(preview) + (f"\ncrmctl bulk apply {preview.plan} does exactly this" if preview.plan else "")
    runtime.emitter.emit_result(document, text=text)
    preview.raise_for_error()


def preview_text(preview: ImportPreview) -> str:
    """How many rows would do what, and what that takes."""
    from crmctl.output.progress import duration

    found, report, document = preview.predicted, preview.predicted.report, preview.to_document()
    known = ", ".join(f"{count:,} {_FORECAST[name]}" for name, count in found.predicted.items() if count and name in _FORECAST)
    return (
        f"{preview.input} has {counted(report.rows, 'row')}: {report.valid:,} valid, {report.rejected:,} invalid\n"
        + (f"{known}\n" if known and found.summary.mode != "create" else "")
        + (f"{people}\n" if (people := _people_text(document)) else "")
        + (_choices_text(document["choices"]) if found.choices else "")
        + "".join(
            f"{counted(one.size, 'record')} of {one.reference.object} to create first, by {one.reference.key}\n" for one in found.parents
        )
        + f"importing takes {counted(found.summary.requests, 'request')}, about {duration(found.seconds)}; nothing was sent"
    )


def _plan_text(preview: PlanPreview, now: float) -> str:
    from crmctl.models.timestamps import in_a_sentence
    from crmctl.output.columns import aligned
    from crmctl.output.progress import duration

    document = preview.to_document()
    when = in_a_sentence(document["createdAt"], now)
    planned, shown = document["planned"], preview.examples
    counts = {name: count for name, count in planned["predicted"].items() if count}
    width = max((len(f"{count:,}") for count in counts.values()), default=1)
    into = f"{preview.header.input} into {document['object']}"
    lines = [f"{preview.path}: {into}, {counted(planned['rows'], 'row')}, planned as of {when}"]
    lines += [f"  {name.ljust(9)}  {f'{count:,}'.rjust(width)}" for name, count in counts.items()]
    lines += [f"  first      {counted(one['create'], 'record')} of {one['object']}, by {one['key']}" for one in planned["parents"]]
    lines += [f"  requests   {planned['requests']:,}, about {duration(planned['estimatedSeconds'])}"]
    if shown:
        rows = [("LINE", "ACTION", "RECORD", "CHANGES")]
        rows += [(str(one.line), one.action, one.id or "", one.reason or ", ".join(one.changes or ())) for one in shown]
        lines += aligned(rows)
    return "\n".join([*lines, "nothing was sent"])
