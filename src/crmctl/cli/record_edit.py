"""`records edit`: a record as YAML in the user's editor; what was changed is sent, unless somebody else changed the record meanwhile."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crmctl.cli.bulk_context import WaitingContext
from crmctl.cli.named_records import read_record
from crmctl.cli.record_display import RecordDisplay
from crmctl.errors import CrmctlError, InterruptedByUser, RejectedError, UsageError, reason, storage_error

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.models.record_text import EditedText


HEAD = """# {what}, of {object}. What you change is sent when the editor ends.
# A line that is taken out leaves its value as it is; a value that is taken out is cleared.
"""


def edit_record(runtime: Runtime, object_name: str, reference: str) -> None:
    """Edit one record. Raises InterruptedByUser when the editor failed, UsageError and RejectedError, which name the file that was kept,
    for what cannot be sent."""
    from crmctl.models.record_text import EditedText, shown_data
    from crmctl.output.yaml_document import dump

    command = _editor(runtime.environ)
    attributes = runtime.directory.attributes(object_name, refresh=True)
    record = read_record(runtime, object_name, reference)
    text = HEAD.format(what=record.id, object=object_name) + dump(shown_data(record.data, attributes))
    path = _written(runtime, text, object_name)
    edited = EditedText(text, attributes)
    fields = _changes(runtime, command, path, edited)
    if not fields:
        path.unlink(missing_ok=True)
        runtime.messages.note("nothing was changed, nothing was sent")
        RecordDisplay(runtime, object_name).emit(record.wire)
        return
    from crmctl.bulk.usecases.edit import EditRequest, edit, preview_edit

    request = EditRequest(object_name, record, fields, attributes)
    try:
        if runtime.dry_run:
            preview_edit(WaitingContext(runtime), request)
        done = edit(WaitingContext(runtime), request)
    except CrmctlError as error:
        raise _keeping(error, path) from None
    path.unlink(missing_ok=True)
    RecordDisplay(runtime, object_name).emit(done.record.wire)
    runtime.messages.hint(f"crmctl bulk undo {done.job} puts back what was there")


def _editor(environ: Mapping[str, str]) -> list[str]:
    """What edits a file. Raises UsageError where nothing does."""
    import shutil

    for name in ("VISUAL", "EDITOR"):
        if words := shlex.split(environ.get(name, ""), posix=os.name != "nt"):
            return words
    fallback = next((one for one in ("vi", "nano", "notepad") if shutil.which(one)), None)
    if fallback is None:
        raise UsageError("no editor is set", hint="set EDITOR, for example EDITOR=nano", code="no_editor")
    return [fallback]


def _written(runtime: Runtime, text: str, object_name: str) -> Path:
    """A private file with the text."""
    folder = runtime.paths.state / "edits"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f"{object_name}-", suffix=".yaml", dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise storage_error(error, folder) or UsageError(f"cannot write {folder}: {reason(error)}", code="unwritable_file") from error
    return Path(name)


def _changes(runtime: Runtime, command: list[str], path: Path, edited: EditedText) -> dict[str, Any]:
    """What was changed; on a terminal a text that cannot be read comes back to the editor, with the reason above it."""
    while True:
        _run(command, path)
        try:
            text = path.read_text(encoding="utf-8")
            if not text.strip():
                path.unlink(missing_ok=True)
                raise InterruptedByUser("the text is empty; nothing was sent")
            return edited.changes(text)
        except (UnicodeDecodeError, OSError) as error:
            raise UsageError(f"cannot read {path}: {reason(error)}", code="unreadable_file") from error
        except (UsageError, RejectedError) as error:
            error.message = f"{path}, {error.message}"
            if not runtime.prompter.can_ask:
                raise _keeping(error, path) from None
            runtime.messages.warn(f"{error.message}" + (f"; {error.hint}" if error.hint else ""))
            try:
                runtime.prompter.confirm("Edit it again?", flag="EDITOR")
            except InterruptedByUser:
                raise _keeping(error, path) from None


def _run(command: list[str], path: Path) -> None:
    try:
        code = subprocess.run([*command, str(path)], check=False).returncode  # noqa: S603 - the user's own editor
    except OSError as error:
        path.unlink(missing_ok=True)
        raise UsageError(f"cannot run {command[0]}: {reason(error)}", hint="EDITOR names another editor", code="no_editor") from error
    if code:
        path.unlink(missing_ok=True)
        raise InterruptedByUser(f"{command[0]} ended with {code}; nothing was sent")


def _keeping(error: CrmctlError, path: Path) -> CrmctlError:
    """The error, which also says where the text is."""
    error.hint = f"{error.hint}; your text is in {path}" if error.hint else f"your text is in {path}"
    return error
