"""Turn typed names into objects, attributes and records, and read --data."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from crmctl.errors import DeniedError, NotFoundError, RejectedError, ServiceError, UsageError, reason
from crmctl.models.ids import is_uuid
from crmctl.models.numbers import counted

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.models.jsontext import Json
    from crmctl.models.resources import Attribute, Member, Record
    from crmctl.output.views import View
    from crmctl.values.filters import Condition


T = TypeVar("T")


@contextmanager
def taken_for_id(text: str, problem: str, hint: str) -> Iterator[None]:
    """Explain the error of a service that was asked for a text that is no id. Only 404 is certain to be about the id."""
    try:
        yield
    except (NotFoundError, RejectedError) as error:
        if not is_uuid(text) and error.status in (400, 404, 422):
            error.message, error.hint = problem if error.status == 404 else error.message, hint
        raise


def on_object(runtime: Runtime, text: str, call: Callable[[str], T]) -> T:
    """Return `call(object id)` for a slug or id. An id needs no look-up, so that keys without objects:read can use it."""
    return runtime.directory.with_object(runtime.shown_ids.whole(text), call)


def on_attribute(runtime: Runtime, text: str, attribute: str, call: Callable[[str, str], T]) -> T:
    """Return `call(object id, attribute id)` for a slug or id of an attribute."""

    attribute = runtime.shown_ids.whole(attribute)

    def resolved(target: str) -> T:
        return call(target, attribute if is_uuid(attribute) else runtime.directory.attribute(target, attribute).id)

    return on_object(runtime, text, resolved)


def records_at_stake(runtime: Runtime, text: str) -> str:
    """Return the records that a deletion affects, for its prompt: `its 12,345 records`."""
    total = on_object(runtime, text, lambda target: runtime.crm.list_records(target, limit=1)).total
    return "all its records" if total is None else f"its {counted(total, 'record')}"


def known_attributes(runtime: Runtime, text: str) -> list[Attribute] | None:
    """Return the object's attributes, or None if the key may not read them."""
    from crmctl.client import directory

    return directory.known_attributes(runtime.directory, text, runtime.messages.detail)


def record_columns(runtime: Runtime, text: str, sample: Json | None) -> View:
    """Return the view of the object's records. If attributes cannot be read, the sample record gives the columns."""
    from crmctl.models.resources import Attribute
    from crmctl.output.views import record_view

    attributes = known_attributes(runtime, text) if runtime.needs_columns else []
    if attributes is None:
        data = (sample or {}).get("data")
        attributes = [Attribute(id=slug, slug=slug) for slug in data] if isinstance(data, dict) else []
    return record_view(attributes, is_spread=runtime.shape == "columns")


def check_columns(runtime: Runtime, text: str) -> None:
    """Raise UsageError for an unknown --fields before a write."""
    if runtime.flags.get("fields"):
        runtime.emitter.check_fields(record_columns(runtime, text, None))


def plain_fields(runtime: Runtime, values: Json, assignments: Sequence[str] | None, data: str | None) -> Json:
    """Return a request body: --data, overridden by --set, overridden by the other options.

    Raises UsageError if it is empty.
    """
    fields = read_json_object(runtime, data) if data is not None else {}
    for text in assignments or ():
        name, value, is_json = named_value("--set", text, "FIELD=VALUE")
        is_truth = not is_json and name.startswith("is") and value in ("true", "false")
        fields[name] = value == "true" if is_truth else value
    fields |= {name: value for name, value in values.items() if value is not None}
    if not fields:
        raise UsageError("nothing to write", hint="--help shows the options that change something")
    return fields


def named_value(option: str, text: str, form: str = "NAME=VALUE", hint: str | None = None) -> tuple[str, Any, bool]:
    """Return name and value of `name=text` or `name:=JSON`, and whether it was JSON. Raises UsageError."""
    from crmctl.models import jsontext

    name, sign, value = text.partition("=")
    if not sign or not name.strip(":"):
        raise UsageError(f"{option} {text!r} is not {form}", hint=hint)
    if not name.endswith(":"):
        return name, value, False
    try:
        return name[:-1], jsontext.loads(value, unique_keys=True), True
    except ValueError as error:
        problem = f"{option} {text!r}: what follows := is not JSON: {reason(error)}"
        raise UsageError(problem, hint=f"{option} {name[:-1]}=... takes text") from error


def read_json_object(runtime: Runtime, argument: str) -> Json:
    """Return a JSON object given as text, @FILE, or - for stdin. Raises UsageError, and RejectedError for an invalid number."""
    from crmctl.models import jsontext
    from crmctl.values.composites import check_fields

    if argument == "@":
        raise UsageError("--data @ names no file", hint="--data @FILE reads a file, --data - reads stdin")
    source = "stdin" if argument == "-" else argument[1:] if argument.startswith("@") else "--data"
    try:
        text = read_input(runtime, argument if argument == "-" else argument[1:]) if source != "--data" else argument
        value = jsontext.loads(text, unique_keys=True)
    except ValueError as error:
        raise UsageError(
            f"{source} is not JSON: {reason(error)}", hint='--data takes a JSON object, for example \'{"email": "ada@acme.com"}\''
        ) from error
    if not isinstance(value, dict):
        raise UsageError(
            f"{source} must be a JSON object, not {jsontext.TYPE_NAMES[type(value).__name__]}", hint="write {...}, one record's fields"
        )
    check_fields(value)
    return value


def read_input(runtime: Runtime, name: str) -> bytes:
    """Return the bytes of a file, or of stdin for -. Raises UsageError."""
    try:
        if name == "-":
            stdin = runtime.streams.stdin
            return bytes(stdin.buffer.read()) if hasattr(stdin, "buffer") else stdin.read().encode()
        return Path(name).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {name}: {reason(error)}", code="unreadable_file") from error


def read_json_bytes(runtime: Runtime, name: str, *, is_object: bool = False) -> bytes:
    """Return the bytes of a JSON file, or of stdin for -, unchanged. Raises UsageError for other content; `is_object` wants an object."""
    from crmctl.models import jsontext

    content, source = read_input(runtime, name), "stdin" if name == "-" else name
    try:
        value = jsontext.loads(content)
    except ValueError as error:
        raise UsageError(f"{source} is not JSON: {reason(error)}", code="unreadable_file") from error
    if is_object and not isinstance(value, dict):
        raise UsageError(f"{source} holds no JSON object")
    return content


SHOWN_IDS = 10


class NamedRecord(NamedTuple):
    """A record by id; `record` is None if finding it needed no request."""

    id: str
    record: Record | None


def read_before_question(runtime: Runtime, read: Callable[[], T]) -> T | None:
    """Return `read()` if a question follows, so that a missing target is an error before it; None if the key may not read it."""
    if not runtime.asks:
        return None
    try:
        return read()
    except DeniedError:
        return None


def target_text(runtime: Runtime, object_name: str, named: NamedRecord, text: str) -> str:
    """Return id and name of a record for a prompt. Raises NotFoundError if a prompt follows and the record is missing."""
    if named.record is not None:
        return f"{named.id} ({text})"
    record = read_before_question(runtime, lambda: read_record(runtime, object_name, text))
    if record is None:
        return named.id
    name = record_name(runtime, record, known_attributes(runtime, object_name) or ())
    return f"{named.id} ({name})" if name != named.id else named.id


def find_record(runtime: Runtime, object_name: str, text: str) -> NamedRecord:
    """Return the record named by an id, or by `attr=value` with one request.

    Raises NotFoundError for no match, RejectedError with the ids of several, UsageError for other texts.
    """
    condition = _condition(text)
    if condition is None:
        return NamedRecord(runtime.shown_ids.whole(text), None)
    record = _only(runtime, object_name, text, condition)
    return NamedRecord(record.id, record)


def read_record(runtime: Runtime, object_name: str, text: str) -> Record:
    """Read a record with one request. Raises like find_record, and the errors of the request."""
    record = find_record(runtime, object_name, text)
    return record.record or on_record(runtime, object_name, record, lambda target: runtime.crm.get_record(target, record.id))


def on_record(runtime: Runtime, object_name: str, named: NamedRecord, call: Callable[[str], T]) -> T:
    """Return `call(object id)`, which asks for the named record."""
    if named.record is not None:
        return on_object(runtime, object_name, call)
    hint = f"a word is no id: name the record by attr=value, or crmctl records search {object_name} {shlex.quote(named.id)}"
    with taken_for_id(named.id, f"there is no record {named.id!r} of {object_name}", hint):
        return on_object(runtime, object_name, call)


def _condition(text: str) -> Condition | None:
    """Return the condition in a text, None for an id. Raises UsageError for a condition that cannot name one record."""
    from crmctl.values.filters import parse_condition
    from crmctl.values.operators import Operator

    if not any(sign in text for sign in "=~<>[ "):
        if "@" in text:
            raise UsageError(f"{text!r} is no id", hint=f"a record is named by its id, or by attr=value: email={text}")
        return None
    condition = parse_condition(text)
    if condition.operator is not Operator.EQUALS or not condition.value:
        raise UsageError(f"{text!r} names no record", hint="a record is named by its id, or by attr=value: email=ada@acme.com")
    return condition


def _refuse_stray(runtime: Runtime, object_name: str, condition: Condition, record: Record) -> None:
    """Raise ServiceError if the record has another value: some services ignore filters."""
    from crmctl.client.query.record_query import stray_finder
    from crmctl.values.conditions import keys_of, text_of
    from crmctl.values.folded_text import fold

    attribute = next((attribute for attribute in known_attributes(runtime, object_name) or () if attribute.slug == condition.slug), None)
    if attribute is None:
        return
    value = record.data.get(condition.slug)
    if attribute.type in ("text", "email", "select"):
        has_value = fold(condition.value.strip()) in [key.strip() for key in keys_of(attribute, value)]
    else:
        has_value = stray_finder([attribute], [condition])(record) is None
    if not has_value:
        raise ServiceError(
            f"the service was asked for {condition.slug} {condition.value!r} and answered with {text_of(attribute, value)!r}",
            hint="name the record by its id",
            code="filter_not_heeded",
        )


def _only(runtime: Runtime, object_name: str, text: str, condition: Condition) -> Record:
    from crmctl.cli.record_queries import query_context
    from crmctl.client.query.clauses import FilterReader
    from crmctl.client.query.record_query import RecordQuery
    from crmctl.models.resources import PAGE_LIMIT

    context = query_context(runtime)
    query = RecordQuery(context, object_name, FilterReader(context, object_name).read([text]))
    page = next(query.pages(PAGE_LIMIT))
    strays = [record for record in page.items if not query.meets(record)]
    if len(page.items) == 1 or strays:
        _refuse_stray(runtime, object_name, condition, [*strays, *page.items][0])
        return page.items[0]
    if not page.items:
        raise NotFoundError(
            f"no record of {object_name} has {text}",
            hint=f"crmctl records list {object_name} --filter '{condition.slug}~{condition.value}' finds it as a part of {condition.slug}",
        )
    ids = [record.id for record in page.items]
    count = max(page.total or 0, len(ids))
    more = f" and {count - SHOWN_IDS:,} more" if count > SHOWN_IDS else ""
    raise RejectedError(
        f"{count:,} records of {object_name} have {text}: {', '.join(ids[:SHOWN_IDS])}{more}",
        hint="name the record by its id",
        code="ambiguous_record",
        details={"ids": ids},
    )


NAMING = ("name", "title", "full_name", "subject")
TELLING = ("email", "domain", "email_address", "phone")


def record_name(runtime: Runtime, record: Record, attributes: Sequence[Attribute]) -> str:
    """Return `Ada Lovelace (ada@acme.com)`, or the id if the record has no name."""
    name, telling = (
        next((text for slug in slugs if (text := value_text(runtime, record.data.get(slug), slug, attributes))), "")
        for slugs in (NAMING, TELLING)
    )
    return f"{name} ({telling})" if name and telling else name or telling or record.id


def value_text(runtime: Runtime, value: Any, slug: str, attributes: Sequence[Attribute]) -> str:
    """Return a value as a table shows it."""
    from crmctl.output.value_text import shown
    from crmctl.output.views import attribute_kind

    attribute = next((attribute for attribute in attributes if attribute.slug == slug), None)
    return shown(value, attribute_kind(attribute) if attribute is not None else "text", runtime.emitter.rendering())


def find_member(runtime: Runtime, members: Sequence[Member], who: str) -> Member:
    """Return the member with this id, user id, email address in any case, or exact name. Raises NotFoundError, UsageError for several."""
    from crmctl.client.directory import find_by_name
    from crmctl.models.resources import Item

    by_id = {member.id: member for member in members} | {member.user.id: member for member in members if member.user}
    if (member := by_id.get(runtime.shown_ids.whole(who))) is not None:
        return member
    is_address = "@" in who
    users = [(member.id, member.user) for member in members if member.user]
    named = [{"id": identity, "name": (user.email or "").casefold() if is_address else user.name} for identity, user in users]
    return by_id[find_by_name([Item.parse(item) for item in named], "members", who.casefold() if is_address else who).id]
