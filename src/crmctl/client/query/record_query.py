"""Records that match a filter, in order: the service evaluates what it can, crmctl the rest."""

from __future__ import annotations

import heapq
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cached_property, partial
from itertools import chain, islice
from typing import Any

from crmctl.client.answers import Page, iterate, may_count_page
from crmctl.client.directory import known_attributes
from crmctl.client.query.record_filter import (
    Admits,
    Bound,
    ListOrder,
    LocalCondition,
    QueryContext,
    ReadingCost,
    RecordFilter,
    RecordLists,
    micros_at,
)
from crmctl.errors import RejectedError
from crmctl.models.ids import is_uuid, reference_ids
from crmctl.models.resources import PAGE_LIMIT, Attribute, AttributeType, Record
from crmctl.values.conditions import Test, elements_of, number_in, text_of, value_test
from crmctl.values.filters import Condition
from crmctl.values.folded_text import fold
from crmctl.values.moments import MICROS, moment_of
from crmctl.values.operators import Kind, Operator

TEXTS = (AttributeType.TEXT, AttributeType.EMAIL, AttributeType.SELECT)


def stray_finder(attributes: Iterable[Attribute], conditions: Sequence[Condition]) -> Callable[[Record], str | None]:
    """Return a function that names the condition which a record clearly fails, or returns None."""
    by_slug = {attribute.slug: attribute for attribute in attributes}
    tests = [
        (condition, by_slug[condition.slug], test)
        for condition in conditions
        if condition.slug in by_slug and (test := _test(by_slug[condition.slug], condition)) is not None
    ]

    def find(record: Record) -> str | None:
        for condition, attribute, may_meet in tests:
            value = record.data.get(condition.slug)
            if not may_meet(value):
                shown = ", ".join(map(repr, filter(None, [text_of(attribute, value)]))) or "nothing"
                return f"the service was asked for {condition.slug} {condition.operator} {condition.value!r} and answered with {shown}"
        return None

    return find


def _test(attribute: Attribute, condition: Condition) -> Test | None:
    """Return a test of whether a value may meet the condition; None where that is unclear."""
    if condition.operator.meaning.kind is Kind.PRESENCE:
        is_empty = partial(_may_be_empty, attribute)
        return is_empty if condition.operator is Operator.IS_EMPTY else lambda value: value not in (None, "", [], {})
    if attribute.type in (AttributeType.NUMBER, AttributeType.CURRENCY):
        try:
            meets = value_test(attribute, condition.operator, condition.value)
        except RejectedError:
            return None
        if attribute.type == AttributeType.CURRENCY:
            return lambda value: (value is not None and number_in(attribute, value) is None) or meets(value)
        return lambda value: isinstance(value, bool | str | list | dict) or meets(value)
    if attribute.type == AttributeType.REFERENCE:
        return _reference_test(condition)
    if attribute.type == AttributeType.DATE:
        return _date_test(condition)
    if attribute.type == AttributeType.CHECKBOX:
        truth = {Operator.IS_TRUE: True, Operator.IS_FALSE: False}.get(condition.operator)
        return None if truth is None else lambda value: value is not (not truth)
    if attribute.type not in TEXTS:
        return None
    if condition.operator is Operator.NOT_EQUALS:
        return lambda value: value != condition.value
    wished, meaning = _loose(condition.value), condition.operator.meaning
    if not meaning.finds_operand or not wished:
        return None
    if attribute.type == AttributeType.SELECT and wished not in map(_loose, attribute.options):
        return None  # perhaps by its label

    def may_meet(value: Any) -> bool:
        texts = elements_of(value)
        return not all(isinstance(text, str) for text in texts) or any(meaning.matches(_loose(text), wished) for text in texts)

    return may_meet


def _may_be_empty(attribute: Attribute, value: Any) -> bool:
    """Whether a service may count the value as empty: also 0, false, and money without an amount."""
    if isinstance(value, Mapping):
        return not any(value.values()) or (attribute.type == AttributeType.CURRENCY and number_in(attribute, value) is None)
    return all(_may_be_empty(attribute, element) for element in value) if isinstance(value, list) else not str(value or "").strip()


def _reference_test(condition: Condition) -> Test | None:
    wished, is_negation = condition.value.lower(), condition.operator.is_negation
    if condition.operator.meaning.kind is not Kind.EQUALITY or not is_uuid(wished):
        return None

    def may_meet(value: Any) -> bool:
        ids = [*reference_ids(value)]
        return len(ids) < len(elements_of(value)) or not all(map(is_uuid, ids)) or (wished in ids) is not is_negation

    return may_meet


_ZONES = timedelta(days=2)
"""Difference of dates that time zones and whole days explain."""


def _date_test(condition: Condition) -> Test | None:
    wished, operator = moment_of(condition.value), condition.operator
    if wished is None or operator.is_negation or operator.meaning.kind not in (Kind.ORDER, Kind.EQUALITY):
        return None
    is_early = operator not in (Operator.GREATER_THAN, Operator.GREATER_THAN_OR_EQUAL)
    is_late = operator not in (Operator.LESS_THAN, Operator.LESS_THAN_OR_EQUAL)

    def may_meet(value: Any) -> bool:
        moment = moment_of(value) if isinstance(value, str) else None
        if moment is None:
            return value is not None
        return not (is_early and moment - wished > _ZONES) and not (is_late and wished - moment > _ZONES)

    return may_meet


def _loose(text: str) -> str:
    """Return the text without case, accents and repeated or outer blanks."""
    letters = (letter for letter in unicodedata.normalize("NFKD", fold(text)) if not unicodedata.combining(letter))
    return " ".join("".join(letters).split())


Fetch = Callable[[int, int], Page[Record]]
"""Fetch a page of a list by limit and offset."""
OnDoubt = Callable[[str], object]
"""Take a sentence on items that may be missing."""


class ListReader:
    """A list read page by page: at most `stop` records; None for all."""

    def __init__(self, fetch: Fetch, *, stop: int | None, on_doubt: OnDoubt) -> None:
        self._pages = iterate(fetch, limit=stop, on_doubt=on_doubt)
        self._stop = stop
        first = next(self._pages)
        self.first: list[Record] = first.items
        self.total = first.total

    @property
    def requests_left(self) -> int:
        """Requests to read the rest; at least one for a list without a total."""
        if self.total is None:
            return 1 if self.first else 0
        end = self.total if self._stop is None else min(self.total, self._stop)
        return max(0, -(-(end - len(self.first)) // PAGE_LIMIT))

    def __iter__(self) -> Iterator[Record]:
        return chain(self.first, (record for page in self._pages for record in page.items))


def merged(lists: Sequence[Iterable[Record]], order: ListOrder) -> Iterator[Record]:
    """Merge sorted lists, each record once. Of equal times the first list's records come first."""
    if len(lists) == 1:
        return iter(lists[0])
    name = order.sort or "created_at"
    sign = -1 if order.is_descending else 1
    return _each_once(heapq.merge(*lists, key=lambda record: sign * (micros_at(record, name) or 0)))


def _each_once(records: Iterable[Record]) -> Iterator[Record]:
    seen: set[str] = set()
    for record in records:
        if record.id not in seen:
            seen.add(record.id)
            yield record


def looks_into(first_page: Callable[[Sequence[Condition]], Page[Record]], prefilter: LocalCondition, readers: Iterable[ListReader]) -> bool:
    """Whether the service searches inside composites: False if a condition misses a record that it must find."""
    slug, operator = prefilter.conditions[0].slug, prefilter.conditions[0].operator
    if any(_is_object(record, slug) for reader in readers for record in reader.first):
        return True
    for record in first_page(()).items:
        text = prefilter.part(record.data.get(slug)) if operator.takes_value else "true"
        if text and _is_object(record, slug):
            try:
                page = first_page((Condition(slug, operator, text),))
            except RejectedError:
                return False
            return (page.total or 0) > len(page.items) or any(listed.id == record.id for listed in page.items)
    return True


def _is_object(record: Record, slug: str) -> bool:
    return any(isinstance(element, Mapping) and any(element.values()) for element in elements_of(record.data.get(slug)))


MANY_LISTS = 10
"""Number of lists beyond which crmctl checks whether reading the whole object takes fewer requests."""


class RecordQuery:
    """Records of an object that match a filter. Every method may raise the errors of requests.

    `purpose` says why records are read that crmctl does not show.
    """

    def __init__(
        self,
        context: QueryContext,
        object_name: str,
        record_filter: RecordFilter,
        order: ListOrder | None = None,
        purpose: str | None = None,
    ) -> None:
        self.context = context
        self.object_name = object_name
        self.wanted = record_filter
        self.order = order or ListOrder()
        self.total: int | None = None
        """Number of matching records, if known without reading all of them."""
        self.has_body = record_filter.needs_body
        self._purpose = purpose
        self._has_strays = False
        self.mirror: RecordLists | None = None
        """The mirror, once it replaces the service."""

    def fetch(self, limit: int, offset: int) -> Page[Record]:
        return self._page(self.wanted.conditions, self.order, limit, offset)

    def pages(self, limit: int | None, offset: int = 0, on_doubt: OnDoubt | None = None) -> Iterator[Page[Record]]:
        """Yield pages of at most `limit` records from `offset` on. The first page comes even when it is empty."""
        if self.wanted.is_plain and self.order.key is None:
            yield from iterate(self.fetch, limit=limit, offset=offset, on_doubt=on_doubt or self.context.warn)
            return
        stop = None if limit is None else offset + limit
        window = islice(self.records(stop, on_doubt), offset, stop)
        count, part = 0, list(islice(window, PAGE_LIMIT))
        while True:
            count += len(part)
            yield Page(part, self.total, PAGE_LIMIT, offset + count - len(part))
            part = list(islice(window, PAGE_LIMIT))
            if not part:
                return

    def records(self, stop: int | None = None, on_doubt: OnDoubt | None = None) -> Iterator[Record]:
        """Yield the records in order, at most `stop` in the service's order. The user approves the cost before the second page."""
        if self.wanted.is_impossible:
            self.total = 0
            return
        self._choose_lists()
        readers = self._readers(stop if self._is_in_order else None, on_doubt or self.context.warn)
        if self._agree(readers, stop):
            readers = self._readers(stop if self._is_in_order else None, on_doubt or self.context.warn)
        records: Iterator[Record] = merged(readers, self._list_order)
        if self.wanted.bounds:
            records = self._within(records)
        if self._decides_here:
            records = filter(self._admits, records)
        elif all(choice.is_disjoint for choice in self.wanted.choices) and all(reader.total is not None for reader in readers):
            self.total = sum(reader.total or 0 for reader in readers)
        yield from self._sorted(records) if self.order.key is not None else records

    def one_list(self) -> tuple[tuple[Condition, ...], Admits | None]:
        """Return the conditions for callers that read the list themselves, and a local test for the rest of the filter if there is one."""
        if self.wanted.is_plain:
            return self.wanted.conditions, None
        if self.wanted.is_impossible:
            return self.wanted.conditions, lambda _: False
        self.wanted = self.wanted.decided_here(choices=True)
        self._readers(None, self.context.warn)
        single = [prefilter.conditions[0] for prefilter in self.wanted.prefilters if len(prefilter.conditions) == 1]
        times = [condition for bound in self.wanted.bounds for condition in bound.conditions]
        bounds = self.wanted.bounds
        conditions = (*self.wanted.conditions, *times, *single)
        return conditions, lambda record: self._admits(record) and all(bound.admits(record) for bound in bounds)

    def count(self) -> int:
        """Count the matching records. The service counts if it evaluates the whole filter."""
        wanted = self.wanted
        if wanted.is_impossible:
            return 0
        if wanted.bounds and not wanted.local_conditions:
            return self._count_within()
        if wanted.is_plain:
            self.order = ListOrder(None, "asc")
        else:
            self._purpose = self._purpose or "to count them"
        self._choose_lists()
        if not self._decides_here and not wanted.bounds and all(choice.is_disjoint for choice in self.wanted.choices):
            # A page of records shows whether the service ignores the filter.
            size = PAGE_LIMIT if wanted.conditions or wanted.local_conditions else 1
            pages = [self._page(conditions, ListOrder(), size, 0) for conditions in self.wanted.lists()]
            totals = [page.total for page in pages if page.total not in (None, size) and not may_count_page(page, size)]
            if len(totals) == len(pages):
                return sum(filter(None, totals))
        return sum(1 for _ in self.records())

    @property
    def _decides_here(self) -> bool:
        """Whether crmctl has to filter or sort the records of the service."""
        return not self.wanted.is_exact or self.order.key is not None or not all(bound.conditions for bound in self.wanted.bounds)

    @property
    def _list_order(self) -> ListOrder:
        """The order of the service's lists. For a local sort it is the order of the bounds, so that reading can end with them."""
        if self.order.key is None:
            return self.order
        return ListOrder(next((bound.name for bound in self.wanted.bounds), None))

    @property
    def _is_in_order(self) -> bool:
        """Whether the first records of the lists are the first of the answer."""
        sort = self.order.sort or "created_at"
        return self.wanted.is_exact and self.order.key is None and all(bound.name == sort for bound in self.wanted.bounds)

    def _within(self, records: Iterator[Record]) -> Iterator[Record]:
        """Drop records outside the bounds. A list sorted by the bound's time ends with the first record beyond it."""
        for record in records:
            if all(bound.admits(record) for bound in self.wanted.bounds):
                yield record
            elif self._is_in_order:
                ends = [(bound, at) for bound in self.wanted.bounds if (at := micros_at(record, bound.name)) is not None]
                if any(bound.is_before(at) if self.order.is_descending else bound.is_after(at) for bound, at in ends):
                    return

    def _admits(self, record: Record) -> bool:
        return all(condition.is_exact or condition.admits(record) for condition in self.wanted.local_conditions)

    def _page(self, conditions: Sequence[Condition], order: ListOrder, limit: int, offset: int) -> Page[Record]:
        lists: RecordLists = self.mirror or self.context.crm
        call = lists.search_records if self.has_body else lists.list_records
        page = self.context.directory.with_object(
            self.object_name,
            lambda target: call(target, filters=conditions, sort=order.sort, order=order.order, limit=limit, offset=offset),
        )
        self._look_for_strays(conditions, page.items)
        return page

    @cached_property
    def _attributes(self) -> Sequence[Attribute]:
        return known_attributes(self.context.directory, self.object_name, self.context.tell) or ()

    @cached_property
    def meets(self) -> Callable[[Record], bool]:
        """Whether a record may meet the conditions. A service that ignores them returns others."""
        find = stray_finder(self._attributes, self.wanted.conditions)
        return lambda record: find(record) is None

    def _look_for_strays(self, conditions: Sequence[Condition], records: Sequence[Record]) -> None:
        """Warn once if the service returns records that do not match."""
        if conditions and records and not self._has_strays:
            find = stray_finder(self._attributes, conditions)
            if (stray := next(filter(None, map(find, records)), None)) is not None:
                self._has_strays = True
                self.context.warn(f"{stray}: it may not heed this filter")

    def _choose_lists(self) -> None:
        """Read the whole object instead of many lists if that takes fewer requests."""
        count = 1
        for choice in self.wanted.choices:
            count *= len(choice.conditions)
        if count <= MANY_LISTS:
            return
        total = self._page(self.wanted.conditions, ListOrder(), 1, 0).total
        pages = -(-total // PAGE_LIMIT) if total is not None else None
        if pages is not None and pages < count:
            self.wanted = self.wanted.decided_here(choices=True)
        else:
            self.agree(
                ReadingCost(count, f"reading {self.object_name} {self._what}, a list for each of {count:,} values", self.object_name)
            )

    def agree(self, cost: ReadingCost) -> bool:
        """Have the user approve a cost. True if the mirror replaces the service; crmctl then evaluates most conditions itself."""
        self.mirror = self.context.agree(cost)
        if self.mirror is not None:
            self.wanted = self.wanted.decided_here(choices=True, parts=True, times=True)
        return self.mirror is not None

    def _readers(self, stop: int | None, on_doubt: OnDoubt) -> list[ListReader]:
        """Open the lists with their first pages. Conditions that the service refuses or ignores are evaluated locally."""
        refused: RejectedError | None = None
        while True:
            sends_times = any(bound.conditions for bound in self.wanted.bounds)
            prefilters = self.wanted.prefilters
            end = stop if sends_times or not self.wanted.bounds else None
            pages = (partial(self._page, conditions, self._list_order) for conditions in self.wanted.lists())
            try:
                readers = [ListReader(fetch, stop=end, on_doubt=on_doubt) for fetch in pages]
            except RejectedError as error:
                refused = refused or error
                if not sends_times and not prefilters:
                    raise refused from None
                self.wanted = self.wanted.decided_here(times=sends_times, parts=not sends_times)
                continue
            if sends_times and not self._heeds_times(readers):
                self.context.tell("the service does not filter by time: crmctl does")
                self.wanted = self.wanted.decided_here(times=True)
            elif not all(looks_into(self._first_page, prefilter, readers) for prefilter in prefilters):
                self.context.tell("the service does not search inside composite values: crmctl evaluates them")
                self.wanted = self.wanted.decided_here(parts=True)
            else:
                return readers

    def _first_page(self, conditions: Sequence[Condition]) -> Page[Record]:
        return self._page(conditions, ListOrder(), PAGE_LIMIT, 0)

    def _heeds_times(self, readers: Sequence[ListReader]) -> bool:
        """Whether the answers show that the service filters by time. Without answers, check that it left no record out."""
        bounds = self.wanted.bounds
        first = [record for reader in readers for record in reader.first]
        if first:
            return all(bound.admits(record) for bound in bounds for record in first)
        return len(bounds) == 1 and None in (bounds[0].least, bounds[0].below) and not self._extreme(bounds[0])

    def _extreme(self, bound: Bound) -> bool:
        """Whether the oldest or newest record is within the bound although the service found none."""
        order = ListOrder(bound.name, "asc" if bound.least is None else "desc")
        return any(
            bound.admits(record)
            for conditions in self.wanted.decided_here(times=True).lists()
            for record in self._page(conditions, order, 1, 0).items
        )

    def _count_within(self) -> int:
        """Count with the service if the ends of its list show that it filters by time, else by reading."""
        record_filter = self.wanted
        bounds = record_filter.bounds
        try:
            conditions = self.wanted.lists()[0]
            now = self.context.now * MICROS  # no record is newer
            ends = [(bound.name, "asc") for bound in bounds if bound.least is not None]
            ends += [(bound.name, "desc") for bound in bounds if bound.below is not None and (bound.least is None or bound.below <= now)]
            pages = [self._page(conditions, ListOrder(*end), 1, 0) for end in ends]
            records = [record for page in pages for record in page.items]
            heeded = all(bound.admits(record) for bound in bounds for record in records)
            both = any(bound.least is not None and bound.below is not None for bound in bounds)
            if heeded and pages[0].total not in (None, 1) and (records or (not both and len(bounds) == 1 and not self._extreme(bounds[0]))):
                return pages[0].total
        except RejectedError as error:
            if error.status is None:
                raise
        return sum(1 for _ in self.records())

    def _agree(self, readers: Sequence[ListReader], stop: int | None) -> bool:
        """Announce requests beyond those that return the answer. True if the mirror replaces the service."""
        requests = sum(reader.requests_left for reader in readers) if self.mirror is None else 0
        if not requests or not (self._decides_here or self._purpose):
            return False
        if stop is not None and self.order.key is None:
            listed = merged([reader.first for reader in readers], self._list_order)
            if sum(1 for record in self._within(listed) if self._admits(record)) >= stop:
                return False
        count = sum(reader.total or 0 for reader in readers)
        many = f"{count:,} records" if count else "records"
        return self.agree(ReadingCost(requests, f"reading {many} of {self.object_name} {self._what}", self.object_name))

    @property
    def _what(self) -> str:
        return self._purpose or ("to sort them here" if self.order.key is not None else "to see which match")

    def _sorted(self, listed: Iterator[Record]) -> Iterator[Record]:
        key = self.order.key
        assert key is not None
        records = list(listed)
        self.order.prepare(records)
        pairs = [(key(record), record) for record in records]
        self.total = len(pairs)
        valued = [pair for pair in pairs if pair[0] is not None]
        valued.sort(key=lambda pair: pair[0], reverse=self.order.is_descending)
        yield from (record for _, record in valued)
        yield from (record for value, record in pairs if value is None)
