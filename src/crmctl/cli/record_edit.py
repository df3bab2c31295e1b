"""`records edit`: a record as YAML in the user's editor; what was changed is sent, unless somebody else changed the record meanwhile."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crmctl.cli.named_records import read_record
from crmctl.cli.record_display import RecordDisplay
from crmctl.cli.targets import on_object
from crmctl.errors import CrmctlError, InterruptedByUser, RejectedError, UsageError, reason, storage_error

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.models.record_text import EditedText
    from crmctl.models.records import Record


CHANGED = 412
"""The status of a write whose version is no longer there."""

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
    try:
        now, version = on_object(runtime, object_name, lambda target: runtime.crm.get_version(target, record.id))
        _refuse_changed(record, now, object_name)
        done = _write(runtime, object_name, record, fields, version)
    except CrmctlError as error:
        raise _keeping(error, path) from None
    path.unlink(missing_ok=True)
    RecordDisplay(runtime, object_name).emit(done.wire)


def _write(runtime: Runtime, object_name: str, record: Record, fields: dict[str, Any], version: str | None) -> Record:
    """Write only over the version that was compared, where the service knows versions."""
    try:
        return on_object(runtime, object_name, lambda target: runtime.crm.update_record(target, record.id, fields, version=version))
    except RejectedError as error:
        if error.status != CHANGED or version is None:
            raise
        now, _ = on_object(runtime, object_name, lambda target: runtime.crm.get_version(target, record.id))
        if all(now.data.get(slug) == value for slug, value in fields.items()):
            return now  # written by a try whose answer was lost
        _refuse_changed(record, now, object_name, "the record does not hold all that you wrote")
        raise


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


def _refuse_changed(shown: Record, now: Record, object_name: str, outcome: str = "nothing was sent") -> None:
    """Raises RejectedError when somebody changed the record while it was edited."""
    changed = [slug for slug in {**shown.data, **now.data} if shown.data.get(slug) != now.data.get(slug)]
    if changed or shown.updated_at != now.updated_at:
        what = f": {', '.join(changed)}" if changed else ""
        raise RejectedError(
            f"the record was changed by somebody while you edited it{what}; {outcome}",
            hint=f"crmctl records edit {object_name} {shown.id} shows it as it is now",
            code="changed_meanwhile",
        )


def _keeping(error: CrmctlError, path: Path) -> CrmctlError:
    """The error, which also says where the text is."""
    error.hint = f"{error.hint}; your text is in {path}" if error.hint else f"your text is in {path}"
    return error
