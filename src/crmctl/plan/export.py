"""Export records: gather them on disk until they are complete, then write a stream or replace a file in one step.

An unfinished file export keeps its records in a `.resume` file next to the target, and the same command continues from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

from crmctl.bulk_context import BulkContext, showing
from crmctl.errors import CrmctlError, InterruptedByUser, UsageError
from crmctl.files.export_formats import Layout, Wires, check_libraries, export_format, texts, write_file
from crmctl.files.mapping import schema_digest
from crmctl.files.whole_files import check_place, is_special, target_of, whole_file
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.field_paths import Path as FieldPath
from crmctl.models.resources import Record, document_of
from crmctl.plan.import_plan import file_digest
from crmctl.read.export_passes import Gathering, GatherState, Increments, Staging, remove_staging, reopen_staging
from crmctl.values.filters import Condition, format_condition
from crmctl.values.moments import to_timestamp
from crmctl.version import __version__


@frozen
class Subject:
    """The exported object and its service; `schema` is a digest of its attributes."""

    object: str
    object_id: str
    origin: str
    schema: str | None = None


def describe(path: Path, subject: Subject, layout: Layout, state: GatherState, rows: int, request: dict[str, Any]) -> dict[str, Any]:
    sha256, size = file_digest(path, str(path))
    return {
        "file": path.name,
        "object": subject.object,
        "objectId": subject.object_id,
        "origin": subject.origin,
        "format": layout.format,
        "columns": layout.columns,
        "excelSafe": layout.excel_safe,
        "rows": rows,
        "bytes": size,
        "sha256": sha256,
        "filters": request["filters"],
        "changedSince": _moment(request["since"]),
        "startedAt": _moment(state.started),
        "finishedAt": _moment(state.statistics.date or state.as_of),
        "consistentAsOf": _moment(state.as_of),
        "pruned": state.pruned if request["prune"] else None,
        "flags": state.flags,
        "requests": state.statistics.requests,
        "passes": state.passes,
        "schema": subject.schema,
        "crmctl": __version__,
    }


def write_manifest(path: Path, document: dict[str, Any]) -> Path:
    place = path.with_name(path.name + ".manifest.json")
    with whole_file(place) as stream:
        stream.write(jsontext.dumps(document, indent=2) + "\n")
    return place


def _moment(micros: int | None) -> str | None:
    return None if micros is None else to_timestamp(micros)


@frozen
class Further:
    """Local processing of gathered records.

    `admits` evaluates conditions the service does not support, and `texts` are those conditions as text. `expand` receives the number of
    records and adds fields of linked records.
    """

    texts: Sequence[str] = ()
    admits: Callable[[Record], bool] | None = None
    expand: Callable[[int, Iterable[Mapping[str, Any]]], Iterable[Mapping[str, Any]]] | None = None

    @property
    def identity(self) -> dict[str, Any]:
        return {"decided": list(self.texts)} if self.admits is not None else {}


@frozen
class ExportSummary:
    """The result of an export. `repeated` counts records received again because pages overlap; the file contains each record once."""

    object: str
    format: str
    rows: int
    requests: int
    repeated: int
    elapsed: float
    resumed: bool
    consistent_as_of: str
    flags: Sequence[str]
    file: Path | None = None
    manifest: Path | None = None
    sha256: str | None = None

    def to_document(self) -> dict[str, Any]:
        names = "object format rows requests repeated elapsed_seconds resumed consistent_as_of flags file manifest sha256"
        return document_of(self, names, elapsedSeconds=round(self.elapsed, 3), flags=list(self.flags))


@frozen(kw_only=True)
class ExportRequest:
    """A request to export the records that meet all conditions.

    `path` is the file, or None for a stream. `shape`, for csv, tsv and xlsx: parts of values in `columns`, or in one cell of `json`.
    `fields` maps names to paths in a record; None exports all fields. `since_last` limits the export to records changed since the last
    such run.
    """

    object: str
    path: Path | None = None
    format: str | None = None
    conditions: Sequence[Condition] = ()
    fields: Mapping[str, FieldPath] | None = None
    excel_safe: bool = False
    shape: str = "columns"
    prune: bool = False
    since_last: bool = False
    restart: bool = False
    replace: bool = False
    further: Further = field(default_factory=Further)

    def chosen_format(self) -> str:
        """Return the requested format, else the one of the file name, else jsonl. Raises UsageError if it cannot be written."""
        chosen = export_format(self.path.name if self.path else None, self.format)
        check_libraries(chosen)
        if self.excel_safe and chosen not in ("csv", "tsv"):
            raise UsageError(f"--excel-safe is for csv and tsv, not {chosen}", hint="leave it out, or --format csv")
        return chosen

    def check(self) -> None:
        """Raise UsageError for options that exclude each other."""
        if self.prune and self.since_last:
            raise UsageError("--since-last gives changes, which say nothing of deletions", hint="leave --prune-deleted out")
        if self.restart and self.path is None:
            raise UsageError("only an export into a file can be continued", hint="-O FILE")


def export(context: BulkContext, request: ExportRequest, write: Callable[[str], object] = lambda _: None) -> ExportSummary:
    """Write the records to the requested file, or pass them to `write` once all are read. Raises UsageError and reading errors."""
    request.check()
    chosen = request.chosen_format()

    def export_object(object_id: str) -> ExportSummary:
        attributes = context.directory.attributes(request.object)
        layout = Layout(chosen, attributes, request.excel_safe, request.fields, is_spread=request.shape != "json")
        subject = Subject(request.object, object_id, context.origin, schema_digest(layout.attributes))
        increments = _increments(context, subject, request) if request.since_last else None
        run = Export(context, subject, layout, request, increments)
        return run.to_stream(write) if request.path is None else run.to_file(request.path, replace=request.replace)

    return context.directory.with_object(request.object, export_object)


def example_export(object_name: str, path: Path) -> dict[str, Any]:
    return ExportSummary(object_name, "", 0, 0, 0, 0.0, False, "", (), path, path, "").to_document()


def _increments(context: BulkContext, subject: Subject, request: ExportRequest) -> Increments:
    identity = {
        "profile": context.profile,
        "origin": subject.origin,
        "object": subject.object_id,
        "filters": [format_condition(condition) for condition in request.conditions],
        "file": str(target_of(request.path)) if request.path is not None else None,
        **request.further.identity,
    }
    return Increments(context.state, identity)


class Export:
    """The export of one object. `increments` limits it to records that changed since the last run."""

    def __init__(
        self, context: BulkContext, subject: Subject, layout: Layout, request: ExportRequest, increments: Increments | None = None
    ) -> None:
        self._lister = context.service
        self._subject = subject
        self._layout = layout
        self._asked = request
        self._increments = increments
        self._clock = context.clock
        self._progress = context.listener.progress
        self._started = self._clock.monotonic()
        self._mark = increments.mark if increments is not None else None

    def to_stream(self, write: Callable[[str], object]) -> ExportSummary:
        """Pass every record to `write` once all are read. Raises reading errors before anything is written."""

        def write_all(layout: Layout, wires: Wires) -> None:
            for text in texts(layout, wires()):
                write(text)

        return self._at_once(write_all)

    def to_file(self, path: Path, *, replace: bool = False) -> ExportSummary:
        """Write a complete file and its manifest. An existing file is replaced in one step.

        Raises UsageError for an existing file without `replace` and for a file that cannot be written. Also raises reading errors; the same
        call then continues the export.
        """
        if path.is_file() and not replace:
            raise UsageError(f"{path} exists", hint="--yes replaces it", code="file_exists")
        if is_special(path):
            return self._at_once(partial(write_file, path), file=path)
        check_place(path)
        place = resume_path(path)
        staging, resumed = reopen_staging(place, self._request, self._clock, resumes=not self._asked.restart)
        if resumed := resumed and staging.noted("gathering") is not None:
            self._progress.note(f"going on after {len(staging):,} records that were read before; --restart begins anew")
        with staging:
            try:
                state = self._gather(staging)
                wires = self._wires(staging)
                layout = self._layout.spread_over(wires())
                write_file(path, layout, wires)
                document = describe(path, self._subject, layout, state, len(staging), self._request)
                manifest = write_manifest(path, document)
                summary = self._summary(staging, state, resumed=resumed, file=path, manifest=manifest, sha256=document["sha256"])
                self._remember(staging, state)
            except (CrmctlError, KeyboardInterrupt) as error:
                self._leave(staging, place, error)
                raise
        place.unlink()
        return summary

    def _at_once(self, write: Callable[[Layout, Wires], None], **file: Any) -> ExportSummary:
        """Write to a place where an interrupted export leaves nothing to continue."""
        with Staging() as staging:
            state = self._gather(staging)
            wires = self._wires(staging)
            write(self._layout.spread_over(wires()), wires)
            self._remember(staging, state)
            return self._summary(staging, state, resumed=False, **file)

    @property
    def _request(self) -> dict[str, Any]:
        """The settings that determine which records are gathered."""
        return {
            "origin": self._subject.origin,
            "object": self._subject.object_id,
            "filters": [format_condition(condition) for condition in self._asked.conditions],
            "prune": self._asked.prune,
            "since": self._mark.since if self._mark is not None else None,
            "run": self._increments.run if self._increments is not None else None,
            **self._asked.further.identity,
        }

    def _gather(self, staging: Staging) -> GatherState:
        with showing(self._progress, "exporting") as progress:
            asked, staged = self._asked, (self._lister, self._subject.object_id, staging, self._clock, progress)
            state = Gathering(*staged, asked.conditions, asked.prune, self._mark).run()
        admits = asked.further.admits
        if admits is not None:
            staging.keep_only(lambda wire: admits(Record.parse(jsontext.loads(wire))))
        if self._increments is not None:
            self._increments.drop_delivered(staging)
        return state

    def _wires(self, staging: Staging) -> Wires:
        """Return the function that yields the records to write."""
        expand = self._asked.further.expand
        if expand is None:
            return staging.wires
        return lambda: map(jsontext.dumps, expand(len(staging), map(jsontext.loads, staging.wires())))

    def _remember(self, staging: Staging, state: GatherState) -> None:
        if self._increments is not None:
            self._increments.remember(staging, state)

    def _leave(self, staging: Staging, place: Path, error: BaseException) -> None:
        """Keep the records read so far and mention them in the error's hint. A staging file without records is deleted."""
        count = len(staging)
        if not count:
            staging.close()
            remove_staging(place)
            return
        hint = f"the same command goes on after the {count:,} records that were read"
        if isinstance(error, KeyboardInterrupt):
            raise InterruptedByUser("interrupted", hint=hint) from error
        if isinstance(error, CrmctlError):
            error.hint = f"{error.hint}; {hint}" if error.hint else hint

    def _summary(self, staging: Staging, state: GatherState, *, resumed: bool, **file: Any) -> ExportSummary:
        rows = len(staging)
        return ExportSummary(
            object=self._subject.object,
            format=self._layout.format,
            rows=rows,
            requests=state.statistics.requests,
            repeated=max(0, sum(reading["records"] for reading in state.passes) - rows),
            elapsed=self._clock.monotonic() - self._started,
            resumed=resumed,
            consistent_as_of=to_timestamp(state.as_of),
            flags=state.flags,
            **file,
        )


def resume_path(path: Path) -> Path:
    target = target_of(path)
    return target.with_name(target.name + ".resume")
