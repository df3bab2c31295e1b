"""One export: records are gathered on disk until they are complete, then written as a stream, or a file that appears whole or not at all.

What was gathered for a file lies beside it (`.resume`) until the file is complete: the same export goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crmctl.bulk.atomic_file import is_special
from crmctl.bulk.context import BulkContext
from crmctl.bulk.export.collected_records import Staging
from crmctl.bulk.export.formats import check_libraries, export_format, texts, write_file
from crmctl.bulk.export.increments import Increments
from crmctl.bulk.export.layout import Layout, Wires
from crmctl.bulk.export.manifest import Subject, describe, write_manifest
from crmctl.bulk.export.passes import LOOKBACK, Gathering, GatherOptions, GatherState
from crmctl.bulk.rows.mapping import schema_digest
from crmctl.errors import CrmctlError, InterruptedByUser, UsageError
from crmctl.models import jsontext
from crmctl.models.fieldpaths import Path as FieldPath
from crmctl.models.filters import Condition, format_condition
from crmctl.models.records import Record
from crmctl.models.timestamps import to_timestamp

RESUMED_WITHIN = 24 * 3600.0
"""Seconds after which an interrupted export is gone on with only when that is asked for: what was deleted since would be in the file."""


@dataclass(frozen=True)
class Further:
    """What is done with records once they are there. `admits` decides which of them are meant, where the service alone cannot; `texts` say
    the same for people. `expand` puts fields of others in, given how many records there are."""

    texts: Sequence[str] = ()
    admits: Callable[[Record], bool] | None = None
    expand: Callable[[int, Iterable[Mapping[str, Any]]], Iterable[Mapping[str, Any]]] | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """What of it decides which records an export has."""
        return {"decided": list(self.texts)} if self.admits is not None else {}


@dataclass(frozen=True)
class ExportOptions:
    """`increments`: only what changed since the last run it remembers. `resume`: go on with an interrupted export (True), begin anew
    (False), or go on with a recent one (None)."""

    layout: Layout = field(default_factory=Layout)
    conditions: Sequence[Condition] = ()
    prune: bool = False
    lookback: float = LOOKBACK
    increments: Increments | None = None
    resume: bool | None = None
    further: Further = Further()


@dataclass(frozen=True)
class ExportSummary:
    """What an export did. `repeated` counts records that came more than once because pages overlap; each is in the file once."""

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
        """The JSON form, every key always present."""
        return {
            "object": self.object,
            "format": self.format,
            "rows": self.rows,
            "requests": self.requests,
            "repeated": self.repeated,
            "elapsedSeconds": round(self.elapsed, 3),
            "resumed": self.resumed,
            "consistentAsOf": self.consistent_as_of,
            "flags": list(self.flags),
            "file": str(self.file) if self.file is not None else None,
            "manifest": str(self.manifest) if self.manifest is not None else None,
            "sha256": self.sha256,
        }


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """Records of `object` that meet all conditions. `path`: the file, or None for a stream; `fields`: by name the place of each in a
    record, where not all are wanted. `since_last`: only what changed since the last such run. `lookback` in seconds."""

    object: str
    path: Path | None = None
    format: str | None = None
    conditions: Sequence[Condition] = ()
    fields: Mapping[str, FieldPath] | None = None
    excel_safe: bool = False
    prune: bool = False
    since_last: bool = False
    lookback: float = LOOKBACK
    resume: bool | None = None
    replace: bool = False
    further: Further = Further()

    def chosen_format(self) -> str:
        """The format that was asked for, else that of the file's name, else jsonl. Raises UsageError where it is not clear, where its
        libraries are missing, and for options that would change nothing."""
        chosen = export_format(self.path.name if self.path else None, self.format)
        check_libraries(chosen)
        if self.excel_safe and chosen not in ("csv", "tsv"):
            raise UsageError(f"--excel-safe is for csv and tsv, not {chosen}", hint="leave it out, or --format csv")
        return chosen

    def check(self) -> None:
        """Raises UsageError for options that exclude each other."""
        if self.prune and self.since_last:
            raise UsageError("--since-last gives changes, which say nothing of deletions", hint="leave --prune-deleted out")
        if self.resume is not None and self.path is None:
            raise UsageError("only an export into a file can be resumed", hint="-O FILE")


def export(context: BulkContext, request: ExportRequest, write: Callable[[str], object] = lambda _: None) -> ExportSummary:
    """Write the records into the file of the request, or, complete, through `write`.

    Raises UsageError for options that do not fit, and an existing file without `replace`; what reading raises.
    """
    request.check()
    directory = context.directory
    layout = Layout(request.chosen_format(), directory.attributes(request.object), excel_safe=request.excel_safe, fields=request.fields)
    subject = Subject(request.object, directory.object_id(request.object), context.origin, schema_digest(layout.attributes))
    increments = _increments(context, subject, request) if request.since_last else None
    options = ExportOptions(layout, request.conditions, request.prune, request.lookback, increments, request.resume, request.further)
    run = Export(context, subject, options)
    return run.to_stream(write) if request.path is None else run.to_file(request.path, replace=request.replace)


def example_export(object_name: str, path: Path) -> dict[str, Any]:
    """What an export into a file tells a program, without anything in it."""
    return ExportSummary(object_name, "", 0, 0, 0, 0.0, False, "", (), path, path, "").to_document()


def _increments(context: BulkContext, subject: Subject, request: ExportRequest) -> Increments:
    identity = {
        "profile": context.profile,
        "origin": subject.origin,
        "object": subject.object_id,
        "filters": [format_condition(condition) for condition in request.conditions],
        "file": str(request.path.resolve()) if request.path is not None else None,
        **request.further.identity,
    }
    return Increments(context.state, identity)


class Export:
    """One export of one object."""

    def __init__(self, context: BulkContext, subject: Subject, options: ExportOptions) -> None:
        self._lister = context.service
        self._subject = subject
        self._options = options
        self._clock = context.clock
        self._progress = context.listener.progress
        self._started = self._clock.monotonic()
        self._mark = options.increments.mark if options.increments is not None else None

    def to_stream(self, write: Callable[[str], object]) -> ExportSummary:
        """Write every record through `write`, once all are complete. Raises what reading raises; then nothing was written."""
        with Staging() as staging:
            state = self._gather(staging)
            for text in texts(self._options.layout, self._wires(staging)()):
                write(text)
            summary = self._summary(staging, state, resumed=False)
            self._remember(staging, state)
        return summary

    def to_file(self, path: Path, *, replace: bool = False) -> ExportSummary:
        """Write a complete file and its manifest. A new file takes the place of an existing one only as a whole.

        Raises UsageError for an existing file without `replace`, and for one that cannot be written; what reading raises, after which the
        same call goes on where it was.
        """
        if path.is_file() and not replace:
            raise UsageError(f"{path} exists", hint="--yes replaces it", code="file_exists")
        check_libraries(self._options.layout.format)
        if is_special(path.resolve()):
            return self._to_device(path)
        place = resume_path(path)
        staging, resumed = self._open(place)
        with staging:
            try:
                state = self._gather(staging)
                write_file(path, self._options.layout, self._wires(staging))
                document = describe(path, self._subject, self._options.layout, state, len(staging), self._request)
                manifest = write_manifest(path, document)
                summary = self._summary(staging, state, resumed=resumed, file=path, manifest=manifest, sha256=document["sha256"])
                self._remember(staging, state)
            except (CrmctlError, KeyboardInterrupt) as error:
                self._leave(staging, place, error)
                raise
        place.unlink()
        return summary

    def _to_device(self, path: Path) -> ExportSummary:
        with Staging() as staging:
            state = self._gather(staging)
            write_file(path, self._options.layout, self._wires(staging))
            self._remember(staging, state)
            return self._summary(staging, state, resumed=False, file=path)

    @property
    def _request(self) -> dict[str, Any]:
        """What decides which records are gathered."""
        return {
            "origin": self._subject.origin,
            "object": self._subject.object_id,
            "filters": [format_condition(condition) for condition in self._options.conditions],
            "prune": self._options.prune,
            "lookback": self._options.lookback,
            "since": self._mark.since if self._mark is not None else None,
            "run": self._options.increments.run if self._options.increments is not None else None,
            **self._options.further.identity,
        }

    def _open(self, place: Path) -> tuple[Staging, bool]:
        """The staging of a file, and whether it goes on with an interrupted export."""
        staging = Staging(place)
        noted, begun = staging.noted("request"), staging.noted("begun")
        fits = noted == self._request and staging.noted("gathering") is not None
        wanted = self._options.resume
        if wanted and not fits:
            staging.close()
            if noted is None:
                place.unlink(missing_ok=True)
            raise UsageError(
                f"there is no interrupted export of this to go on with: {place}", hint="leave --resume out", code="nothing_to_resume"
            )
        if fits and (wanted or (wanted is None and self._clock.now() - begun < RESUMED_WITHIN)):
            self._progress.note(f"going on after {len(staging):,} records that were read before; --restart begins anew")
            return staging, True
        if noted is not None:
            staging.close()
            remove_staging(place)
            staging = Staging(place)
        with staging.step():
            staging.note("request", self._request)
            staging.note("begun", self._clock.now())
        return staging, False

    def _gather(self, staging: Staging) -> GatherState:
        options = self._options
        gather = GatherOptions(options.conditions, options.prune, options.lookback, self._mark)
        self._progress.start("exporting")
        try:
            state = Gathering(self._lister, self._subject.object_id, gather, staging, self._clock, self._progress).run()
        finally:
            self._progress.finish()
        admits = options.further.admits
        if admits is not None:
            staging.keep_only(lambda wire: admits(Record.parse(jsontext.loads(wire))))
        if options.increments is not None:
            options.increments.drop_delivered(staging)
        return state

    def _wires(self, staging: Staging) -> Wires:
        """The records as they are written."""
        expand = self._options.further.expand
        if expand is None:
            return staging.wires
        return lambda: map(jsontext.dumps, expand(len(staging), map(jsontext.loads, staging.wires())))

    def _remember(self, staging: Staging, state: GatherState) -> None:
        if self._options.increments is not None:
            self._options.increments.remember(staging, state, self._options.lookback)

    def _leave(self, staging: Staging, place: Path, error: BaseException) -> None:
        """Keep what was read, and say so; a file without records is of no use."""
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
            format=self._options.layout.format,
            rows=rows,
            requests=state.statistics.requests,
            repeated=max(0, sum(one["records"] for one in state.passes) - rows),
            elapsed=self._clock.monotonic() - self._started,
            resumed=resumed,
            consistent_as_of=to_timestamp(state.as_of),
            flags=state.flags,
            **file,
        )


def resume_path(path: Path) -> Path:
    """Where the records of an unfinished export of `path` lie."""
    target = path.resolve()
    return target.with_name(target.name + ".resume")


def remove_staging(place: Path) -> None:
    """Delete the records of an unfinished export."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        place.with_name(place.name + suffix).unlink(missing_ok=True)
