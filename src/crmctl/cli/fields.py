"""Build the fields of a request from options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from crmctl.cli.targets import find_member, find_record, known_attributes, named_value, on_object, on_record, read_json_object
from crmctl.errors import ForbiddenError, NotFoundError, RejectedError, UsageError
from crmctl.models import jsontext
from crmctl.models.ids import is_uuid
from crmctl.models.jsontext import Json

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.cli.targets import NamedRecord
    from crmctl.models.resources import Attribute, Member
    from crmctl.values.composites import Form, Given


SAMPLED = 20
"""Existing records that crmctl reads to learn the form of values."""


def read_fields(
    runtime: Runtime,
    text: str,
    assignments: Sequence[str] | None,
    data: str | None,
    *,
    currency: str | None = None,
    record: NamedRecord | None = None,
) -> Json:
    """Return the fields of --data, overridden by --set; other parts of the `record`'s values stay unchanged.

    Raises UsageError if neither is given or readable, RejectedError for an invalid value.
    """
    from crmctl.values.composites import Given, Merger, currency_code, lacks_part, parse_assignments, without_bare_amounts

    default_currency = currency_code(currency)
    check_given(assignments, data)
    assignments = with_reference_ids(runtime, text, assignments)
    document = read_json_object(runtime, data) if data is not None else {}
    shown = ShownRecords(runtime, text, record)
    assigned = Given({}, {})
    attributes: Sequence[Attribute] = ()
    if assignments:
        attributes = runtime.directory.attributes(text)
        assigned = parse_assignments(assignments, attributes, form_of=shown.form)
    elif any(isinstance(value, int | float) and not isinstance(value, bool) for value in document.values()):
        attributes = known_attributes(runtime, text) or ()
    _warn_of_commas(runtime, assigned, attributes)
    assigned = Given(document | assigned.data, assigned.parts, assigned.as_written)
    by_slug = {attribute.slug: attribute for attribute in attributes}
    others = {slug: value for slug, value in assigned.data.items() if slug not in assigned.parts}
    split = without_bare_amounts(Given(others, {}, assigned.as_written), attributes)
    parts = assigned.parts | split.parts
    if not parts:
        return assigned.data
    base = {slug: assigned.data[slug] if slug in assigned.parts and slug in assigned.data else shown.current.get(slug) for slug in parts}
    forms = {
        slug: shown.form(by_slug[slug]) for slug, said in parts.items() if not base[slug] or lacks_part(by_slug[slug], said, base[slug])
    }
    return assigned.data | Merger(by_slug, forms, default_currency).merge_all(parts, base)


def _warn_of_commas(runtime: Runtime, assigned: Given, attributes: Sequence[Attribute]) -> None:
    """Warn of list items with a comma, unless they were given as JSON: people may have meant several items."""
    for slug in [attribute.slug for attribute in attributes if attribute.holds_items and attribute.slug not in assigned.as_written]:
        values = [assigned.data.get(slug), *assigned.parts.get(slug, {}).values()]
        for item in (item for value in values if isinstance(value, list) for item in value if isinstance(item, str) and "," in item):
            runtime.messages.warn(f"{slug}: {item!r} is one item; a semicolon separates items: {slug}=a;b")


def with_reference_ids(runtime: Runtime, object_name: str, assignments: Sequence[str] | None) -> list[str]:
    """Return the assignments with the id in `company.domain=acme.com`, read with one request each. Raises like `find_record`."""
    from crmctl.models.resources import AttributeType

    texts = list(assignments or ())
    if not any("." in text.partition("=")[0] for text in texts):
        return texts
    references = {
        attribute.slug: attribute.target_object_id
        for attribute in runtime.directory.attributes(object_name)
        if attribute.type == AttributeType.REFERENCE and attribute.target_object_id
    }

    def with_id(text: str) -> str:
        slug, dot, condition = text.partition(".")
        if not dot or slug not in references or condition.partition("=")[0].endswith(":"):
            return text
        parent = runtime.directory.object(references[slug])
        return f"{slug}={find_record(runtime, parent.slug or parent.id, condition).id}"

    return [with_id(text) for text in texts]


def check_given(assignments: Sequence[str] | None, data: str | None) -> None:
    """Raise UsageError if there is nothing to write."""
    if not assignments and data is None:
        raise UsageError("nothing to write", hint="give fields with --set slug=value or --data '{...}'")


class ShownRecords:
    """The record to change and a few others, to learn the form of values; each is read once, on demand."""

    def __init__(self, runtime: Runtime, text: str, record: NamedRecord | None) -> None:
        self._runtime, self._text, self._record = runtime, text, record

    @cached_property
    def current(self) -> Json:
        """Data of the record to change; empty for a new one."""
        if self._record is None:
            return {}
        named = self._record
        read = named.record or on_record(self._runtime, self._text, named, lambda target: self._runtime.crm.get_record(target, named.id))
        return read.data

    @cached_property
    def others(self) -> list[Json]:
        """Data of some existing records; empty if the key may not read them."""
        try:
            page = on_object(self._runtime, self._text, lambda target: self._runtime.crm.list_records(target, limit=SAMPLED))
        except ForbiddenError:
            return []
        return [record.data for record in page.items]

    def form(self, attribute: Attribute) -> Form:
        """Return the form in which existing records hold an attribute."""
        from crmctl.values.composites import learn_form

        return learn_form(attribute, [self.current, *self.others])


T = TypeVar("T")


def read_activity_fields(
    runtime: Runtime,
    data: str | None,
    *,
    title: str | None,
    summary: str | None,
    date: str | None,
    participants: Sequence[str] | None,
) -> Json:
    """Return the fields of --data, overridden by the other options, without links. Raises UsageError, NotFoundError."""
    from crmctl.values.moments import timestamp

    fields = read_json_object(runtime, data) if data is not None else {}
    moment = timestamp(date, runtime.clock.now()) if date is not None else None
    values = {"title": title, "summary": summary, "activityDate": moment}
    fields |= {name: value for name, value in values.items() if value is not None}
    if participants:
        members = cache(runtime.crm.list_members)
        fields["participants"] = [_participant(runtime, members, text) for text in participants]
    return fields


def parse_links(runtime: Runtime, links: Sequence[str] | None) -> list[tuple[str, str]]:
    """Return `OBJECT:ID` and `OBJECT:ATTR=VALUE` texts as pairs with whole ids. Raises UsageError, NotFoundError, RejectedError."""
    pairs = []
    for text in links or ():
        name, _, identity = text.partition(":")
        if not name.strip() or not identity.strip():
            raise UsageError(f"--link {text!r} is not OBJECT:ID", hint="for example --link people:email=ada@acme.com, or --link people:ID")
        pairs.append((name.strip(), find_record(runtime, name.strip(), identity.strip()).id))
    return pairs


def with_links(runtime: Runtime, fields: Json, links: Sequence[tuple[str, str]], send: Callable[[Json], T]) -> T:
    """Return `send(fields with links)`; after a refusal, repeat it if a cached object id has changed."""

    def linked() -> Json:
        entries = [{"objectId": runtime.directory.object_id(name), "recordId": identity} for name, identity in links]
        return {**fields, "linkedRecords": entries} if entries else fields

    body = linked()
    try:
        return send(body)
    except (NotFoundError, RejectedError) as error:
        if error.outcome_unknown or not links:
            raise
        runtime.directory.forget()
        if (current := linked()) == body:
            raise
        return send(current)


def _participant(runtime: Runtime, members: Callable[[], list[Member]], text: str) -> Json:
    kind, _, identity = (part.strip() for part in text.partition(":"))
    if kind not in ("user", "person") or not identity:
        raise UsageError(
            f"--participant {text!r} is neither user:EMAIL, user:ID, person:ID nor person:ATTR=VALUE",
            hint="user is a member, person a record: person:email=ada@acme.com",
        )
    if kind == "person":
        identity = find_record(runtime, "people", identity).id
        if not is_uuid(identity):
            raise UsageError(f"--participant {text!r}: {identity!r} is no record id", hint="person:ID, or person:email=ada@acme.com")
        return {"type": kind, "id": identity}
    identity = runtime.shown_ids.whole(identity)
    if is_uuid(identity):
        return {"type": kind, "id": identity}
    if "@" not in identity:
        raise UsageError(f"--participant {text!r}: {identity!r} is neither an email address nor an id")
    user = find_member(runtime, members(), identity).user
    return {"type": kind, "id": user.id if user is not None else identity}


def body_of(fields: Sequence[str]) -> Json:
    """Return a body from `key=value` (text) and `key:=JSON`; dots lead into objects. Raises UsageError."""
    body: Json = {}
    for text in fields:
        name, value = _field(text)
        *outer, last = name.split(".")
        target: Any = body
        for key in outer:
            target = target.setdefault(key, {}) if isinstance(target, dict) else None
        if not isinstance(target, dict) or last in target:
            raise UsageError(f"-f {name} is given twice, or is a value and an object", hint="give each key once")
        target[last] = value
    return body


def query_of(fields: Sequence[str]) -> list[tuple[str, str]]:
    """Return fields as query parameters. Raises UsageError."""
    pairs = [_field(text) for text in fields]
    return [(name, value if isinstance(value, str) else jsontext.dumps(value)) for name, value in pairs]


def _field(text: str) -> tuple[str, Any]:
    hint = "for example -f data.email=ada@acme.com, or -f data.score:=12"
    name, value, _ = named_value("-f", text, "key=value", hint)
    if "" in name.split("."):
        raise UsageError(f"-f {text!r} is not key=value", hint=hint)
    return name, value
