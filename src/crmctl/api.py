"""The Python API: `Client` and the records and bulk work behind it."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self, TypeAlias, overload

from crmctl.bulk_context import Listener
from crmctl.client.crm import Crm, connect
from crmctl.client.directory import Directory
from crmctl.client.issued_keys import find_key
from crmctl.client.query.clauses import FilterReader
from crmctl.client.query.record_filter import Admits, ListOrder, QueryContext
from crmctl.client.query.record_query import RecordQuery
from crmctl.clock import Clock, SystemClock
from crmctl.config.credentials import Credential, check_key
from crmctl.config.settings import Paths, Settings, load_settings
from crmctl.errors import UsageError
from crmctl.models.findings import Finding
from crmctl.models.resources import Record
from crmctl.values.filters import Condition

if TYPE_CHECKING:
    from crmctl.plan.changes import UpdatePreview
    from crmctl.plan.deletions import Deletion
    from crmctl.plan.dry_run import ImportPreview
    from crmctl.plan.export import ExportSummary
    from crmctl.plan.inspect_file import InspectReport
    from crmctl.plan.requests import ImportRequest
    from crmctl.plan.results import ImportResult
    from crmctl.plan.undo import Undo
    from crmctl.plan.undo_deletions import Recreation
    from crmctl.plan.unmerge import Separation
    from crmctl.write.jobs import JobInfo

LOG = logging.getLogger("crmctl")


class _NoProgress:
    def start(self, label: str, total: int | None = None, per_request: int = 0, /) -> None:
        LOG.debug("%s", label)

    def advance(self, count: int = 1, /) -> None:
        pass

    def tally(self, counts: Mapping[str, int], /) -> None:
        pass

    def note(self, text: str) -> None:
        LOG.info("%s", text)

    def finish(self) -> None:
        pass


class LogListener:
    """Send notes to the logger `crmctl`; refuse to replace anything. Findings are in the results."""

    def __init__(self) -> None:
        self.progress = _NoProgress()

    def note(self, text: str) -> None:
        LOG.info("%s", text)

    def report(self, finding: Finding) -> None:
        LOG.debug("%s", finding.to_text())

    def confirm(self, question: str) -> None:
        raise UsageError(f"{question}? Nobody was asked", hint="give a listener whose confirm agrees", code="not_confirmed")


class ClientContext:
    """The `BulkContext` of a client. `given` are profile, base URL and key; None leaves each to the environment and the files."""

    def __init__(self, environ: Mapping[str, str], overrides: tuple[str | None, str | None, str | None], listener: Listener) -> None:
        self._environ = environ
        self._profile, self._base_url, self._key = overrides
        self.listener = listener
        self.clock: Clock = SystemClock()
        self._open: list[Crm] = []

    @cached_property
    def paths(self) -> Paths:
        return Paths.from_environment(self._environ)

    @cached_property
    def settings(self) -> Settings:
        return load_settings(self._environ, {"profile": self._profile, "base_url": self._base_url}, self.paths)

    @cached_property
    def service(self) -> Crm:
        return self._connect("bulk")

    @cached_property
    def crm(self) -> Crm:
        return self._connect("interactive")

    @cached_property
    def directory(self) -> Directory:
        return Directory(self.crm, self.paths.cache, self.settings.profile.value, self.origin, self.clock)

    @property
    def origin(self) -> str:
        return self.settings.require_origin()

    @property
    def profile(self) -> str:
        return self.settings.profile.value

    @property
    def state(self) -> Path:
        return self.paths.state

    @property
    def stdin(self) -> BinaryIO:
        buffer: BinaryIO = getattr(sys.stdin, "buffer", None) or io.BytesIO()
        return buffer

    def guard_write(self) -> None:
        """Check the settings before the first request of every write. Raises UsageError if they forbid writes.

        Summaries count requests from here on.
        """
        settings = self.settings
        for crm in self._open:
            crm.session.take_requests()
        if settings.read_only.value:
            source = settings.read_only.source
            raise UsageError(f"writes are refused: read-only is set ({source})", hint=f"unset {source} to write", code="read_only")
        if settings.protected.value:
            name = settings.profile.value
            raise UsageError(
                f"the profile {name!r} is protected: writes need its name typed on a terminal",
                hint=f"lift the protection: crmctl config unset protected --profile {name}",
                code="protected_profile",
            )

    def close(self) -> None:
        for name in ("service", "crm", "directory"):
            self.__dict__.pop(name, None)
        while self._open:
            self._open.pop().session.close()

    @cached_property
    def _credential(self) -> Credential:
        key = check_key(self._key) if self._key is not None else None
        return Credential(key, "api_key", self.origin) if key else find_key(self.settings, self._environ, self.paths)

    @property
    def key(self) -> str:
        return self._credential.key

    def _connect(self, lane: str) -> Crm:
        settings, credential = self.settings, self._credential
        for warning in settings.warnings if not self._open else ():
            LOG.warning("%s", warning)
        crm = connect(settings, credential, self.paths, clock=self.clock, note=self.listener.note, lane=lane)
        self._open.append(crm)
        return crm


Filter: TypeAlias = str | Condition | Sequence[str | Condition]
"""One condition, or several that must all hold, in the syntax of `crmctl help filters`: `email endsWith @acme.com`, `amount>=1000`."""


class Records:
    """The records of one object. Methods raise what requests raise, and NotFoundError for an unknown object or record."""

    def __init__(self, context: ClientContext, object_name: str) -> None:
        self._context = context
        self._object = object_name

    def list(
        self,
        filter: Filter = (),
        *,
        limit: int | None = None,
        sort: Literal["created_at", "updated_at"] | None = None,
        order: Literal["asc", "desc"] | None = None,
    ) -> Iterator[Record]:
        """Yield every record that matches the filter, newest first by default, at most `limit`; pages are read on demand.

        If others change the list meanwhile, a record may repeat or be missing, and the listener gets a note; `bulk.export` is complete.
        Raises UsageError for an invalid filter.
        """
        if limit is not None and limit < 1:
            raise UsageError(f"limit must be at least 1, not {limit}")
        listener = self._context.listener
        pages = as_query(self._context, self._object, filter, ListOrder(sort, order)).pages(limit, 0, listener.note)
        return (record for page in pages for record in page.items)

    def count(self, filter: Filter = ()) -> int:
        """Return how many records match the filter."""
        return as_query(self._context, self._object, filter).count()

    def get(self, record_id: str) -> Record:
        context = self._context
        return context.directory.with_object(self._object, lambda target: context.crm.get_record(target, record_id))

    def create(self, data: Mapping[str, Any]) -> Record:
        """Create a record from JSON values by attribute slug. Raises RejectedError if the service refuses it."""
        context = self._context
        context.guard_write()
        return context.directory.with_object(self._object, lambda target: context.crm.create_record(target, data))

    def update(self, record_id: str, data: Mapping[str, Any]) -> Record:
        """Change these attributes; None clears one, and a composite value is replaced as a whole."""
        context = self._context
        context.guard_write()
        return context.directory.with_object(self._object, lambda target: context.crm.update_record(target, record_id, data))

    def delete(self, record_id: str) -> None:
        context = self._context
        context.guard_write()
        context.directory.with_object(self._object, lambda target: context.crm.delete_record(target, record_id))


def as_query(context: ClientContext, object_name: str, filter: Filter, order: ListOrder | None = None) -> RecordQuery:
    """Parse a filter. Raises UsageError, and what looking up other records raises."""
    filters = [filter] if isinstance(filter, str | Condition) else filter
    note = context.listener.note
    query_context = QueryContext(context.crm, context.directory, context.clock.now(), warn=note, tell=note)
    return RecordQuery(query_context, object_name, FilterReader(query_context, object_name).read(filters), order)


def as_conditions(context: ClientContext, object_name: str, filter: Filter) -> tuple[tuple[Condition, ...], Admits | None]:
    """Return the conditions to send, and the test for the rest, for callers that read the list themselves. Raises UsageError."""
    return as_query(context, object_name, filter).one_list() if filter else ((), None)


Row: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = str | Path | Iterable[Row]
"""A file in any format of `crmctl bulk import`, or rows by column name, which are kept on disk during the import."""

Ids: TypeAlias = Iterable[str] | None
Pairs: TypeAlias = Mapping[str, str] | Sequence[str]
"""`{"COLUMN": "SLUG"}`, or `["COLUMN=SLUG"]` as on the command line."""


class Bulk:
    """Bulk work on many records. Methods raise CrmctlError for invalid options, unreadable files and unknown jobs.

    An interrupt (Ctrl-C, SIGTERM) stops the work safely and is the error of the result.
    """

    def __init__(self, context: ClientContext) -> None:
        self._context = context

    @overload
    def import_records(self, object_name: str, rows: Rows, *, dry_run: Literal[True], **options: Any) -> ImportPreview: ...
    @overload
    def import_records(self, object_name: str, rows: Rows, *, dry_run: Literal[False] = False, **options: Any) -> ImportResult: ...
    def import_records(self, object_name: str, rows: Rows, *, dry_run: bool = False, **options: Any) -> ImportPreview | ImportResult:
        """Import rows, each written at most once; the result has the summary, the findings and the error, if any.

        The options are those of `crmctl bulk import`, named like the fields of `ImportRequest`; `key` is one attribute or several, `map`,
        `set` and `references` are pairs: `map={"Work Email": "email"}`. With `dry_run` everything is read and checked, and nothing is
        written.
        """
        from crmctl.plan.import_records import import_records

        request = _import_request(object_name, rows, options)
        if dry_run or request.plan_file is not None:
            from crmctl.plan.dry_run import preview_import

            return preview_import(self._context, request)
        self._context.guard_write()
        return import_records(self._context, request)

    def apply(self, plan: str | Path, **options: Any) -> ImportResult:
        """Apply exactly a plan that `import_records(..., plan_file=...)` made, or nothing. Options: `ApplyRequest`."""
        from crmctl.plan.import_records import ApplyRequest, apply_plan

        self._context.guard_write()
        return apply_plan(self._context, ApplyRequest(file=str(plan), **_checked(ApplyRequest, options)))

    def resume(self, job: str | None = None, **options: Any) -> ImportResult:
        """Resume a job: the named one, else the only resumable one; a finished one returns its result again. Options: `ResumeRequest`."""
        from crmctl.plan.resume import ResumeRequest, resume

        self._context.guard_write()
        return resume(self._context, ResumeRequest(job=job, **_checked(ResumeRequest, options)))

    def undo(self, job: str, *, dry_run: bool = False, include_changed: bool = False) -> Undo | Recreation | Separation:
        """Undo an import, update, deletion or merge; with `dry_run` only report what that would change.

        `include_changed` also undoes records that changed since. The result names what is left, and why.
        """
        from crmctl.plan.undo import UndoRequest, undo

        if not dry_run:
            self._context.guard_write()
        return undo(self._context, UndoRequest(job, dry_run, include_changed=include_changed), lambda _: None)

    @overload
    def update(
        self, object_name: str, set: Pairs, ids: Ids = None, *, filter: Filter = (), dry_run: Literal[True], **options: Any
    ) -> UpdatePreview: ...
    @overload
    def update(
        self, object_name: str, set: Pairs, ids: Ids = None, *, filter: Filter = (), dry_run: Literal[False] = False, **options: Any
    ) -> ImportResult: ...
    def update(
        self, object_name: str, set: Pairs, ids: Ids = None, *, filter: Filter = (), dry_run: bool = False, **options: Any
    ) -> UpdatePreview | ImportResult:
        """Give records, by id or filter, the same values without confirmation: `set={"status": "contacted", "address.city": "Rome"}`.

        Other parts stay as they are. With `dry_run` everything is read and compared, and nothing is written. Options: `UpdateRequest`, for
        example `max_changes="100"`; `approve` sees the changes and raises to stop them.
        """
        from crmctl.plan.changes import Selection, UpdateRequest, agree, preview_update, update

        approve = options.pop("approve", agree)
        conditions, admits = as_conditions(self._context, object_name, filter)
        selection = Selection(conditions=conditions, ids=ids, admits=admits)
        request = UpdateRequest(object=object_name, selection=selection, set_values=_pairs(set), **_checked(UpdateRequest, options))
        if dry_run:
            return preview_update(self._context, request)
        self._context.guard_write()
        return update(self._context, request, approve)

    def delete(self, object_name: str, ids: Ids = None, *, filter: Filter = (), dry_run: bool = False, **options: Any) -> Deletion:
        """Delete records by id or filter without confirmation; with `dry_run` only count them.

        The file `result.summary.backup` keeps their data, and `undo` creates them again; `backup` names another file, `backup=False` keeps
        none. Raises UsageError for neither ids nor filter, or both.
        """
        from crmctl.plan.changes import Selection, agree
        from crmctl.plan.deletions import DeleteRequest, delete

        if not dry_run:
            self._context.guard_write()
        conditions, admits = as_conditions(self._context, object_name, filter)
        selection = Selection(conditions=conditions, ids=ids, verb="delete", admits=admits)
        approve = options.pop("approve", agree)
        request = DeleteRequest(object_name, selection, dry_run=dry_run, **_checked(DeleteRequest, options))
        return delete(self._context, request, approve)

    def export(self, object_name: str, path: str | Path, *, filter: Filter = (), **options: Any) -> ExportSummary:
        """Write all records that match the filter into a file, whole or not at all. Options: `ExportRequest`, for example `format="csv"`;
        only `replace=True` replaces an existing file."""
        from crmctl.plan.export import ExportRequest, Further, export

        conditions, admits = as_conditions(self._context, object_name, filter)
        values = _checked(ExportRequest, options)
        further = Further((str(filter),), admits)
        request = ExportRequest(object=object_name, path=Path(path), conditions=conditions, further=further, **values)
        return export(self._context, request)

    def inspect(self, path: str | Path, object_name: str | None = None, **options: Any) -> InspectReport:
        """Report how a file is read, what its columns hold, and which attributes they would fill. Options: `InspectRequest`."""
        from crmctl.plan.inspect_file import InspectRequest, inspect_file

        request = InspectRequest(file=str(path), object=object_name, **_checked(InspectRequest, options))
        return inspect_file(self._context, request)

    def jobs(self) -> Sequence[JobInfo]:
        """Return the bulk jobs of this machine, newest first."""
        from crmctl.plan.requests import store_of

        return store_of(self._context).list()


def _import_request(object_name: str, rows: Rows, options: Mapping[str, Any]) -> ImportRequest:
    from crmctl.plan.requests import ImportRequest

    values = dict(options)
    key = values.pop("key", ())
    values.setdefault("keys", (key,) if isinstance(key, str) else tuple(key))
    for short, name in (("map", "map_pairs"), ("set", "set_values"), ("references", "references")):
        if short in values:
            values[name] = _pairs(values.pop(short))
    checked = _checked(ImportRequest, values)
    if isinstance(rows, str | Path):
        return ImportRequest(object=object_name, file=str(rows), **checked)
    return ImportRequest(object=object_name, file="rows", rows=rows, **checked)


def _pairs(values: Pairs) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in values.items()) if isinstance(values, Mapping) else tuple(values)


def _checked(request: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Raise TypeError, as Python does, for an unknown option."""
    names = {field.name for field in fields(request)}
    unknown = [name for name in options if name not in names]
    if unknown:
        raise TypeError(f"{request.__name__} has no option {', '.join(unknown)}; it has {', '.join(sorted(names))}")
    return dict(options)


class Client:
    """A client of one service, for use as a context manager or with `close`.

    Omitted arguments come from CRMCTL_PROFILE, CRMCTL_BASE_URL, CRMCTL_API_KEY, config.toml and stored keys, as for the commands.
    `listener` gets notes, findings and progress of bulk work; by default notes go to the logger `crmctl`. `environ` replaces the
    environment. The first call reads files and sends requests. Calls raise the errors of `crmctl.errors`; ConfigError without an address,
    DeniedError without a key.
    """

    def __init__(
        self,
        profile: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        listener: Listener | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        variables = dict(os.environ if environ is None else environ)
        self._context = ClientContext(variables, (profile, base_url, api_key), listener or LogListener())

    @property
    def bulk(self) -> Bulk:
        """Imports, exports, changes of many records, and their jobs."""
        return Bulk(self._context)

    def records(self, object_name: str) -> Records:
        """The records of one object, by slug or id."""
        return Records(self._context, object_name)

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        self._context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
