"""From what a person typed to what the service needs: objects, attributes, records' fields and columns. Shared by the commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from crmctl.cli.counted_words import counted
from crmctl.errors import UsageError, reason

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.models.attributes import Attribute
    from crmctl.output.views import View

T = TypeVar("T")


def on_object(runtime: Runtime, text: str, call: Callable[[str], T]) -> T:
    """`call(object id)` for an object given by slug or id. An id is used as it is: a key without objects:read can still work with it."""
    return runtime.directory.with_object(text, call)


def on_attribute(runtime: Runtime, text: str, attribute: str, call: Callable[[str, str], T]) -> T:
    """`call(object id, attribute id)` for an attribute given by slug or id."""

    from crmctl.models.ids import is_uuid

    def resolved(target: str) -> T:
        return call(target, attribute if is_uuid(attribute) else runtime.directory.attribute(target, attribute).id)

    return on_object(runtime, text, resolved)


def records_at_stake(runtime: Runtime, text: str) -> str:
    """How many records a deletion concerns, for the question before it: `its 12,345 records`."""
    total = on_object(runtime, text, lambda target: runtime.crm.list_records(target, limit=1)).total
    return "all its records" if total is None else f"its {counted(total, 'record')}"


def known_attributes(runtime: Runtime, text: str) -> list[Attribute] | None:
    """The object's attributes, or None when the key may not read them."""
    from crmctl.client import record_lists

    return record_lists.known_attributes(runtime.directory, text, runtime.messages.detail)


def record_columns(runtime: Runtime, text: str, sample: dict[str, Any] | None) -> View:
    """How this object's records are shown. JSON needs no columns; where attributes cannot be read, the sample record stands for them."""
    from crmctl.models.attributes import Attribute
    from crmctl.output.views import record_view

    attributes = known_attributes(runtime, text) if runtime.needs_columns else []
    if attributes is None:
        data = (sample or {}).get("data")
        attributes = [Attribute(id=slug, slug=slug) for slug in data] if isinstance(data, dict) else []
    return record_view(attributes)


def check_columns(runtime: Runtime, text: str) -> None:
    """Refuse an unknown --fields before a record is written. Raises UsageError."""
    if runtime.flags.get("fields"):
        runtime.emitter.check_fields(record_columns(runtime, text, None))


def plain_fields(runtime: Runtime, given: dict[str, Any], assignments: Sequence[str] | None, data: str | None) -> dict[str, Any]:
    """The body of a request about an object or an attribute: --data, over it --set, over it the options that were given.

    Raises UsageError when there is nothing at all to send.
    """
    fields = read_json_object(runtime, data) if data is not None else {}
    for text in assignments or ():
        name, value = _plain_assignment(text)
        fields[name] = value
    fields |= {name: value for name, value in given.items() if value is not None}
    if not fields:
        raise UsageError("nothing to write", hint="--help shows the options that change something")
    return fields


def _plain_assignment(text: str) -> tuple[str, Any]:
    from crmctl.models import jsontext

    name, sign, value = text.partition("=")
    if not sign or not name.strip(":"):
        raise UsageError(f"--set {text!r} is not FIELD=VALUE")
    if not name.endswith(":"):
        return name, value == "true" if name.startswith("is") and value in ("true", "false") else value
    try:
        return name[:-1], jsontext.loads(value, unique_keys=True)
    except ValueError as error:
        raise UsageError(f"--set {text!r}: what follows := is not JSON: {reason(error)}") from error


def read_json_object(runtime: Runtime, given: str) -> dict[str, Any]:
    """A JSON object given as text, as @FILE, or as - for stdin. Raises UsageError, and RejectedError for a number that cannot be sent."""
    from crmctl.models import jsontext
    from crmctl.models.assignments import check_fields

    source = "stdin" if given == "-" else given[1:] if given.startswith("@") else "--data"
    try:
        text = read_input(runtime, given if given == "-" else given[1:]) if source != "--data" else given
        value = jsontext.loads(text, unique_keys=True)
    except ValueError as error:
        raise UsageError(
            f"{source} is not JSON: {reason(error)}", hint='--data takes a JSON object, for example \'{"email": "ada@acme.com"}\''
        ) from error
    if not isinstance(value, dict):
        raise UsageError(f"{source} must be a JSON object, not {type(value).__name__}", hint="write {...}, one record's fields")
    check_fields(value)
    return value


def read_input(runtime: Runtime, name: str) -> bytes:
    """The bytes of a file the user named, or of stdin for -. Raises UsageError."""
    try:
        if name == "-":
            stdin = runtime.streams.stdin
            return bytes(stdin.buffer.read()) if hasattr(stdin, "buffer") else stdin.read().encode()
        return Path(name).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {name}: {reason(error)}", code="unreadable_file") from error
