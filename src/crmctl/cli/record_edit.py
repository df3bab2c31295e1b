"""`records edit`: a record as YAML in the user's editor; what was changed is sent, unless somebody else changed the record meanwhile."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crmctl.cli.bulk_context import WaitingContext
from crmctl.cli.named_records import read_record
from crmctl.cli.preview import WouldSend
from crmctl.cli.record_display import RecordDisplay
from crmctl.errors import CrmctlError, InterruptedByUser, RejectedError, UsageError, reason, storage_error

if TYPE_CHECKING:
    from crmctl.bulk.usecases.edit import Edited, EditRequest
    from crmctl.cli.runtime import Runtime
    from crmctl.models.record_text import EditedText

NOT_THE_TEXT = ("changed_meanwhile", "unreadable_file")
"""Errors that another text does not mend."""

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
    while True:
        _run(command, path, text)
        try:
            fields = _changes(path, edited)
            if not fields:
                path.unlink(missing_ok=True)
                runtime.messages.note("nothing was changed, nothing was sent")
                RecordDisplay(runtime, object_name).emit(record.wire)
                return
            from crmctl.bulk.usecases.edit import EditRequest

            done = _sent(runtime, EditRequest(object_name, record, fields, attributes, path))
            break
        except WouldSend:
            path.unlink(missing_ok=True)
            raise
        except (UsageError, RejectedError) as error:
            _ask_again(runtime, error, path)
        except CrmctlError as error:
            raise _keeping(error, path) from None
        except KeyboardInterrupt:
            raise _keeping(InterruptedByUser("interrupted"), path) from None
    RecordDisplay(runtime, object_name).emit(done.record.wire)
    runtime.messages.hint(f"crmctl bulk undo {done.job} puts back what was there")


def _sent(runtime: Runtime, request: EditRequest) -> Edited:
    from crmctl.bulk.usecases.edit import edit, preview_edit

    context = WaitingContext(runtime)
    if runtime.dry_run:
        preview_edit(context, request)
    return edit(context, request)


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


def _changes(path: Path, edited: EditedText) -> dict[str, Any]:
    """What was changed. Raises UsageError and RejectedError for a text that cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        raise UsageError(f"cannot read {path}: {reason(error)}", code="unreadable_file") from error
    if not text.strip():
        path.unlink(missing_ok=True)
        raise InterruptedByUser("the text is empty; nothing was sent")
    try:
        return edited.changes(text)
    except (UsageError, RejectedError) as error:
        error.message = f"{path}, {error.message}"
        raise


def _ask_again(runtime: Runtime, error: CrmctlError, path: Path) -> None:
    """On a terminal what cannot be sent, or is refused, comes back to the editor, with the reason above it. Raises the error elsewhere."""
    if not runtime.prompter.can_ask or error.outcome_unknown or error.code in NOT_THE_TEXT:
        raise _keeping(error, path) from None
    runtime.messages.warn(f"{error.message}" + (f"; {error.hint}" if error.hint else ""))
    try:
        runtime.prompter.confirm("Edit it again?", flag="EDITOR")
    except InterruptedByUser:
        raise _keeping(error, path) from None


def _run(command: list[str], path: Path, shown: str) -> None:
    """Until the editor ends; a Ctrl-C meanwhile is for the editor. Raises InterruptedByUser when it fails."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        code = subprocess.run([*command, str(path)], check=False).returncode  # noqa: S603 - the user's own editor
    except OSError as error:
        failed: CrmctlError = UsageError(f"cannot run {command[0]}: {reason(error)}", hint="EDITOR names another editor", code="no_editor")
        raise _keeping(failed, path, shown) from error
    finally:
        signal.signal(signal.SIGINT, before)
    if code:
        raise _keeping(InterruptedByUser(f"{command[0]} ended with {code}; nothing was sent"), path, shown)


def _keeping(error: CrmctlError, path: Path, shown: str | None = None) -> CrmctlError:
    """The error, which also says where the text is; one that is still as it was `shown` is not kept, and an empty one is gone already."""
    try:
        if shown is not None and path.read_text(encoding="utf-8") == shown:
            path.unlink()
    except (UnicodeDecodeError, OSError):
        pass
    if path.exists():
        error.hint = f"{error.hint}; your text is in {path}" if error.hint else f"your text is in {path}"
    return error
