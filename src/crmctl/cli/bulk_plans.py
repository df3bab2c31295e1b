"""`bulk import --dry-run`, `--plan` and `bulk apply`: what an import would do, kept in a file and carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crmctl.cli.bulk_runs import (
    Findings,
    binary_stdin,
    check_shown,
    current_limit,
    note_if_empty,
    rejected_rows,
    resolve_target,
    run_job,
    takes_turns,
)
from crmctl.cli.counted_words import counted
from crmctl.errors import ExitCode, RejectedError, UsageError

if TYPE_CHECKING:
    from crmctl.bulk.journal.jobs import JobStore
    from crmctl.bulk.run.decisions import Decision, Decisions
    from crmctl.bulk.run.dry_run import DryRun
    from crmctl.bulk.run.guards import Guard
    from crmctl.bulk.run.job_start import ImportTarget
    from crmctl.bulk.run.plan import ImportPlan, PlannedInput
    from crmctl.bulk.run.plan_check import Applicable
    from crmctl.bulk.send.context import DeliveryOptions
    from crmctl.cli.bulk_request import ImportRequest
    from crmctl.cli.runtime import Runtime
    from crmctl.models.attributes import Attribute

EXAMPLES = 10
"""How many rows a person is shown."""


@dataclass(frozen=True)
class ApplyRequest:
    """What `bulk apply` is asked for besides the plan. `source`: where the input is, when it was moved."""

    delivery: DeliveryOptions
    guard: Guard
    source: Path | None = None
    failed_copy: Path | None = None
    again: bool = False
    lock_wait: float = 3600.0


def check_plan_wish(runtime: Runtime, path: Path, file: str) -> None:
    """A plan is a dry run that is kept. Raises UsageError for an input, or a place, of which none can be made."""
    from crmctl.bulk.run.plan_file import check_plan_path
    from crmctl.bulk.sources.given_input import STDIN, is_stream

    runtime.flags["dry_run"] = True
    if is_stream(file):
        hint = f"save it first: ... > rows.csv, then crmctl bulk import OBJECT rows.csv --plan {path}"
        named = "stdin" if file == STDIN else file
        raise UsageError(f"a plan of {named} could not be applied: its rows are gone by then", hint=hint, code="unusable_input")
    check_plan_path(path, Path(file))
    if path.exists() and not runtime.assume_yes:
        runtime.prompter.confirm(f"Replace {path}?")


def preview_import(
    runtime: Runtime, target: ImportTarget, attributes: Sequence[Attribute], request: ImportRequest, file: str, path: Path
) -> None:
    """Read and check the whole input, which is at `path`, show what an import would do, and keep that where a plan is wanted.

    Raises RejectedError, after the report, for invalid rows and for more or fewer changes than are wanted.
    """
    from crmctl.bulk.match.keys import key_rule
    from crmctl.bulk.run.before_images import must_be_read
    from crmctl.bulk.run.decisions import Decisions
    from crmctl.bulk.run.dry_run import dry_run
    from crmctl.bulk.run.plan import open_input

    findings, kept, plan = Findings(runtime), request.before_images, request.plan
    with ExitStack() as stack:
        key_rule(plan.mapping.keys, attributes)
        plan = plan.frozen(attributes)
        planned = open_input(plan, path, file, attributes)
        for note in (*planned.source.dialect.told, *planned.mapping.notes):
            runtime.messages.note(note)
        decisions = stack.enter_context(Decisions()) if request.plan_file is not None else None
        reads = plan.mapping.keys or plan.references or decisions or planned.may_merge
        reads = reads or must_be_read(kept, plan.mapping.mode, plan.mapping.keys)
        lister = runtime.connect(lane="bulk") if reads else None
        limit = current_limit(runtime)
        found = dry_run(target, planned, limit, runtime.clock, findings, lister, plan=plan, before_images=kept, decisions=decisions)
        invalid = rejected_rows(found.report.rejected) if found.exit_code is not ExitCode.OK else None
        unexpected = _unexpected(found, request.guard)
        stopped = unexpected is not None or found.report.is_fatal or (invalid is not None and plan.stop_on_error)
        saved = None
        if decisions is not None and not stopped:
            saved = _save(runtime, target, attributes, plan, planned, file, request, found, decisions)
    refusal = invalid or unexpected
    findings.tell(refusal)
    note_if_empty(runtime, file, found.report.rows)
    text = _preview_text(found, file) + (f"\ncrmctl bulk apply {saved} does exactly this" if saved else "")
    runtime.emitter.emit_result({**found.to_document(), "plan": str(saved) if saved else None}, text=text)
    if refusal is not None:
        raise refusal


def _unexpected(found: DryRun, guard: Guard) -> RejectedError | None:
    try:
        guard.check(found.changes, found.report.rows)
    except RejectedError as refusal:
        return refusal
    return None


def _save(
    runtime: Runtime,
    target: ImportTarget,
    attributes: Sequence[Attribute],
    plan: ImportPlan,
    planned: PlannedInput,
    file: str,
    request: ImportRequest,
    found: DryRun,
    decisions: Decisions,
) -> Path:
    import time

    from crmctl.bulk.run.plan_check import describe
    from crmctl.bulk.run.plan_file import write_plan

    assert request.plan_file is not None
    header = describe(
        target,
        plan,
        planned,
        attributes,
        file,
        summary=summary_of(found),
        created_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(runtime.clock.now())),
        marker=request.marker,
        before_images=request.before_images,
    )
    write_plan(request.plan_file, header, decisions)
    return request.plan_file


def summary_of(found: DryRun) -> dict[str, Any]:
    """The numbers of a plan."""
    document = found.to_document()
    return {name: document[name] for name in ("rows", "predicted", "parents", "requests", "estimatedSeconds")}


def apply_plan(runtime: Runtime, file: str, request: ApplyRequest) -> None:
    """Check a plan against what is there now, show it with --dry-run, else do what it says.

    Raises UsageError for a plan that does not fit any more, and what an import raises.
    """
    from crmctl.bulk.journal.jobs import JobStore
    from crmctl.bulk.run.job_start import temporary_input

    store = JobStore(runtime.paths.state, runtime.clock)
    with ExitStack() as stack:
        plan, source = (
            stack.enter_context(temporary_input(store, str(name), binary_stdin(runtime))) if name is not None else None
            for name in (file, request.source)
        )
        assert plan is not None
        _apply(runtime, store, plan, replace(request, source=source), copied=source != request.source)


def _apply(runtime: Runtime, store: JobStore, file: Path, request: ApplyRequest, *, copied: bool) -> None:
    from crmctl.bulk.run.plan_check import check_service, open_plan, start_apply
    from crmctl.bulk.run.plan_file import read_plan

    saved = read_plan(file)
    origin = runtime.settings.require_origin()
    check_service(saved, origin)
    target, attributes = resolve_target(runtime, saved.header.object_id)
    target = replace(target, object=saved.header.object)
    ready = open_plan(saved, attributes, request.source)
    service = runtime.connect(lane="bulk")
    if runtime.dry_run:
        _preview_plan(runtime, target, ready, request.guard)
        return
    check_shown(runtime)
    with takes_turns(runtime, target, request.lock_wait, by_key=bool(ready.plan.mapping.keys)):
        job = start_apply(store, target, attributes, ready, runtime.clock, again=request.again, lister=service, copied=copied)
        run_job(runtime, job, request.delivery, failed_copy=request.failed_copy, guard=request.guard)


def _preview_plan(runtime: Runtime, target: ImportTarget, ready: Applicable, guard: Guard) -> None:
    from crmctl.bulk.run.decisions import Decisions, compare, examples
    from crmctl.bulk.run.dry_run import dry_run
    from crmctl.bulk.run.plan_check import refusal

    header, saved = ready.saved.header, ready.saved
    findings = Findings(runtime)
    lister, limit = runtime.connect(lane="bulk"), current_limit(runtime)
    with Decisions() as now:
        found = dry_run(
            target, ready.input, limit, runtime.clock, findings, lister, plan=ready.plan, before_images=header.before_images, decisions=now
        )
        differences = compare(saved.decisions(), now)
    shown = examples(saved.decisions(), EXAMPLES)
    document = {
        **found.to_document(),
        "plan": str(saved.path),
        "createdAt": header.created_at,
        "planned": dict(header.summary),
        "examples": [decision.to_document() for decision in shown],
        "differences": differences.listed,
    }
    runtime.emitter.emit_result(document, text=_plan_text(saved.path, header.input, document, shown))
    refused = refusal(differences)
    if refused is not None:
        raise refused
    guard.check(found.changes, found.report.rows)


def _plan_text(path: Path, file: str, document: Mapping[str, Any], shown: Sequence[Decision]) -> str:
    from crmctl.output.progress import duration

    planned = document["planned"]
    counts = {name: count for name, count in planned["predicted"].items() if count}
    width = max((len(f"{count:,}") for count in counts.values()), default=1)
    lines = [f"{path}: {file} into {document['object']}, {counted(planned['rows'], 'row')}, planned {document['createdAt']}"]
    lines += [f"  {name.ljust(9)}  {f'{count:,}'.rjust(width)}" for name, count in counts.items()]
    lines += [f"  first      {counted(one['create'], 'record')} of {one['object']}, by {one['key']}" for one in planned["parents"]]
    lines += [f"  requests   {planned['requests']:,}, about {duration(planned['estimatedSeconds'])}"]
    if shown:
        rows = [("LINE", "ACTION", "RECORD", "CHANGES")]
        rows += [(str(one.line), one.action, one.id or "", one.reason or ", ".join(one.changes or ())) for one in shown]
        widths = [max(len(row[place]) for row in rows) for place in range(4)]
        lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "nothing was sent"])


def _preview_text(found: DryRun, file: str) -> str:
    from crmctl.output.progress import duration

    report = found.report
    known = ", ".join(f"{count:,} {_FORECAST[name]}" for name, count in found.predicted.items() if count and name in _FORECAST)
    return (
        f"{file} has {counted(report.rows, 'row')}: {report.valid:,} valid, {report.rejected:,} invalid\n"
        + (f"{known}\n" if known and found.summary.mode == "upsert" else "")
        + "".join(
            f"{counted(one.size, 'record')} of {one.reference.object} to create first, by {one.reference.key}\n" for one in found.parents
        )
        + f"importing takes {counted(found.summary.requests, 'request')}, about {duration(found.seconds)}; nothing was sent"
    )


_FORECAST = {"create": "to create", "update": "to update", "unchanged": "unchanged", "skip": "skipped", "ambiguous": "ambiguous"}
