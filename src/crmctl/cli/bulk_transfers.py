"""`bulk inspect`: the use case is called and its outcome shown."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from crmctl.cli.bulk_context import RuntimeContext
from crmctl.cli.counted_words import counted

if TYPE_CHECKING:
    from crmctl.bulk.usecases.inspect_file import InspectRequest
    from crmctl.cli.runtime import Runtime


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
    if report.duplicates is not None:
        found = report.duplicates
        first = "; the first: lines " + ", ".join(map(str, found.examples[0]["lines"])) if found.examples else ""
        by = " or ".join(found.rules)
        runtime.messages.note(f"by {by}: {counted(found.rows, 'duplicate')} in {counted(found.groups, 'group')}{first}")
    if request.object is not None and report.map_arguments:
        pairs = " ".join(f"--map {shlex.quote(pair)}" for pair in report.map_arguments)
        runtime.messages.hint(f"crmctl bulk import {request.object} {shlex.quote(file)} {pairs}")
