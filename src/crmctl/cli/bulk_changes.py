"""`bulk update` and `bulk delete`: what would change is shown, somebody is asked, and the outcome is shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from crmctl.cli.bulk_context import RuntimeContext
from crmctl.cli.bulk_findings import tell_findings
from crmctl.cli.bulk_imports import check_shown, show_result
from crmctl.cli.counted_words import counted
from crmctl.output.control_characters import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from crmctl.bulk.usecases.delete import Deletion
    from crmctl.bulk.usecases.results import ImportResult
    from crmctl.bulk.usecases.update import ChangeForecast, UpdatePreview, ValueChange
    from crmctl.cli.runtime import Runtime
    from crmctl.models.attributes import Attribute

FEW = 3
"""So few requests are made without a word."""


def update_records(runtime: Runtime, given: Mapping[str, Any], ids_file: str | None, filters: list[str] | None) -> None:
    """Update what a file or conditions name. Raises UsageError without --yes where nobody can be asked, and what ended the job."""
    from crmctl.bulk.usecases.selected_records import Selection
    from crmctl.bulk.usecases.update import UpdateRequest, preview_update, update
    from crmctl.cli.record_queries import one_list

    object_name = given["object_name"]
    conditions, admits = one_list(runtime, object_name, filters)
    selection = Selection(ids_file, conditions, admits=admits, price=_price(runtime, object_name, "update"))
    request = UpdateRequest.taken({**given, "set_values": given.get("set_values") or ()}, object=object_name, selection=selection)
    if runtime.dry_run:
        _show_preview(runtime, preview_update(RuntimeContext(runtime), request))
        return
    check_shown(runtime)
    if not runtime.prompter.can_ask or ids_file == "-":
        runtime.confirm(f"Update records of {object_name}")
    show_result(runtime, update(RuntimeContext(runtime), request, lambda found: approve(runtime, found)))


def _price(runtime: Runtime, object_name: str, verb: str) -> Callable[[int], None]:
    """Who hears what reading the records takes that are to be changed."""
    from crmctl.cli.record_queries import approve_cost
    from crmctl.client.queries.query_context import ReadingCost

    def hear(requests: int) -> None:
        if requests > FEW:
            approve_cost(runtime, ReadingCost(requests, f"reading the records of {object_name} to {verb}"))

    return hear


def approve(runtime: Runtime, found: ChangeForecast) -> None:
    """Show what is about to be changed, and where; ask. Raises as `Runtime.confirm` does."""
    for line in (*changes_text(runtime, found), place_text(runtime)):
        runtime.messages.note(line)
    runtime.confirm(f"Update {counted(found.changes, 'record')} of {found.object}")


def place_text(runtime: Runtime) -> str:
    """Which profile, and where its service is."""
    from urllib.parse import urlsplit

    return f"profile {runtime.settings.profile.value}, {urlsplit(runtime.settings.require_origin()).netloc}"


def changes_text(runtime: Runtime, found: ChangeForecast) -> list[str]:
    """How many records would change, and some of them with what they hold and would hold."""
    same = f", {found.unchanged:,} hold these values already" if found.unchanged else ""
    bad = f", {found.rejected:,} cannot be written" if found.rejected else ""
    lines = [f"{counted(found.rows, 'record')} of {found.object}: {found.changes:,} to update{same}{bad}"]
    lines += [_change_text(runtime, change, found.attributes) for change in found.samples]
    left = found.changes - len(found.samples)
    return [*lines, *([f"  and {left:,} more"] if left > 0 else [])]


def _change_text(runtime: Runtime, change: ValueChange, attributes: Sequence[Attribute]) -> str:
    from crmctl.cli.record_names import record_name, value_text

    assert change.record is not None
    document = change.to_document()
    changed = [
        f"{slug}: {value_text(runtime, value, slug, attributes) or 'nothing'} → "
        f"{value_text(runtime, document['after'].get(slug), slug, attributes) or 'nothing'}"
        for slug, value in document["before"].items()
    ]
    return clean(f"  {record_name(runtime, change.record, attributes)}  {'; '.join(changed)}")


def _show_preview(runtime: Runtime, preview: UpdatePreview) -> None:
    """Raises the error of what would not be updated, after the report."""
    from crmctl.output.progress import duration

    tell_findings(runtime, preview.findings, preview.error)
    document = preview.to_document()
    writes = f"POST {document['path']}, {counted(preview.forecast.requests, 'request')}, about {duration(preview.seconds)}"
    text = "\n".join([*changes_text(runtime, preview.forecast), f"{writes}; nothing was sent"])
    runtime.emitter.emit_result(document, text=text)
    preview.raise_for_error()


def delete_records(runtime: Runtime, given: Mapping[str, Any], ids_file: str | None, filters: list[str] | None) -> None:
    """Delete what a file or conditions name. Raises UsageError without --yes where nobody can be asked, PartialError, or what ended it."""
    from crmctl.bulk.usecases.delete import DeleteRequest, delete, example_deletion
    from crmctl.bulk.usecases.selected_records import Selection
    from crmctl.cli.record_queries import one_list

    object_name, backup = given["object_name"], given["backup"] or not given["no_backup"]
    if not runtime.dry_run:
        runtime.emitter.check_result(example_deletion(object_name))
    if not runtime.prompter.can_ask or ids_file == "-":
        runtime.confirm(f"Delete records of {object_name}")
    if isinstance(backup, str) and Path(backup).exists():
        runtime.confirm(f"Replace {backup}")
    conditions, admits = one_list(runtime, object_name, filters)
    selection = Selection(ids_file, conditions, verb="delete", admits=admits, price=_price(runtime, object_name, "delete"))
    request = DeleteRequest(object_name, selection, backup, given["expect"], given["concurrency"], runtime.dry_run)
    done = delete(RuntimeContext(runtime), request, lambda plan: _approve_deletion(runtime, plan, backup))
    if done.summary is None:
        requests = f"{counted(done.records, 'record')} in {counted(done.requests, 'request')}; nothing was sent"
        document = done.to_document()
        runtime.emitter.emit_result(document, text=f"DELETE {document['path']}\n{requests}")
        return
    show_deletion(runtime, done)


def show_deletion(runtime: Runtime, done: Deletion) -> None:
    """Show what became of a deletion. Raises the error that goes with its exit code, if it has one."""
    summary = done.summary
    assert summary is not None
    absent = f"; {summary.not_found:,} were not there" if summary.not_found else ""
    kept = f"; their copy is {summary.backup}" if summary.backup is not None and summary.deleted else ""
    runtime.done(done.to_document(), f"deleted {counted(summary.deleted, 'record')} of {done.object}{absent}{kept}")
    if summary.backup is not None and summary.deleted:
        runtime.messages.hint(f"crmctl bulk undo {summary.job} creates them again")
    done.raise_for_error()


def show_resumed(runtime: Runtime, result: ImportResult) -> None:
    """Show how a job that was gone on with ended, as its kind does. Raises the error that goes with its exit code, if it has one."""
    from crmctl.bulk.usecases.delete import resumed_deletion

    deletion = resumed_deletion(RuntimeContext(runtime), result)
    if deletion is None:
        show_result(runtime, result)
    else:
        show_deletion(runtime, deletion)


def _approve_deletion(runtime: Runtime, plan: Deletion, backup: bool | str) -> None:
    """Say which records, and where; ask. Raises as `Runtime.confirm` does."""
    from crmctl.cli.record_names import record_name

    names = [clean(f"  {record_name(runtime, record, plan.attributes)}") for record in plan.named]
    left = plan.records - len(names)
    lines = [f"{counted(plan.records, 'record')} of {plan.object}", *names, *([f"  and {left:,} more"] if names and left > 0 else [])]
    if plan.absent:
        lines.append(f"{counted(plan.absent, 'id')} of no record")
    kept = f"a copy goes to {backup}" if isinstance(backup, str) else "a copy is kept" if backup else "no copy is kept"
    for line in (*lines, f"{place_text(runtime)}; {kept}"):
        runtime.messages.note(line)
    runtime.confirm(f"Delete {counted(plan.records, 'record')} of {plan.object}")
