"""One record of an object, named by its id or by `attr=value`: what get, update, delete and edit take."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from crmctl.errors import NotFoundError, RejectedError, UsageError

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
        return None
    condition = parse_condition(given)
    if condition.operator is not Operator.EQUALS or not condition.value:
        raise UsageError(f"{given!r} names no record", hint="a record is named by its id, or by attr=value: email=ada@acme.com")
    return condition


def _only(runtime: Runtime, object_name: str, given: str, condition: Condition) -> Record:
    from crmctl.cli.targets import on_object, parse_filters
    from crmctl.models.records import PAGE_LIMIT

    conditions = parse_filters(runtime, object_name, [given])
    page = on_object(runtime, object_name, lambda target: runtime.crm.list_records(target, filters=conditions, limit=PAGE_LIMIT))
    if len(page.items) == 1:
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
