"""What the bulk commands do with the bulk package: targets, runs, and how their outcome is shown. The work itself is in crmctl.bulk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from crmctl.cli.counted_words import counted
from crmctl.errors import CrmctlError, DeniedError, ExitCode, PartialError, RejectedError

if TYPE_CHECKING:
    from crmctl.bulk.findings import Finding
    from crmctl.bulk.journal.jobs import JobInfo
    from crmctl.bulk.journal.journal import Header
    from crmctl.bulk.journal.summary import Summary
    from crmctl.bulk.run.dry_run import Limit
    from crmctl.bulk.run.guards import Guard
    from crmctl.bulk.run.job_run import JobResult
    from crmctl.bulk.run.job_start import ImportJob, ImportTarget
    from crmctl.bulk.send.context import DeliveryOptions
    from crmctl.cli.bulk_request import ImportRequest
    from crmctl.cli.runtime import Runtime
    from crmctl.models.attributes import Attribute

SHOWN_FINDINGS = 20
"""How many findings a person is shown; all of them are in the file of failed rows."""

LISTED_FINDINGS = 100
"""How many findings an error document lists."""

DUPLICATE_KEYS = "duplicate_keys"


class Findings:
    """Hears the findings of a check: the first ones are shown to a person, and kept for a program.

    A value that is no option of a select is told once, with the number of its rows.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.count = 0
        self.kept: list[Finding] = []
        self._options: dict[tuple[str | None, str | None], tuple[Finding, int]] = {}

    def __call__(self, finding: Finding) -> None:
        self.count += 1
        if finding.code == "unknown_option":
            option = (finding.column, finding.value)
            first, rows = self._options.get(option, (finding, 0))
            if rows or len(self._options) < LISTED_FINDINGS:
                self._options[option] = (first, rows + 1)
        if len(self.kept) < LISTED_FINDINGS:
            self.kept.append(finding)

    @property
    def unknown_options(self) -> list[dict[str, Any]]:
        """Values that are no options, the most frequent first: column, value, rows, the first line, and what may be meant."""
        found = sorted(self._options.values(), key=lambda pair: -pair[1])
        return [
            {"column": first.column, "value": first.value, "rows": rows, "line": first.first_line, "hint": first.hint}
            for first, rows in found
        ]

    def tell(self, error: CrmctlError | None) -> None:
        """Show them; a program whose run ends with an error finds them in its details instead, next to what is there."""
        if error is None or not self._runtime.messages.machine or not (error.details is None or isinstance(error.details, dict)):
            self.show()
        elif self.kept:
            found: dict[str, Any] = {"findings": [finding.to_document() for finding in self.kept]}
            if self.unknown_options:
                found["unknownOptions"] = self.unknown_options
            error.details = {**(error.details or {}), **found}

    def show(self) -> None:
        """Say the first ones, each with its place, its reason and what helps."""
        said = self._runtime.messages
        single = [finding for finding in self.kept if finding.code != "unknown_option"][:SHOWN_FINDINGS]
        for finding in single:
            said.warn(finding.to_text() + (f"; {finding.hint}" if finding.hint else ""))
        several = self.unknown_options[:SHOWN_FINDINGS]
        for option in several:
            rows = f"{option['rows']:,} rows, the first" if option["rows"] > 1 else "one row,"
            said.warn(
                f"column {option['column']}: {option['value']!r} is not an option ({rows} on line {option['line']}); {option['hint']}"
            )
        left = self.count - len(single) - sum(option["rows"] for option in several)
        if left:
            said.warn(f"and {left:,} more findings")


def check_shown(runtime: Runtime) -> None:
    """Refuse a --fields or --query that does not fit the summary of a job before it begins. Raises UsageError."""
    from crmctl.bulk.journal.states import RESULT_FILES, RowState
    from crmctl.bulk.journal.summary import Summary

    files = {name: Path(name) for name in RESULT_FILES}
    runtime.emitter.check_result(Summary("", "", "", dict.fromkeys(RowState, 0), 0, 0.0, files).to_document())


def resolve_target(runtime: Runtime, object_name: str) -> tuple[ImportTarget, list[Attribute]]:
    """The object, and its attributes as they are now: bulk work trusts no cache."""
    from crmctl.bulk.run.job_start import ImportTarget

    attributes = runtime.directory.attributes(object_name, refresh=True)
    object_id = runtime.directory.object_id(object_name)
    return ImportTarget(object_name, object_id, runtime.settings.require_origin()), attributes


def sample_records(runtime: Runtime, object_id: str, attributes: Sequence[Attribute]) -> tuple[dict[str, Any], ...]:
    """The data of a few existing records, whose form composite values follow; none where the key may not read them."""
    from crmctl.models.composites import COMPOSITE_TYPES

    if not any(attribute.type in COMPOSITE_TYPES for attribute in attributes):
        return ()
    try:
        page = runtime.crm.list_records(object_id, limit=20)
    except DeniedError as error:
        if error.status != 403:
            raise
        return ()
    return tuple(record.data for record in page.items)


def binary_stdin(runtime: Runtime) -> BinaryIO:
    buffer: BinaryIO = runtime.streams.stdin.buffer
    return buffer


def current_limit(runtime: Runtime) -> Limit:
    """The request rate as the service states it at this moment."""
    from crmctl.bulk.run.dry_run import Limit

    session = runtime.crm.session
    headers = session.exchange("GET", "/objects").headers
    try:
        return Limit(int(headers["x-ratelimit-limit"]), session.rate_window, int(headers["x-ratelimit-remaining"]))
    except (KeyError, ValueError):
        return Limit(seconds=session.rate_window)


def import_file(runtime: Runtime, object_name: str, file: str, request: ImportRequest) -> None:
    """Begin an import and run it, or with --dry-run only report on it."""
    from crmctl.bulk.journal.jobs import JobStore
    from crmctl.bulk.match.references import parse_references, references_in
    from crmctl.bulk.run.job_start import temporary_input
    from crmctl.bulk.sources.open_source import open_source
    from crmctl.cli.bulk_plans import check_plan_wish, preview_import

    if request.plan_file is not None:
        check_plan_wish(runtime, request.plan_file, file)
    if not runtime.dry_run:
        check_shown(runtime)
    target, attributes = resolve_target(runtime, object_name)
    samples = sample_records(runtime, target.object_id, attributes)
    plan, references = request.plan, request.references
    with temporary_input(JobStore(runtime.paths.state, runtime.clock), file, binary_stdin(runtime)) as path:
        header = open_source(path, plan.source, name=file).header
        references = (*references, *references_in(header, attributes, references, lambda of: runtime.directory.object(of).slug or of))
        parsed = parse_references(references, attributes, lambda name: _object_of(runtime, name))
        plan = replace(plan, values=replace(plan.values, samples=samples), references=parsed)
        if runtime.dry_run:
            preview_import(runtime, target, attributes, replace(request, plan=plan), file, path)
        else:
            _start_and_run(runtime, target, attributes, replace(request, plan=plan), file, path)


def _start_and_run(
    runtime: Runtime, target: ImportTarget, attributes: Sequence[Attribute], request: ImportRequest, file: str, path: Path
) -> None:
    from crmctl.bulk.journal.jobs import JobStore
    from crmctl.bulk.run.job_start import start_import

    plan = request.plan
    lister = runtime.connect(lane="bulk") if plan.references else None
    with takes_turns(runtime, target, request.lock_wait, by_key=bool(plan.mapping.keys)):
        job = start_import(
            JobStore(runtime.paths.state, runtime.clock), target, attributes, plan, file, binary_stdin(runtime), runtime.clock,
            again=request.again, marker=request.marker, lister=lister, before_images=request.before_images,
            copy=path if path != Path(file) else None,
        )  # fmt: skip
        run_job(runtime, job, request.delivery, failed_copy=request.failed_copy, guard=request.guard)


@contextmanager
def takes_turns(runtime: Runtime, target: ImportTarget | Header, patience: float, *, by_key: bool | None = None) -> Iterator[None]:
    """An import by key runs while no other one runs into the same object. Raises PendingError after `patience` seconds."""
    from crmctl.bulk.journal.jobs import JobStore
    from crmctl.bulk.journal.object_lock import ObjectLock

    if not (getattr(target, "keys", None) if by_key is None else by_key):
        yield
        return
    store = JobStore(runtime.paths.state, runtime.clock)
    with ObjectLock(store, target.origin, target.object_id, target.object, patience).hold(runtime.clock, runtime.messages.note):
        yield


def _object_of(runtime: Runtime, name: str) -> tuple[str, Sequence[Attribute]]:
    target, attributes = resolve_target(runtime, name)
    return target.object_id, attributes


def run_job(
    runtime: Runtime, job: ImportJob, delivery: DeliveryOptions, *, failed_copy: Path | None = None, guard: Guard | None = None
) -> None:
    """Do what is left of a job and show its summary. Raises the error that ended it early, RejectedError, or PartialError."""
    from crmctl.bulk.run import job_run as running

    for note in (*job.input.source.dialect.told, *job.input.mapping.notes):
        runtime.messages.note(note)
    file, findings = job.journal.header.input, Findings(runtime)
    writer = runtime.connect(lane="bulk")
    allowed = guard or running.ANYTHING
    result = running.run_job(writer, job, delivery, runtime.clock, runtime.progress, findings, failed_copy=failed_copy, guard=allowed)
    note_if_empty(runtime, file, result.summary.rows)
    show_result(runtime, result, file, findings)


def note_if_empty(runtime: Runtime, file: str, rows: int) -> None:
    """A file without rows is nothing wrong: a nightly run may have nothing to do. It is said all the same."""
    if not rows:
        runtime.messages.note(f"{'stdin' if file == '-' else file} holds no rows: nothing to import")


def resume_preview(runtime: Runtime, job: JobInfo) -> None:
    """What a resumed job would still send."""
    from crmctl.models.records import BULK_LIMIT

    document = job.to_document()
    requests = -(-document["unsent"] // BULK_LIMIT)
    text = f"job {job.id}: {counted(document['unsent'], 'row')} not sent, {document['inDoubt']:,} in doubt; nothing was sent"
    runtime.emitter.emit_result({"dryRun": True, **document, "requests": requests}, text=text)


def show_result(runtime: Runtime, result: JobResult, file: str, findings: Findings | None = None) -> None:
    """Show a job's findings, notes and summary. Raises the error that goes with its exit code, if it has one."""
    document = result.summary.to_document()
    error = _error_of(result, document)
    if findings is not None:
        findings.tell(error)
    if result.rivals and error is not None and error.code != DUPLICATE_KEYS:
        runtime.messages.warn(_rivals(result.rivals).message)
    for note in result.notes:
        runtime.messages.note(note)
    runtime.emitter.emit_result(document, text=_summary_text(result.summary, file))
    if error is not None:
        raise error


def _error_of(result: JobResult, document: dict[str, Any]) -> CrmctlError | None:
    """The error that says why not every row is written once."""
    if result.error is not None:
        result.error.hint = result.hint or result.error.hint
        return result.error
    if result.exit_code is ExitCode.REJECTED:
        return _refused(document, result.refusals) if document["failed"] else rejected_rows(document["rejected"])
    counts = {name: document[name] for name in ("failed", "rejected", "inDoubt", "unsent") if document[name]}
    if result.duplicates and not counts:
        return PartialError(
            f"there more than once: {counted(result.duplicates, 'row')}",
            hint=f"crmctl bulk repair {result.summary.job}",
            details={"duplicates": result.duplicates},
        )
    if result.rivals and not counts:
        return _rivals(result.rivals)
    if result.exit_code is ExitCode.PARTIAL:
        said = ", ".join(f"{count:,} {_WORDS[name]}" for name, count in counts.items())
        failed = document["files"]["failed"]
        correct = f"{failed} holds the rows and the reasons; correct it and import it" if failed else None
        hint = f"{result.hint} {DOUBTFUL_WAYS}" if result.hint and document["inDoubt"] and not document["unsent"] else result.hint
        notes = {"notes": list(result.notes)} if document["inDoubt"] and result.notes else {}
        return PartialError(f"not every row was written: {said}", hint=hint or correct, details={**counts, **notes})
    return None


def _rivals(rivals: Sequence[dict[str, Any]]) -> PartialError:
    named = "; ".join(f"row {one['row']} ({one['key']}): {', '.join(one['ids'])}" for one in rivals[:SHOWN_FINDINGS])
    more = f"; and {len(rivals) - SHOWN_FINDINGS:,} more" if len(rivals) > SHOWN_FINDINGS else ""
    rows = "row has" if len(rivals) == 1 else "rows have"
    return PartialError(
        f"{len(rivals):,} {rows} a key that somebody else's new record has too: {named}{more}",
        hint="merge the records, or delete one of each",
        code=DUPLICATE_KEYS,
        details={"duplicates": list(rivals[:LISTED_FINDINGS])},
    )


DOUBTFUL_WAYS = "looks for them once more; with --assume-lost it sends them again, with --assume-applied they count as written"

_WORDS = {
    "created": "created",
    "updated": "updated",
    "unchanged": "unchanged",
    "failed": "failed",
    "rejected": "invalid",
    "skipped": "skipped",
    "inDoubt": "in doubt",
    "unsent": "not sent",
}


def _summary_text(summary: Summary, file: str) -> str:
    from crmctl.output.progress import duration

    document = summary.to_document()
    counts = ", ".join(f"{document[name]:,} {word}" for name, word in _WORDS.items() if document[name]) or "none"
    lines = [
        f"{file} into {summary.object}, job {summary.job}",
        f"  rows       {summary.rows:,}: {counts}",
        f"  requests   {summary.requests:,} in {duration(summary.elapsed)}",
    ]
    lines += [f"  {_WORDS.get(name, name).ljust(9)}  {path}" for name, path in document["files"].items() if path and name != "ok"]
    return "\n".join(lines)


def _said(reasons: Sequence[str]) -> str:
    """What the service said to every row, else to the first."""
    if not reasons:
        return ""
    return f": {reasons[0]}" if len(reasons) == 1 else f", the first with: {reasons[0]}"


def _refused(document: dict[str, Any], reasons: Sequence[str]) -> RejectedError:
    count = document["failed"]
    file = document["files"]["failed"]
    rows = "the one row" if count == 1 else f"all {count:,} rows"
    return RejectedError(
        f"the service refused {rows} it was sent{_said(reasons)}; nothing was written",
        hint=f"{file} holds the rows and the reasons; correct it and import it" if file else None,
        code="refused_rows",
        details={name: document[name] for name in ("failed", "rejected", "unsent") if document[name]},
    )


def rejected_rows(count: int) -> RejectedError:
    """The error of an import whose input has invalid rows."""
    rows = "row is" if count == 1 else "rows are"
    return RejectedError(
        f"{count:,} {rows} invalid; nothing was sent",
        hint="correct the file, or --on-error continue imports the valid rows",
        code="invalid_rows",
    )
