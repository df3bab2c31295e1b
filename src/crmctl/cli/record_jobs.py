"""`records edit` and `records merge`: change a record, or two, as a job that `bulk undo` reverts."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from crmctl.cli.bulk_output import in_interactive_lane, show, show_merges
from crmctl.cli.preview import WouldSend
from crmctl.cli.record_lists import RecordDisplay, value_texts
from crmctl.cli.targets import NamedRecord, find_record, read_record, record_name
from crmctl.errors import CrmctlError, InterruptedByUser, RejectedError, UsageError, reason, storage_error

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.models.jsontext import Json
    from crmctl.models.resources import Attribute, Record


NOT_THE_TEXT = ("changed_meanwhile", "unreadable_file")
"""Errors that editing the text again cannot fix."""

HEAD = """# {what}, of {object}. crmctl sends your changes when the editor closes.
# Removing a line leaves its value unchanged; removing a value clears it.
"""


def edit_record(runtime: Runtime, object_name: str, reference: str) -> None:
    """Edit one record as YAML, and send the changes unless another client changed it meanwhile.

    Raises InterruptedByUser if the editor fails, UsageError and RejectedError, which name the kept file, for an invalid text.
    """
    from crmctl.values.yaml_text import dumps, shown_data

    command = _editor(runtime)
    attributes = runtime.directory.attributes(object_name, refresh=True)
    record = read_record(runtime, object_name, reference)
    text = HEAD.format(what=record.id, object=object_name) + dumps(shown_data(record.data, attributes))
    path = _written(runtime, text, object_name)
    while True:
        _run(command, path, text)
        try:
            fields = _changes(path, text, attributes)
            if not fields:
                path.unlink(missing_ok=True)
                runtime.messages.note("nothing was changed, nothing was sent")
                RecordDisplay(runtime, object_name).emit(record.wire)
                return
            from crmctl.plan.edit import EditRequest, edit, preview_edit

            context, request = in_interactive_lane(runtime), EditRequest(object_name, record, fields, attributes)
            if runtime.dry_run:
                preview_edit(context, request)
            done = edit(context, request)
            path.unlink(missing_ok=True)
            break
        except WouldSend:
            path.unlink(missing_ok=True)
            raise
        except (UsageError, RejectedError) as error:
            _ask_again(runtime, error, path)
        except CrmctlError as error:
            _keep_and_raise(error, path)
        except KeyboardInterrupt:
            _keep_and_raise(InterruptedByUser("interrupted"), path)
    RecordDisplay(runtime, object_name).emit(done.record.wire)
    runtime.messages.hint(f"crmctl bulk undo {done.job} puts back what was there")


def _editor(runtime: Runtime) -> list[str]:
    """Return the command of the editor. Raises UsageError if there is none, or no terminal for the usual one."""
    import shutil

    for name in ("VISUAL", "EDITOR"):
        if words := shlex.split(runtime.environ.get(name, ""), posix=os.name != "nt"):
            return words
    fallback = next((name for name in ("vi", "nano", "notepad") if shutil.which(name)), None)
    if fallback is None or not runtime.prompter.can_ask:
        raise UsageError("no editor is set", hint="set EDITOR, for example EDITOR=nano", code="no_editor")
    return [fallback]


def _written(runtime: Runtime, text: str, object_name: str) -> Path:
    """Write the text to a private file and return its path."""
    folder = runtime.paths.state / "edits"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f"{object_name}-", suffix=".yaml", dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise storage_error(error, folder, UsageError(f"cannot write {folder}: {reason(error)}", code="unwritable_file")) from error
    return Path(name)


def _changes(path: Path, before: str, attributes: Sequence[Attribute]) -> Json:
    """Return the changed fields. Raises UsageError and RejectedError for an unreadable text."""
    from crmctl.values.yaml_text import edited_values

    try:
        text = path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        raise UsageError(f"cannot read {path}: {reason(error)}", code="unreadable_file") from error
    if not text.strip():
        path.unlink(missing_ok=True)
        raise InterruptedByUser("the text is empty; nothing was sent")
    try:
        return edited_values(before, text, attributes)
    except (UsageError, RejectedError) as error:
        error.message = f"{path}, {error.message}"
        raise


def _ask_again(runtime: Runtime, error: CrmctlError, path: Path) -> None:
    """Show the error and offer to edit again. Raises the error off a terminal or if the user declines."""
    if not runtime.prompter.can_ask or error.outcome_unknown or error.code in NOT_THE_TEXT:
        _keep_and_raise(error, path)
    runtime.messages.warn(f"{error.message}" + (f"; {error.hint}" if error.hint else ""))
    try:
        runtime.prompter.confirm("Edit it again?", flag="EDITOR")
    except InterruptedByUser:
        _keep_and_raise(error, path)


def _run(command: list[str], path: Path, shown: str) -> None:
    """Run the editor, which handles Ctrl-C itself. Raises InterruptedByUser if it fails."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        code = subprocess.run([*command, str(path)], check=False).returncode  # noqa: S603 - the user's own editor
    except OSError as error:
        failed: CrmctlError = UsageError(f"cannot run {command[0]}: {reason(error)}", hint="EDITOR names another editor", code="no_editor")
        _keep_and_raise(failed, path, shown)
    finally:
        signal.signal(signal.SIGINT, before)
    if code:
        _keep_and_raise(InterruptedByUser(f"{command[0]} ended with {code}; nothing was sent"), path, shown)


def _keep_and_raise(error: CrmctlError, path: Path, shown: str | None = None) -> NoReturn:
    """Raise the error with a hint at the kept text; delete the file if the text is still as `shown`."""
    try:
        if shown is not None and path.read_text(encoding="utf-8") == shown:
            path.unlink()
    except (UnicodeDecodeError, OSError):
        pass
    if path.exists():
        error.hint = f"{error.hint}; your text is in {path}" if error.hint else f"your text is in {path}"
    raise error from None


def merge_records(runtime: Runtime, object_name: str, names: Sequence[str], keep: str | None, assignments: Sequence[str] | None) -> None:
    """Show two records and the merged one, ask, and merge them. Raises UsageError if both names mean one record."""
    from crmctl.cli.fields import read_fields
    from crmctl.plan import merge_records as merging
    from crmctl.plan.import_records import ApplyRequest

    records = {record.id: record for record in (read_record(runtime, object_name, name) for name in names)}
    if len(records) < 2:
        raise UsageError(f"{names[0]} and {names[1]} are the same record", hint="name two records")
    survivor = find_record(runtime, object_name, keep).id if keep is not None else None
    if survivor is not None and survivor not in records:
        raise UsageError(f"--keep: {keep} is neither of the two records", hint=f"--keep {next(iter(records))}")
    attributes = runtime.directory.attributes(object_name)
    merge = merging.propose_merge(attributes, list(records.values()), survivor)
    kept = records[merge.survivor]
    own = read_fields(runtime, object_name, assignments, None, record=NamedRecord(kept.id, kept)) if assignments else {}
    context = in_interactive_lane(runtime)
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "merge.jsonl"
        merge = merging.write_one_merge(context, object_name, merge, own, plan)
        request = ApplyRequest(file=str(plan))
        [loser] = (records[record_id] for record_id in merge.losers)
        lines = _merge_lines(runtime, object_name, (kept, loser), {slug: value.value for slug, value in merge.values.items()})
        if runtime.dry_run:
            preview = merging.preview_merges(context, request)
            show(runtime, preview.to_document(), "\n".join([*lines, "nothing was sent"]))
            return
        runtime.emitter.check_result(merging.example_merge())
        for line in lines if runtime.asks else ():
            runtime.messages.note(line)
        first, second = (record_name(runtime, record, attributes) for record in (loser, kept))
        question = f"Merge {first} into {second}, and delete {loser.id}"
        show_merges(runtime, merging.merge_records(context, request, lambda _: runtime.confirm(question)))


def _merge_lines(runtime: Runtime, object_name: str, records: Sequence[Record], merged: Json) -> list[str]:
    """Return a table of both records and the merged one."""
    from crmctl.output.table import aligned, short_ids

    columns = value_texts(runtime, object_name, [*(record.data for record in records), merged])
    ids = short_ids([record.id for record in records], runtime.emitter.rendering())
    rows = [("", "KEPT", "MERGED INTO IT", "RESULT"), ("id", *ids, ids[0])]
    return aligned([*rows, *((slug, *(texts.get(slug, "") for texts in columns)) for slug in merged)])
