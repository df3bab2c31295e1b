"""Many records at once, by the use cases that the commands call too. What happens to rows is in the results, not raised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, overload

from crmctl.api.client_context import ClientContext
from crmctl.api.records import Filter, as_conditions
from crmctl.bulk.journal.jobs import JobInfo
from crmctl.bulk.usecases import apply_plan as applying
from crmctl.bulk.usecases import delete as deleting
from crmctl.bulk.usecases import export as exporting
from crmctl.bulk.usecases import import_records as importing
from crmctl.bulk.usecases import inspect_file as inspecting
from crmctl.bulk.usecases import jobs as listing
from crmctl.bulk.usecases import resume as resuming
from crmctl.bulk.usecases import undo as undoing
from crmctl.bulk.usecases import update as updating
from crmctl.bulk.usecases.apply_plan import ApplyRequest
from crmctl.bulk.usecases.import_preview import ImportPreview, preview_import
from crmctl.bulk.usecases.inspect_file import InspectReport, InspectRequest
from crmctl.bulk.usecases.recreate import Recreation
from crmctl.bulk.usecases.requests import ImportRequest
from crmctl.bulk.usecases.results import ImportResult
from crmctl.bulk.usecases.resume import ResumeRequest
from crmctl.bulk.usecases.selected_records import Selection
from crmctl.bulk.usecases.update import UpdatePreview, UpdateRequest, agree

Row: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = str | Path | Iterable[Row]
"""A file in any format that `crmctl bulk import` reads, or rows by column name, which are kept on disk until the import is over."""

Pairs: TypeAlias = Mapping[str, str] | Sequence[str]
"""`{"COLUMN": "SLUG"}`, or `["COLUMN=SLUG"]` as the option of the command takes it."""


class Bulk:
    """Raises CrmctlError for what keeps work from beginning: options that mean nothing, a file that cannot be read, a job that is not
    there. An interrupt (Ctrl-C, SIGTERM) ends work in order and is the error of the result."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context

    @overload
    def import_records(self, object_name: str, rows: Rows, *, dry_run: Literal[True], **options: Any) -> ImportPreview: ...
    @overload
    def import_records(self, object_name: str, rows: Rows, *, dry_run: Literal[False] = False, **options: Any) -> ImportResult: ...
    def import_records(self, object_name: str, rows: Rows, *, dry_run: bool = False, **options: Any) -> ImportPreview | ImportResult:
        """Import rows, each written once at most; the result has the summary, the findings and the error, if there is one.

        The options are those of `crmctl bulk import`, as the fields of `ImportRequest`; `key` is one attribute or several, `map`, `set` and
        `references` are pairs: `map={"Work Email": "email"}`. With `dry_run` everything is read and checked and nothing is written.
        """
        request = _import_request(object_name, rows, options)
        if dry_run or request.plan_file is not None:
            return preview_import(self._context, request)
        self._context.guard_write()
        return importing.import_records(self._context, request)

    def apply(self, plan: str | Path, **options: Any) -> ImportResult:
        """Do exactly what a plan says that `import_records(..., plan_file=...)` has made, or nothing. Options: `ApplyRequest`."""
        self._context.guard_write()
        return applying.apply_plan(self._context, ApplyRequest(file=str(plan), **_checked(ApplyRequest, options)))

    def resume(self, job: str | None = None, **options: Any) -> ImportResult:
        """Go on with a job: the named one, else the only one that can be; a finished one gives its result again. Options: those of
        `ResumeRequest`."""
        self._context.guard_write()
        return resuming.resume(self._context, ResumeRequest(job=job, **_checked(ResumeRequest, options)))

    def undo(self, job: str, *, dry_run: bool = False) -> undoing.Undo | Recreation:
        """Take back what an import, an update or a deletion did; with `dry_run` only say what that would be. What is left, and why, is in
        the result."""
        if not dry_run:
            self._context.guard_write()
        return undoing.undo(self._context, undoing.UndoRequest(job, dry_run), lambda _: None)

    @overload
    def update(
        self, object_name: str, set: Pairs, ids: Iterable[str] | None = None, *, filter: Filter = (), dry_run: Literal[True], **options: Any
    ) -> UpdatePreview: ...
    @overload
    def update(
        self,
        object_name: str,
        set: Pairs,
        ids: Iterable[str] | None = None,
        *,
        filter: Filter = (),
        dry_run: Literal[False] = False,
        **options: Any,
    ) -> ImportResult: ...
    def update(
        self,
        object_name: str,
        set: Pairs,
        ids: Iterable[str] | None = None,
        *,
        filter: Filter = (),
        dry_run: bool = False,
        **options: Any,
    ) -> UpdatePreview | ImportResult:
        """Give records, by id or by a filter, the same values, without asking: `set={"status": "contacted", "address.city": "Rome"}`.

        Parts that are not named stay as they are. With `dry_run` everything is read and compared, and nothing written. Options: those of
        `UpdateRequest`, for example `max_changes="100"`; `approve` sees what would change, and raises to leave it.
        """
        approve = options.pop("approve", agree)
        conditions, admits = as_conditions(self._context, object_name, filter)
        selection = Selection(conditions=conditions, ids=ids, admits=admits)
        request = UpdateRequest(object=object_name, selection=selection, set_values=_pairs(set), **_checked(UpdateRequest, options))
        if dry_run:
            return updating.preview_update(self._context, request)
        self._context.guard_write()
        return updating.update(self._context, request, approve)

    def delete(
        self, object_name: str, ids: Iterable[str] | None = None, *, filter: Filter = (), dry_run: bool = False, **options: Any
    ) -> deleting.Deletion:
        """Delete records given by id or by a filter, without asking; with `dry_run` only say how many. What they held is in the file
        `result.summary.backup`, and `undo` creates them again; `backup` names another file, `backup=False` keeps none. Raises UsageError
        for neither ids nor filter, or both."""
        if not dry_run:
            self._context.guard_write()
        conditions, admits = as_conditions(self._context, object_name, filter)
        selection = Selection(conditions=conditions, ids=ids, verb="delete", admits=admits)
        approve = options.pop("approve", agree)
        request = deleting.DeleteRequest(object_name, selection, dry_run=dry_run, **_checked(deleting.DeleteRequest, options))
        return deleting.delete(self._context, request, approve)

    def export(self, object_name: str, path: str | Path, *, filter: Filter = (), **options: Any) -> exporting.ExportSummary:
        """Write all records that meet the filter into a file, which appears whole or not at all. Options: `ExportRequest`, for example
        `format="csv"`; an existing file is replaced only with `replace=True`."""
        conditions, admits = as_conditions(self._context, object_name, filter)
        given = _checked(exporting.ExportRequest, options)
        further = exporting.Further((str(filter),), admits)
        request = exporting.ExportRequest(object=object_name, path=Path(path), conditions=conditions, further=further, **given)
        return exporting.export(self._context, request)

    def inspect(self, path: str | Path, object_name: str | None = None, **options: Any) -> InspectReport:
        """How a file is read, what its columns hold, and which attributes they would fill. Options: `InspectRequest`."""
        request = InspectRequest(file=str(path), object=object_name, **_checked(InspectRequest, options))
        return inspecting.inspect_file(self._context, request)

    def jobs(self) -> Sequence[JobInfo]:
        """The bulk jobs of this machine, the newest first."""
        return listing.list_jobs(self._context).jobs


def _import_request(object_name: str, rows: Rows, options: Mapping[str, Any]) -> ImportRequest:
    given = dict(options)
    key = given.pop("key", ())
    given.setdefault("keys", (key,) if isinstance(key, str) else tuple(key))
    for short, name in (("map", "map_pairs"), ("set", "set_values"), ("references", "references")):
        if short in given:
            given[name] = _pairs(given.pop(short))
    checked = _checked(ImportRequest, given)
    if isinstance(rows, str | Path):
        return ImportRequest(object=object_name, file=str(rows), **checked)
    return ImportRequest(object=object_name, file="rows", rows=rows, **checked)


def _pairs(given: Pairs) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in given.items()) if isinstance(given, Mapping) else tuple(given)


def _checked(request: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Raises TypeError, as Python does, for an option that is none."""
    known = {field.name for field in fields(request)}
    unknown = [name for name in options if name not in known]
    if unknown:
        raise TypeError(f"{request.__name__} has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    return dict(options)
