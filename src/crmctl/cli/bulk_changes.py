"""`bulk import`, `apply`, `update` and `delete`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from crmctl.cli.bulk_output import PreviewListener, apply_merges, report_import, show, tell_findings
from crmctl.errors import UsageError
from crmctl.models.numbers import counted
from crmctl.output.streams import cell_width, clean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from crmctl.cli.runtime import Runtime
    from crmctl.plan.changes import ChangeForecast, Selection
    from crmctl.plan.deletions import Deletion
    from crmctl.plan.dry_run import ImportPreview, PlanPreview
    from crmctl.plan.import_records import ApplyRequest
    from crmctl.plan.results import ImportResult


def import_file(runtime: Runtime, options: Mapping[str, Any]) -> None:
    """Import a file, or preview it with --dry-run, --plan or --report."""
    from crmctl.plan.requests import ImportRequest

    if options.get("set_values"):
        from crmctl.cli.fields import with_reference_ids

        options = {**options, "set_values": with_reference_ids(runtime, options["object"], options["set_values"])}
    request, report = ImportRequest.taken(options), options["report"]
    if runtime.dry_run or request.plan_path is not None:
        runtime.flags["dry_run"] = True
        if report is not None:
            report_import(runtime, request, report, preview_text)
            return
        from crmctl.plan.dry_run import preview_import

        runtime.listener = PreviewListener(runtime)
        preview = preview_import(runtime, request)
        text = preview_text(preview) + (f"\ncrmctl bulk apply {preview.plan} does exactly this" if preview.plan else "")
        show(runtime, preview.to_document(), text, preview.error, preview.findings)
        return
    if report is not None:
        raise UsageError("--report says what --dry-run finds", hint="give --dry-run too")
    from crmctl.plan.import_records import import_records

    check_shown(runtime)
    show_result(runtime, import_records(runtime, request))


def apply_saved(runtime: Runtime, request: ApplyRequest) -> None:
    """Carry out a plan, or show it with --dry-run."""
    from crmctl.plan.import_records import apply_plan
    from crmctl.plan.merge_records import is_merge_plan

    if is_merge_plan(request.file):
        apply_merges(runtime, request)
        return
    if runtime.dry_run:
        from crmctl.plan.dry_run import preview_plan

        preview = preview_plan(runtime, request)
        show(runtime, preview.to_document(), _plan_text(preview, runtime.clock.now()), preview.error)
        return
    check_shown(runtime)
    show_result(runtime, apply_plan(runtime, request))


def check_shown(runtime: Runtime) -> None:
    """Raise UsageError for a --fields or --query that does not fit the summary of a job."""
    from crmctl.plan.results import example_summary

    runtime.emitter.check_result(example_summary())


def show_result(runtime: Runtime, result: ImportResult) -> None:
    """Show a job's findings, notes and summary. Raises the error that goes with its exit code."""
    error = result.error
    tell_findings(runtime, result.findings, error)
    if result.rivals is not None and error is not None and error.code != result.rivals.code:
        runtime.messages.warn(result.rivals.message)
    for note in result.notes:
        runtime.messages.note(note)
    show(runtime, result.summary.to_document(), _summary_text(result), error)


OUTCOMES = {
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
    counts = ", ".join(f"{document[name]:,} {word}" for name, word in OUTCOMES.items() if document[name]) or "none"
    into = f"{summary.object}" if document["mode"] == "update" else f"{result.input} into {summary.object}"
    lines = [
        f"{into}, job {summary.job}",
        f"  rows       {summary.rows:,}: {counts}",
        f"  requests   {summary.requests:,} in {duration(summary.elapsed)}",
    ]
    lines[2:2] = [f"  values     {people}"] if (people := _people_text(document)) else []
    files = document["files"] | {"failed": result.failed_file}
    lines += [f"  {OUTCOMES.get(name, name).ljust(9)}  {path}" for name, path in files.items() if path and name != "ok"]
    return "\n".join(lines)


def _people_text(document: Mapping[str, Any]) -> str:
    """Return the values of a feed that people changed."""
    kept = f"{counted(document['kept'], 'value')} kept as people changed them" if document.get("kept") else ""
    return ", ".join(part for part in (kept, counted(document["conflicts"], "conflict") if document.get("conflicts") else "") if part)


_CHOICES_SHOWN, _VALUE_SHOWN = 20, 40


def _choices_text(choices: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each value that needed a choice."""
    from crmctl.models import jsontext
    from crmctl.output.table import aligned, pad

    def said(value: Any) -> str:
        text = "-" if value in (None, "") else clean(value if isinstance(value, str) else jsontext.dumps(value))
        return pad(text, min(cell_width(text), _VALUE_SHOWN), False)

    rows = [("LINE", "ATTRIBUTE", "CHOICE", "BASE", "FILE", "RECORD")]
    for entry in choices[:_CHOICES_SHOWN]:
        base = "known" if entry["baseKnown"] else "unknown"
        choice = f"conflict: {entry['choice']}" if entry["conflict"] else entry["choice"]
        rows.append((str(entry["line"]), entry["attribute"], choice, base, said(entry["file"]), said(entry["record"])))
    more = len(choices) - _CHOICES_SHOWN
    return "\n".join([*aligned(rows), *([f"and {more:,} more; -o json has them"] if more > 0 else [])]) + "\n"


_FORECAST = {"create": "to create", "update": "to update", "unchanged": "unchanged", "skip": "skipped", "ambiguous": "ambiguous"}


def preview_text(preview: ImportPreview) -> str:
    """Return the forecast of an import: rows, records, requests and time."""
    from crmctl.output.progress import duration

    predicted, report, document = preview.predicted, preview.predicted.report, preview.to_document()
    counts = ", ".join(f"{count:,} {_FORECAST[name]}" for name, count in predicted.predicted.items() if count and name in _FORECAST)
    return (
        f"{preview.input} has {counted(report.rows, 'row')}: {report.valid:,} valid, {report.rejected:,} invalid\n"
        + (f"{counts}\n" if counts and predicted.summary.mode != "create" else "")
        + (f"{people}\n" if (people := _people_text(document)) else "")
        + (_choices_text(document["choices"]) if predicted.choices else "")
        + "".join(
            f"{counted(group.size, 'record')} of {group.reference.object} to create first, by {group.reference.key}\n"
            for group in predicted.parents
        )
        + f"importing takes {counted(predicted.summary.requests, 'request')}, about {duration(predicted.seconds)}; nothing was sent"
    )


def _plan_text(preview: PlanPreview, now: float) -> str:
    from crmctl.output.progress import duration
    from crmctl.output.table import aligned
    from crmctl.values.moments import in_a_sentence

    document = preview.to_document()
    when = in_a_sentence(document["createdAt"], now)
    planned, shown = document["planned"], preview.examples
    counts = {name: count for name, count in planned["predicted"].items() if count}
    width = max((len(f"{count:,}") for count in counts.values()), default=1)
    into = f"{preview.saved.header.input} into {document['object']}"
    lines = [f"{preview.path}: {into}, {counted(planned['rows'], 'row')}, planned as of {when}"]
    lines += [f"  {name.ljust(9)}  {f'{count:,}'.rjust(width)}" for name, count in counts.items()]
    lines += [f"  first      {counted(group['create'], 'record')} of {group['object']}, by {group['key']}" for group in planned["parents"]]
    lines += [f"  requests   {planned['requests']:,}, about {duration(planned['estimatedSeconds'])}"]
    if shown:
        rows = [("LINE", "ACTION", "RECORD", "CHANGES")]
        rows += [(str(row.line), row.action, row.id or "", row.reason or ", ".join(row.changes or ())) for row in shown]
        lines += aligned(rows)
    return "\n".join([*lines, "nothing was sent"])


FEW = 3
"""crmctl does not announce fewer requests."""


def update_records(runtime: Runtime, object_name: str, values: Mapping[str, Any]) -> None:
    """Update the records that a file or conditions name. Raises UsageError if it cannot prompt without --yes, and the job's error."""
    from crmctl.cli.fields import with_reference_ids
    from crmctl.files.sources import is_stream
    from crmctl.plan.changes import UpdateRequest, preview_update, update

    if values["ids"] is not None:
        is_stream(values["ids"])  # a missing file is an error before any question
    selection = _selection(runtime, object_name, "update", values)
    set_values = with_reference_ids(runtime, object_name, values.get("set_values"))
    request = UpdateRequest.taken({**values, "set_values": set_values}, object=object_name, selection=selection)
    if runtime.dry_run:
        preview = preview_update(runtime, request)
        from crmctl.output.progress import duration

        document = preview.to_document()
        writes = f"POST {document['path']}, {counted(preview.requests, 'request')}, about {duration(preview.seconds)}"
        text = "\n".join([*changes_text(runtime, preview.forecast), f"{writes}; nothing was sent"])
        show(runtime, document, text, preview.error, preview.findings)
        return
    check_shown(runtime)
    if not runtime.prompter.can_ask or values["ids"] == "-":
        runtime.confirm(f"Update records of {object_name}")
    show_result(runtime, update(runtime, request, lambda forecast: approve(runtime, forecast)))


def _selection(runtime: Runtime, object_name: str, verb: str, values: Mapping[str, Any]) -> Selection:
    """Return the records of --ids and --filter, whose reading is announced if it takes many requests."""
    from crmctl.cli.record_queries import approve_cost, one_list
    from crmctl.client.query.record_filter import ReadingCost
    from crmctl.plan.changes import Selection

    def price(requests: int) -> None:
        if requests > FEW:
            approve_cost(runtime, ReadingCost(requests, f"reading the records of {object_name} to {verb}"))

    filters = values["filters"]
    conditions, admits = one_list(runtime, object_name, filters, strict=values["strict"])
    return Selection(values["ids"], conditions, verb=verb, admits=admits, price=price, typed=filters or ())


def approve(runtime: Runtime, forecast: ChangeForecast) -> None:
    """Show the changes and the profile, and ask. Raises like `Runtime.confirm`."""
    for line in (*changes_text(runtime, forecast), place_text(runtime)):
        runtime.messages.note(line)
    runtime.confirm(f"Update {counted(forecast.changes, 'record')} of {forecast.object}")


def place_text(runtime: Runtime) -> str:
    """Return the profile and the address of its service."""
    from urllib.parse import urlsplit

    return f"profile {runtime.settings.profile.value}, {urlsplit(runtime.origin).netloc}"


def changes_text(runtime: Runtime, forecast: ChangeForecast) -> list[str]:
    """Return the number of changes, and some of them with old and new values."""
    same = f", {forecast.unchanged:,} hold these values already" if forecast.unchanged else ""
    bad = f", {forecast.rejected:,} cannot be written" if forecast.rejected else ""
    lines = [f"{counted(forecast.rows, 'record')} of {forecast.object}: {forecast.changes:,} to update{same}{bad}"]
    lines += _sample_lines(runtime, forecast)
    unshown = forecast.changes - len(forecast.samples)
    return [*lines, *([f"  and {unshown:,} more"] if unshown > 0 else [])]


def _sample_lines(runtime: Runtime, forecast: ChangeForecast) -> list[str]:
    from crmctl.cli.record_lists import value_texts
    from crmctl.cli.targets import record_name

    documents = [change.to_document() for change in forecast.samples]
    texts = value_texts(runtime, forecast.object, [document[when] for document in documents for when in ("before", "after")])
    lines = []
    for change, before, after in zip(forecast.samples, texts[::2], texts[1::2], strict=True):
        assert change.record is not None
        changed = [f"{slug}: {value or 'nothing'} → {after.get(slug) or 'nothing'}" for slug, value in before.items()]
        lines.append(clean(f"  {record_name(runtime, change.record, forecast.attributes)}  {'; '.join(changed)}"))
    return lines


def delete_records(runtime: Runtime, object_name: str, backup: str | bool, values: Mapping[str, Any]) -> None:
    """Delete the records that a file or conditions name. Raises UsageError if it cannot prompt without --yes, and the job's error."""
    from crmctl.files.sources import is_stream
    from crmctl.plan.deletions import DeleteRequest, DeleteSummary, delete

    if not runtime.dry_run:
        runtime.emitter.check_result(DeleteSummary(object_name).to_document())
    if values["ids"] is not None:
        is_stream(values["ids"])  # a missing file is an error before any question
    if not runtime.prompter.can_ask or values["ids"] == "-":
        runtime.confirm(f"Delete records of {object_name}")
    if isinstance(backup, str) and Path(backup).is_file():
        runtime.confirm(f"Replace {backup}")
    selection = _selection(runtime, object_name, "delete", values)
    request = DeleteRequest(object_name, selection, backup, values["expect"], values["concurrency"], runtime.dry_run)
    done = delete(runtime, request, lambda plan: _approve_deletion(runtime, plan, backup))
    if done.summary is None:
        requests = f"{counted(done.records, 'record')} in {counted(done.requests, 'request')}; nothing was sent"
        document = done.to_document()
        runtime.emitter.emit_result(document, text=f"DELETE {document['path']}\n{requests}")
        return
    show_deletion(runtime, done)


def show_deletion(runtime: Runtime, done: Deletion) -> None:
    """Show the result of a deletion. Raises the error that goes with its exit code."""
    summary = done.summary
    assert summary is not None
    absent = f"; {summary.not_found:,} were not there" if summary.not_found else ""
    kept = f"; their copy is {summary.backup}" if summary.backup is not None and summary.deleted else ""
    runtime.done(done.to_document(), f"deleted {counted(summary.deleted, 'record')} of {done.object}{absent}{kept}")
    if summary.backup is not None and summary.deleted:
        runtime.messages.hint(f"crmctl bulk undo {summary.job} creates them again")
    done.raise_for_error()


def show_resumed(runtime: Runtime, result: ImportResult) -> None:
    """Show the result of a resumed job. Raises the error that goes with its exit code."""
    if result.summary.mode != "delete":
        show_result(runtime, result)
        return
    from crmctl.plan.deletions import deletion_of

    show_deletion(runtime, deletion_of(runtime, result))


def _approve_deletion(runtime: Runtime, plan: Deletion, backup: bool | str) -> None:
    """Show the records and the profile, and ask. Raises like `Runtime.confirm`."""
    from crmctl.cli.targets import record_name

    names = [clean(f"  {record_name(runtime, record, plan.attributes)}") for record in plan.named]
    unshown = plan.records - len(names)
    lines = [f"{counted(plan.records, 'record')} of {plan.object}", *names, *([f"  and {unshown:,} more"] if names and unshown > 0 else [])]
    if plan.absent:
        lines.append(f"{counted(plan.absent, 'id')} of no record")
    kept = f"a copy goes to {backup}" if isinstance(backup, str) else "a copy is kept" if backup else "no copy is kept"
    for line in (*lines, f"{place_text(runtime)}; {kept}"):
        runtime.messages.note(line)
    runtime.confirm(f"Delete {counted(plan.records, 'record')} of {plan.object}")
