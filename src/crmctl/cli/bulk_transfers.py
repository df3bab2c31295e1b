"""`bulk delete` and `bulk inspect`: the use case is called and its outcome shown."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from crmctl.cli.bulk_context import RuntimeContext
from crmctl.cli.counted_words import counted

if TYPE_CHECKING:
    from crmctl.bulk.usecases.requests import InspectRequest
    from crmctl.cli.runtime import Runtime


def delete_records(runtime: Runtime, object_name: str, ids_file: str | None, filters: list[str] | None) -> None:
    """Delete what a file or conditions name. Raises UsageError without --yes where nobody can be asked, PartialError, or what ended it."""
    from crmctl.bulk.usecases.delete import DeleteRequest, delete, example_deletion
    from crmctl.cli.targets import parse_filters

    if not runtime.dry_run:
        runtime.emitter.check_result(example_deletion(object_name))
    if not runtime.prompter.can_ask or ids_file == "-":
        runtime.confirm(f"Delete records of {object_name}")
    conditions = parse_filters(runtime, object_name, filters)
    request = DeleteRequest(object_name, ids_file, conditions, dry_run=runtime.dry_run)
    done = delete(
        RuntimeContext(runtime), request, lambda plan: runtime.confirm(f"Delete {counted(plan.records, 'record')} of {object_name}")
    )
    document = done.to_document()
    if done.summary is None:
        requests = f"{counted(done.records, 'record')} in {counted(done.requests, 'request')}; nothing was sent"
        runtime.emitter.emit_result(document, text=f"DELETE {document['path']}\n{requests}")
        return
    runtime.done(document, f"deleted {counted(done.summary.deleted, 'record')} of {object_name}")
    done.raise_for_error()


def inspect_input(runtime: Runtime, request: InspectRequest) -> None:
    """Read the file once and report on it: a table of its columns for a person, everything for a program."""
    from crmctl.bulk.usecases.inspect_file import inspect_file
    from crmctl.output.views import generic_view

    report = inspect_file(RuntimeContext(runtime), request)
    file = request.file
    if runtime.output_format != "table":
        runtime.emitter.emit_result(report.to_document())
        return
    dialect = report.dialect
    runtime.messages.note(f"{file}: {dialect.described}, {counted(report.rows, 'row')}, {report.problems:,} unreadable")
    for note in dialect.notes:
        runtime.messages.note(note)
    shown = ("column", "target", "type", "fillRate", "distinct", "samples", "suggestions", "note")
    rows = [{name: document[name] for name in shown} for document in report.column_documents()]
    runtime.emitter.emit_items(rows, generic_view(rows, "columns"))
    if request.object is not None and report.map_arguments:
        pairs = " ".join(f"--map {shlex.quote(pair)}" for pair in report.map_arguments)
        runtime.messages.hint(f"crmctl bulk import {request.object} {shlex.quote(file)} {pairs}")
