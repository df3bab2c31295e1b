"""`bulk export`: the use case is called and its outcome shown."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from crmctl.cli.bulk_context import RuntimeContext
from crmctl.cli.counted_words import counted
from crmctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from crmctl.bulk.usecases.export import ExportRequest, Further
    from crmctl.cli.runtime import Runtime


def export_records(runtime: Runtime, request: ExportRequest, filters: list[str] | None) -> None:
    """Write the records to stdout or into a file. Raises UsageError for an existing file without --yes."""
    from crmctl.bulk.usecases.export import Further, export
    from crmctl.cli.record_queries import one_list

    request.check()
    names = runtime.take_fields()
    request = _with_format(runtime, request)
    if request.path is not None and request.path.exists():
        runtime.confirm(f"Replace {request.path}")
    conditions, admits = one_list(runtime, request.object, filters)
    further = Further(tuple(filters or ()), admits)
    if names is not None:
        request, further = _with_fields(runtime, request, further, names)
    request = replace(request, conditions=conditions, further=further, replace=True)
    summary = export(RuntimeContext(runtime), request, runtime.streams.write_out)
    exported = f"exported {counted(summary.rows, 'record')}"
    if request.path is None:
        runtime.messages.note(exported)
    else:
        runtime.done(summary.to_document(), f"{exported} to {request.path}")
    for flag in summary.flags:
        runtime.messages.warn(WARNINGS[flag])


def _with_format(runtime: Runtime, request: ExportRequest) -> ExportRequest:
    """The request with the format it means. Raises UsageError when that is not clear, or when an option would change nothing."""
    from crmctl.bulk.usecases.export import example_export

    asked = _asked_format(runtime) if request.path is None else None
    if request.format is not None and asked not in (None, request.format):
        raise UsageError(f"--format {request.format} and --output {asked} exclude each other", hint="leave one of them out")
    request = replace(request, format=request.format or asked)
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
    """The place of every wanted field in a record, and how fields of others get there. Raises UsageError for an unknown one."""
    from crmctl.cli.record_queries import query_context
    from crmctl.client.queries.field_lookups import FieldLookups
    from crmctl.output.selection import choose_fields
    from crmctl.output.views import record_view

    attributes = runtime.directory.attributes(request.object)
    lookups = FieldLookups(query_context(runtime), attributes, names)
    fields = choose_fields(names, record_view(attributes))
    if not lookups.slugs:
        return replace(request, fields=fields), further
    if request.format not in ("json", "jsonl"):  # beside what is asked of it the reference itself stays an id
        fields |= {slug: ("data", slug, "id") for slug in lookups.slugs if slug in fields}

    def expand(count: int, wires: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
        lookups.expect(count)
        return lookups.expand_all(wires)

    return replace(request, fields=fields), replace(further, expand=expand)


WARNINGS = {
    "unstable_ties": "records of one creation time came in another order every time and changed meanwhile: one of them may be missing",
    "unsorted": "the service does not sort by creation time; the export was read as one group",
    "updates_unseen": "the service does not sort by time of change: changes made during the export may be missing",
    "still_changing": "records kept changing until the end; each is as new as the last pass over the changes",
}


def _asked_format(runtime: Runtime) -> str | None:
    """The format --output asks for, when it is one of an export. Raises UsageError for one that is not."""
    asked = runtime.flags.get("output") or ("json" if runtime.flags.get("json") else None)
    if asked in ("table", "yaml", "ids"):
        raise UsageError(f"an export is jsonl, csv, tsv or json, not {asked}", hint=f"crmctl records list --all -o {asked}")
    return asked
