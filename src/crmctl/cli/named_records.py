"""One record of an object, named by its id or by `attr=value`: what get, update, delete and edit take."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from crmctl.errors import NotFoundError, RejectedError, ServiceError, UsageError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.models.filters import Condition
    from crmctl.models.records import Record

SHOWN_IDS = 10


class NamedRecord(NamedTuple):
    """`record` is there where finding it has read it: one that is named by its id costs nothing to find."""

    id: str
    record: Record | None

    def text(self, given: str) -> str:
        """What a question calls it."""
        return self.id if self.record is None else f"{self.id} ({given})"


def find_record(runtime: Runtime, object_name: str, given: str) -> NamedRecord:
    """The record that `given` means, an id or `attr=value`; the latter takes one request.

    Raises NotFoundError where there is none, RejectedError with the ids of several, UsageError for what is neither.
    """
    condition = _condition(given)
    if condition is None:
        return NamedRecord(given, None)
    record = _only(runtime, object_name, given, condition)
    return NamedRecord(record.id, record)


def read_record(runtime: Runtime, object_name: str, given: str) -> Record:
    """The record itself: one request, however it is named. Raises like find_record, and what the request raises."""
    from crmctl.cli.targets import on_object

    found = find_record(runtime, object_name, given)
    return found.record or on_object(runtime, object_name, lambda target: runtime.crm.get_record(target, found.id))


def _condition(given: str) -> Condition | None:
    """The condition a text states, None for an id. Raises UsageError for a condition that names no single record."""
    from crmctl.models.filters import Operator, parse_condition

    if not any(sign in given for sign in "=~<>[ "):
        if "@" in given:
            raise UsageError(f"{given!r} is no id", hint=f"a record is named by its id, or by attr=value: email={given}")
        return None
    condition = parse_condition(given)
    if condition.operator is not Operator.EQUALS or not condition.value:
        raise UsageError(f"{given!r} names no record", hint="a record is named by its id, or by attr=value: email=ada@acme.com")
    return condition


def _check(runtime: Runtime, object_name: str, condition: Condition, record: Record) -> None:
    """Raises ServiceError for a record that has another value: a service that heeds no filter answers with any record."""
    from crmctl.cli.targets import known_attributes
    from crmctl.models.comparison import keys_of, text_of
    from crmctl.models.folded_text import fold

    attribute = next((each for each in known_attributes(runtime, object_name) or () if each.slug == condition.slug), None)
    if attribute is None or attribute.type not in ("text", "email", "select"):
        return
    value = record.data.get(condition.slug)
    if fold(condition.value.strip()) not in [key.strip() for key in keys_of(attribute, value)]:
        raise ServiceError(
            f"the service was asked for {condition.slug} {condition.value!r} and answered with {text_of(attribute, value)!r}",
            hint="name the record by its id",
            code="filter_not_heeded",
        )


def _only(runtime: Runtime, object_name: str, given: str, condition: Condition) -> Record:
    from crmctl.cli.record_queries import query_context, read_filter, record_query
    from crmctl.models.records import PAGE_LIMIT

    context = query_context(runtime)
    query = record_query(context, object_name, read_filter(runtime, object_name, [given]))
    page = next(query.pages(PAGE_LIMIT))
    if len(page.items) == 1:
        _check(runtime, object_name, condition, page.items[0])
        return page.items[0]
    if not page.items:
        raise NotFoundError(
            f"no record of {object_name} has {given}",
            hint=f"crmctl records list {object_name} --filter '{condition.slug}~{condition.value}' finds it as a part of {condition.slug}",
        )
    ids = [record.id for record in page.items]
    count = max(page.total or 0, len(ids))
    more = f" and {count - SHOWN_IDS:,} more" if count > SHOWN_IDS else ""
    raise RejectedError(
        f"{count:,} records of {object_name} have {given}: {', '.join(ids[:SHOWN_IDS])}{more}",
        hint="name the record by its id",
        code="ambiguous_record",
        details={"ids": ids},
    )
