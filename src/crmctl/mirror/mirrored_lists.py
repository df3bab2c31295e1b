"""Lists of records as the service gives them, out of a mirror: the conditions of every service, its two orders, pages with their total."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence

from crmctl.client.shapes import Page
from crmctl.errors import NotFoundError, RejectedError
from crmctl.mirror.file import SyncState
from crmctl.mirror.local_copy import LocalCopy
from crmctl.mirror.schema_fingerprint import fingerprint_of
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.comparison import value_test
from crmctl.models.filters import Condition
from crmctl.models.records import Record

_ID = Attribute(id="", slug="id", type=AttributeType.REFERENCE)

Wanted = tuple[str, tuple[Condition, ...], str, bool]
"""Which list: object, conditions, what it is sorted by, and whether the latest are first."""


class MirroredLists:
    """Everything is of one moment. A `KeyError` tells that an object is not in the mirror: ask `state_of` first."""

    def __init__(self, copy: LocalCopy) -> None:
        self._copy = copy
        self._lists: dict[Wanted, array[int]] = {}
        self._spelled: dict[str, dict[str, str]] = {}
        copy.hold_still()

    def state_of(self, object_id: str, attributes: Iterable[Attribute]) -> SyncState | None:
        """What is known of an object that is in it with all values of just these active attributes, and proven; None for any other."""
        state = self._copy.state(object_id)
        if state is None or not state.proven or state.excluded:
            return None
        known = {attribute_id: list(facts) for attribute_id, facts in state.fingerprint.items() if facts[-1]}
        return state if known == fingerprint_of(attributes) else None

    def list_records(
        self,
        object_id: str,
        *,
        filters: Sequence[Condition] = (),
        sort: str | None = None,
        order: str | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> Page[Record]:
        """One page."""
        wanted = (object_id, tuple(filters), sort or "created_at", order != "asc")
        if wanted not in self._lists:
            self._lists[wanted] = self._numbers(*wanted)
        numbers = self._lists[wanted]
        return Page(self._copy.numbered(object_id, numbers[offset : offset + limit]), len(numbers), limit, offset)

    search_records = list_records

    def get_record(self, object_id: str, record_id: str) -> Record:
        """One record, however its id is spelled. Raises NotFoundError."""
        found = self._copy.record(object_id, record_id) or self._copy.record(object_id, self._spelling(object_id, record_id))
        if found is None:
            raise NotFoundError(f"no record {record_id} in the mirror")
        return found

    def _spelling(self, object_id: str, record_id: str) -> str:
        if object_id not in self._spelled:
            self._spelled[object_id] = {one.lower(): one for one in self._copy.ids_with_capitals(object_id)}
        return self._spelled[object_id].get(record_id.lower(), record_id)

    def _numbers(self, object_id: str, conditions: Sequence[Condition], sort: str, is_descending: bool) -> array[int]:
        attributes = {each.slug: each for each in self._copy.attributes(object_id)} if conditions else {}
        tests = [_test(attributes, condition) for condition in conditions]

        def admits(record: Record) -> bool:
            return all(test(record) for test in tests)

        return self._copy.numbers(object_id, sort, is_descending=is_descending, admits=admits if tests else None)


def _test(attributes: dict[str, Attribute], condition: Condition) -> Callable[[Record], bool]:
    """Raises RejectedError for what records of the object do not have."""
    slug = condition.slug
    if slug in attributes:
        meets = value_test(attributes[slug], condition.operator, condition.value)
        return lambda record: meets(record.data.get(slug))
    if slug != "id":
        raise RejectedError(f"the mirror has no attribute {slug}", code="unknown_attribute", status=400)
    meets = value_test(_ID, condition.operator, condition.value)
    return lambda record: meets(record.id)
