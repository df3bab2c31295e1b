"""`bulk export`: from options to crmctl.bulk and its result on the screen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from crmctl.cli.counted_words import counted
from crmctl.errors import UsageError

if TYPE_CHECKING:
    from crmctl.bulk.export.formats import Layout
    from crmctl.bulk.export.increments import Increments
    from crmctl.bulk.export.manifest import Subject
    from crmctl.cli.runtime import Runtime
    from crmctl.models.filters import Condition


def export(
    runtime: Runtime,
    object_name: str,
    path: Path | None,
    format: str | None,
    filters: list[str] | None,
    *,
    prune: bool,
    since_last: bool,
    lookback: float,
    resume: bool | None,
) -> None:
    """Write the records to stdout or into a file. Raises UsageError for an existing file without --yes."""
    from crmctl.bulk.export.manifest import Subject
    from crmctl.bulk.rows.mapping import schema_digest
    from crmctl.bulk.usecases.export import Export, ExportOptions
    from crmctl.cli.targets import parse_filters

    if prune and since_last:
        raise UsageError("--since-last gives changes, which say nothing of deletions", hint="leave --prune-deleted out")
    if resume is not None and path is None:
        raise UsageError("only an export into a file can be resumed", hint="-O FILE")
    names = runtime.take_fields()
    chosen = _chosen_format(runtime, object_name, path, format)
    if path is not None and path.exists():
        runtime.confirm(f"Replace {path}")
    conditions = parse_filters(runtime, object_name, filters)
    layout = _layout(runtime, object_name, chosen, names)
    digest = schema_digest(layout.attributes)
    subject = Subject(object_name, runtime.directory.object_id(object_name), runtime.settings.require_origin(), digest)
    increments = _increments(runtime, subject, conditions, path) if since_last else None
    options = ExportOptions(layout, conditions, prune, lookback, increments, resume)
    export = Export(runtime.connect(lane="bulk"), subject, options, runtime.clock, runtime.progress)
    if path is None:
        summary = export.to_stream(runtime.streams.write_out)
        runtime.messages.note(f"exported {counted(summary.rows, 'record')}")
    else:
        summary = export.to_file(path, replace=True)
        runtime.done(summary.to_document(), f"exported {counted(summary.rows, 'record')} to {path}")
    for flag in summary.flags:
        runtime.messages.warn(WARNINGS[flag])


def _chosen_format(runtime: Runtime, object_name: str, path: Path | None, format: str | None) -> str:
    """The format of the export. Raises UsageError when it is not clear, or when an option would change nothing."""
    from crmctl.bulk.export.formats import check_libraries, export_format
    from crmctl.bulk.usecases.export import ExportSummary

    asked = _asked_format(runtime) if path is None else None
    if format is not None and asked not in (None, format):
        raise UsageError(f"--format {format} and --output {asked} exclude each other", hint="leave one of them out")
    chosen = export_format(path.name if path else None, format or asked)
    check_libraries(chosen)
    if runtime.flags.get("excel_safe") and chosen not in ("csv", "tsv"):
        raise UsageError(f"--excel-safe is for csv and tsv, not {chosen}", hint="leave it out, or --format csv")
    if path is None and runtime.flags.get("query"):
        raise UsageError(
            "--query is not for records that an export writes to stdout",
            hint=f"crmctl records list {object_name} --all --query ..., or --filter and --fields here",
        )
    if path is not None and runtime.flags.get("query"):
        example = ExportSummary(object_name, chosen, 0, 0, 0, 0.0, False, "", (), path, path, "")
        runtime.emitter.check_result(example.to_document())
    return chosen


def _layout(runtime: Runtime, object_name: str, format: str, names: list[str] | None) -> Layout:
    """What is written of every record: the named fields, else all. Raises UsageError for an unknown field."""
    from crmctl.bulk.export.formats import Layout
    from crmctl.output.selection import choose_fields
    from crmctl.output.views import record_view

    attributes = runtime.directory.attributes(object_name)
    fields = choose_fields(names, record_view(attributes)) if names is not None else None
    return Layout(format, attributes, excel_safe=bool(runtime.flags.get("excel_safe")), fields=fields)


WARNINGS = {
    "unstable_ties": "records of one creation time came in another order every time and changed meanwhile: one of them may be missing",
    "unsorted": "the service does not sort by creation time; the export was read as one group",
    "updates_unseen": "the service does not sort by time of change: changes made during the export may be missing",
    "still_changing": "records kept changing until the end; each is as new as the last pass over the changes",
}


def _increments(runtime: Runtime, subject: Subject, conditions: list[Condition], path: Path | None) -> Increments:
    from crmctl.bulk.export.increments import Increments
    from crmctl.models.filters import format_condition

    identity = {
        "profile": runtime.settings.profile.value,
        "origin": subject.origin,
        "object": subject.object_id,
        "filters": [format_condition(condition) for condition in conditions],
        "file": str(path.resolve()) if path is not None else None,
    }
    return Increments(runtime.paths.state, identity)


def _asked_format(runtime: Runtime) -> str | None:
    """The format --output asks for, when it is one of an export. Raises UsageError for one that is not."""
    asked = runtime.flags.get("output") or ("json" if runtime.flags.get("json") else None)
    if asked in ("table", "yaml", "ids"):
        raise UsageError(f"an export is jsonl, csv, tsv or json, not {asked}", hint=f"crmctl records list --all -o {asked}")
    return asked
