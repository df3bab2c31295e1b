"""Show bulk jobs: progress, findings, reports and merges."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from crmctl.errors import CrmctlError, UsageError
from crmctl.models.ids import check_choice
from crmctl.models.numbers import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from crmctl.cli.runtime import Runtime
    from crmctl.models.findings import Finding
    from crmctl.models.jsontext import Json
    from crmctl.output.progress import ProgressDisplay
    from crmctl.plan.dry_run import ImportPreview
    from crmctl.plan.import_records import ApplyRequest
    from crmctl.plan.merge_records import DedupeRequest, DedupeResult, MergePreview, MergeResult
    from crmctl.plan.requests import ImportRequest
    from crmctl.plan.results import FindingLog


class ScreenListener:
    """Shows notes and progress at once, and findings with the outcome. `hear` takes every finding."""

    def __init__(self, runtime: Runtime, hear: Callable[[Finding], None] = lambda _: None) -> None:
        self._runtime = runtime
        self.report = hear

    @property
    def progress(self) -> ProgressDisplay:
        return self._runtime.progress

    def note(self, text: str) -> None:
        self._runtime.messages.note(text)

    def confirm(self, question: str) -> None:
        self._runtime.confirm(question)


class PreviewListener(ScreenListener):
    """For a dry run that writes a file; it asks before replacing one, unless --yes is given."""

    def confirm(self, question: str) -> None:
        if not self._runtime.assume_yes:
            self._runtime.prompter.confirm(f"{question}?")


def in_interactive_lane(runtime: Runtime) -> Runtime:
    """Prepare for bulk work with few requests: it uses the interactive lane and shows no progress."""
    from crmctl.output.progress import ProgressDisplay

    runtime.service = runtime.crm
    runtime.progress = ProgressDisplay(runtime.streams, quiet=runtime.progress.quiet, still=True, say=runtime.messages.progress)
    return runtime


SHOWN = 20
"""Findings shown on a terminal; the file of failed rows has all of them."""


def show(runtime: Runtime, document: Any, text: str | None, error: CrmctlError | None = None, findings: FindingLog | None = None) -> None:
    """Show what a job did, or would do in a dry run. Raises the error that goes with its exit code."""
    if findings is not None:
        tell_findings(runtime, findings, error)
    runtime.emitter.emit_result({"dryRun": True, **document} if runtime.dry_run else document, text=text)
    if error is not None:
        raise error


def tell_findings(runtime: Runtime, findings: FindingLog, error: CrmctlError | None) -> None:
    """Show findings; if a program's run ends with an error, add them to its details instead."""
    if error is None or not runtime.messages.machine or not (error.details is None or isinstance(error.details, dict)):
        _warn_of_findings(runtime, findings)
    elif findings.kept:
        error.details = {**(error.details or {}), **findings.to_document()}


def _warn_of_findings(runtime: Runtime, findings: FindingLog) -> None:
    """Show the first findings with place, reason and hint; many of one column that say the same share a line."""
    messages = runtime.messages
    lines = [(text, rows) for examples, count in findings.groups for text, rows in _finding_lines(examples, count)][:SHOWN]
    several = findings.unknown_options[:SHOWN]
    for option in several:
        rows = f"{option['rows']:,} rows, the first" if option["rows"] > 1 else "one row,"
        text = f"column {option['column']}: {option['value']!r} is not an option ({rows} on line {option['line']}); {option['hint']}"
        lines.append((text, option["rows"]))
    for text, _ in lines:
        messages.warn(text)
    if unshown := findings.count - sum(rows for _, rows in lines):
        messages.warn(f"and {unshown:,} more findings")


def _finding_lines(examples: Sequence[Finding], count: int) -> list[tuple[str, int]]:
    """Return the lines for findings that say the same, each with the number of findings it tells of."""
    first = examples[0]
    hint = f"; {first.hint}" if first.hint else ""
    if count <= len(examples) or first.column is None:
        return [(finding.to_text() + (f"; {finding.hint}" if finding.hint else ""), 1) for finding in examples]
    values = ", ".join(repr(value) for value in dict.fromkeys(finding.value for finding in examples) if value is not None)
    place = f"the first on line {first.first_line}" + (f": {values}, ..." if values else "")
    return [(f"column {first.column}: {first.message} ({count:,} rows, {place}){hint}", count)]


def report_import(runtime: Runtime, request: ImportRequest, form: str, describe: Callable[[ImportPreview], str]) -> None:
    """Print a report on a dry run of an import; `describe` summarises it.

    Raises the error that would prevent the import, after the report.
    """
    from crmctl.plan.ci_reports import FORMS, CiReport, error_finding, finding_case
    from crmctl.plan.dry_run import preview_import

    check_choice("--report", form, [*FORMS])
    if option := next((name for name in ("output", "json", "query", "fields") if runtime.flags.get(name)), None):
        raise UsageError(f"--report and --{option} exclude each other", hint="leave one of them out")
    file, failure = "stdin" if request.file == "-" else request.file, None
    with CiReport(form) as report:

        def hear(finding: Finding) -> None:
            report.add(finding_case(file, finding))

        runtime.listener = PreviewListener(runtime, hear)
        try:
            preview = preview_import(runtime, request)
            failure, sentence = preview.error, describe(preview).replace("\n", "; ")
            if failure is not None and not report.counts["error"]:
                hear(error_finding(failure))
        except CrmctlError as error:
            failure, sentence = error, "the file was not checked"
            hear(error_finding(error))
        report.write(runtime.streams.write_out, f"{file} into {request.object}", sentence)
    if failure is not None:
        failure.details = None
        raise failure


def dedupe_records(runtime: Runtime, request: DedupeRequest) -> None:
    """Find duplicates, write the plan, and show a review or the counts."""
    from crmctl.plan.merge_records import dedupe
    from crmctl.values.moments import in_a_sentence

    dedupe_result = dedupe(runtime, request)
    if dedupe_result.mirrored:
        runtime.messages.note(f"from the mirror, as of {in_a_sentence(dedupe_result.as_of or '', runtime.clock.now())}")
    if dedupe_result.crowded:
        values = "value is" if dedupe_result.crowded == 1 else "values are"
        runtime.messages.note(
            f"{dedupe_result.crowded:,} {values} shared by more than {request.most} records and say nothing; --max-group N"
        )
    if dedupe_result.windowed:
        runtime.messages.note(
            f"so many records share a word or value that crmctl compared {dedupe_result.windowed:,} with their nearest neighbours only;"
            " add a term that must be equal"
        )
    if dedupe_result.counts.too_large:
        runtime.messages.note(
            f"{counted(dedupe_result.counts.too_large, 'group')} of more than {request.most} records left out; --max-group N"
        )
    if runtime.output_format != "table" or not request.review:
        runtime.emitter.emit_result(dedupe_result.to_document(), text=_dedupe_text(dedupe_result))
        return
    rows = _review(runtime, dedupe_result)
    runtime.emitter.emit_rows(rows, "duplicates", first=("group", "score", "what", "of", "value"))
    if rows:
        runtime.messages.note("* marks kept values; values that all records of a group share are not shown")
    runtime.messages.note(_dedupe_text(dedupe_result))
    if dedupe_result.groups > len(dedupe_result.least_certain):
        runtime.messages.note(
            f"showing the {len(dedupe_result.least_certain):,} least certain of {dedupe_result.groups:,} groups; the plan has all"
        )


def _dedupe_text(dedupe_result: DedupeResult) -> str:
    groups = (
        f"{counted(dedupe_result.groups, 'group')} with {counted(dedupe_result.duplicates, 'duplicate')}"
        if dedupe_result.groups
        else "no duplicates"
    )
    text = f"{counted(dedupe_result.records, 'record')} of {dedupe_result.object}: {groups}"
    if dedupe_result.plan is None:
        return f"{text}; --plan FILE keeps them"
    return (
        f"{text}; read {dedupe_result.plan}, then: crmctl bulk apply {shlex.quote(str(dedupe_result.plan))}"
        if dedupe_result.groups
        else text
    )


def _review(runtime: Runtime, dedupe_result: DedupeResult) -> Sequence[Json]:
    """Return the least certain groups as rows: the matching rules, then the values that differ, the survivor's first, kept ones marked."""
    from crmctl.cli.record_lists import value_texts

    rows: list[Json] = []
    for merge in dedupe_result.least_certain:
        members = {merge.survivor: "survivor", **dict.fromkeys(merge.losers, "merged")}
        rules = ", ".join(dict.fromkeys(reason.rule for reason in merge.why))
        rows.append({"group": merge.group, "score": f"{merge.score:.2f}", "what": "why", "of": "", "value": rules})
        shown = value_texts(runtime, dedupe_result.object, [merge.record(record_id).data for record_id in members])
        texts_by_slug = {
            slug: {record_id: texts.get(slug) or "-" for record_id, texts in zip(members, shown, strict=True)} for slug in merge.values
        }
        for slug, texts in {**texts_by_slug, "id": {record_id: record_id for record_id in members}}.items():
            kept = merge.values[slug].sources if slug in merge.values else ()
            names = [slug] if len(set(texts.values())) > 1 else []
            for record_id, text in texts.items() if names else ():
                value = f"* {text}" if record_id in kept and text != "-" else f"  {text}"
                rows.append({"group": "", "score": "", "what": names.pop() if names else "", "of": members[record_id], "value": value})
    return rows


def apply_merges(runtime: Runtime, request: ApplyRequest) -> None:
    """Carry out a merge plan, or with --dry-run compare it with the present records."""
    from crmctl.plan.merge_records import example_merge, merge_records, preview_merges

    if runtime.dry_run:
        preview = preview_merges(runtime, request)
        takes = _takes(preview.requests, preview.seconds, "; {}")
        merged = f"{counted(preview.losers, 'record')} of {preview.object} to merge in {counted(preview.groups, 'group')}"
        text = f"{preview.path}: {merged}; {len(preview.moved):,} changed since the plan{takes}; nothing was sent"
        show(runtime, preview.to_document(), text)
        return

    def approve(preview: MergePreview) -> None:
        takes = _takes(preview.requests, preview.seconds, " ({})")
        losers, others = counted(preview.losers, "record"), counted(preview.groups, "other")
        runtime.confirm(f"Merge {losers} of {preview.object} into {others}, and delete them{takes}")

    runtime.emitter.check_result(example_merge())
    show_merges(runtime, merge_records(runtime, request, approve))


def show_merges(runtime: Runtime, result: MergeResult) -> None:
    """Show the result of a merge. Raises its error."""
    show(runtime, result.to_document(), _merged_text(result))
    result.raise_for_error()


def _takes(requests: int, seconds: float, form: str) -> str:
    """Return the requests and time, or nothing if it takes less than a second."""
    from crmctl.output.progress import duration

    return form.format(f"about {counted(requests, 'request')}, {duration(seconds)} at the rate of the service") if seconds >= 1 else ""


def _merged_text(result: MergeResult) -> str:
    from crmctl.output.progress import duration

    document = result.to_document()
    lines = [f"job {result.job}: {document['merged']:,} of {counted(document['groups'], 'group')} of {result.object} merged"]
    lines += [f"  {name.ljust(10)} {document[name]:,}" for name in ("deleted", "references", "activities")]
    lines += [f"  {name.ljust(10)} {document[name]:,}" for name in ("refused", "failed", "unsent", "undone") if document[name]]
    lines += [f"  requests   {document['requests']:,} in {duration(result.elapsed)}"]
    lines += [f"group {row['group']}: {row['error']}" for name in ("refused", "failed") for row in document["rows"][name]]
    return "\n".join(lines)
