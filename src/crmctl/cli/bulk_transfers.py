"""`bulk delete` and `bulk inspect`: from options to crmctl.bulk and its result on the screen."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from crmctl.cli.bulk_runs import binary_stdin, resolve_target
from crmctl.cli.counted_words import counted
from crmctl.errors import PartialError

if TYPE_CHECKING:
    from crmctl.bulk.read.seen_ids import SeenIds
    from crmctl.bulk.send.deletion import DeleteSummary
    from crmctl.bulk.sources.rows import SourceOptions
    from crmctl.cli.runtime import Runtime


def delete(runtime: Runtime, object_name: str, ids_file: str | None, filters: list[str] | None) -> None:
    """Delete what a file or conditions name. Raises UsageError without --yes where nobody can be asked, PartialError, or what ended it."""
    from crmctl.bulk.read.seen_ids import SeenIds
    from crmctl.bulk.send.deletion import DeletedObject, DeleteSummary, delete_records

    if not runtime.dry_run:
        runtime.emitter.check_result(DeleteSummary(object_name).to_document())
    if not runtime.prompter.can_ask or ids_file == "-":
        runtime.confirm(f"Delete records of {object_name}")
    with SeenIds() as ids:
        object_id = _gather(runtime, object_name, ids_file, filters, ids)
        if runtime.dry_run:
            _preview(runtime, object_id, ids)
            return
        if len(ids):
            runtime.confirm(f"Delete {counted(len(ids), 'record')} of {object_name}")
        target = DeletedObject(runtime.connect(lane="bulk"), object_name, object_id, were_there=ids_file is None)
        summary = delete_records(target, ids, runtime.clock, runtime.progress)
    runtime.done(summary.to_document(), f"deleted {counted(summary.deleted, 'record')} of {object_name}")
    _raise_for(summary)


def _gather(runtime: Runtime, object_name: str, ids_file: str | None, filters: list[str] | None, ids: SeenIds) -> str:
    """Fill `ids`; returns the object's id."""
    from crmctl.bulk.journal.jobs import JobStore
    from crmctl.bulk.run.job_start import temporary_input
    from crmctl.bulk.send.deletion import collect_ids, read_ids
    from crmctl.cli.targets import parse_filters

    if ids_file is not None:
        with temporary_input(JobStore(runtime.paths.state, runtime.clock), ids_file, binary_stdin(runtime)) as path:
            name = "stdin" if ids_file == "-" else ids_file
            read_ids(path, name, ids)
        if not len(ids):
            runtime.messages.note(f"{name} holds no ids: nothing to delete")
        return runtime.directory.object_id(object_name)
    conditions = parse_filters(runtime, object_name, filters)
    object_id = runtime.directory.object_id(object_name)
    collect_ids(runtime.connect(lane="bulk"), object_id, conditions, ids, runtime.progress)
    return object_id


def _preview(runtime: Runtime, object_id: str, ids: SeenIds) -> None:
    """The first request in full, and how many there would be."""
    from crmctl.models.records import BULK_LIMIT

    path = f"/api/v1/objects/{object_id}/records/bulk"
    body = {"ids": list(next(iter(ids.chunks(BULK_LIMIT)), []))}
    requests = -(-len(ids) // BULK_LIMIT)
    document = {"dryRun": True, "method": "DELETE", "path": path, "body": body, "records": len(ids), "requests": requests}
    runtime.emitter.emit_result(
        document, text=f"DELETE {path}\n{counted(len(ids), 'record')} in {counted(requests, 'request')}; nothing was sent"
    )


def _raise_for(summary: DeleteSummary) -> None:
    if summary.error is not None:
        raise summary.error
    left = {"failed": summary.failed, "in doubt": summary.in_doubt, "not sent": summary.unsent}
    if any(left.values()):
        said = ", ".join(f"{count:,} {what}" for what, count in left.items() if count)
        raise PartialError(f"not every record was deleted: {said}")


def inspect_input(runtime: Runtime, file: str, object_name: str | None, mode: str, options: SourceOptions) -> None:
    """Read the file once and report on it: a table of its columns for a person, everything for a program."""
    from crmctl.bulk.journal.jobs import JobStore
    from crmctl.bulk.rows.mapping import Mode
    from crmctl.bulk.run.job_start import temporary_input
    from crmctl.bulk.sources.open_source import open_source
    from crmctl.bulk.usecases.inspect_file import inspect
    from crmctl.output.views import generic_view

    attributes = resolve_target(runtime, object_name)[1] if object_name is not None else None
    with temporary_input(JobStore(runtime.paths.state, runtime.clock), file, binary_stdin(runtime)) as path:
        report = inspect(open_source(path, options, name=file), attributes, mode=Mode(mode))
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
    if object_name is not None and report.map_arguments:
        pairs = " ".join(f"--map {shlex.quote(pair)}" for pair in report.map_arguments)
        runtime.messages.hint(f"crmctl bulk import {object_name} {shlex.quote(file)} {pairs}")
