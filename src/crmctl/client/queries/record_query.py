"""Records that meet a filter, in an order: what the service can decide is asked of it, with few requests; the rest is decided here.

What the service answers to conditions that not every service has is checked before it is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, product
from typing import Any

from crmctl.client.paging import iterate
from crmctl.client.queries.composite_control import looks_into
from crmctl.client.queries.list_reader import ListReader, merged
from crmctl.client.queries.order_bisection import SortedList
from crmctl.client.queries.query_context import QueryContext, ReadingCost, RecordLists
from crmctl.client.queries.record_filter import Admits, Bound, ListOrder, RecordFilter, micros_at
from crmctl.client.queries.strays import stray_finder
from crmctl.client.record_lists import known_attributes
from crmctl.client.shapes import Page
from crmctl.errors import RejectedError
from crmctl.models.attributes import Attribute
from crmctl.models.filters import Condition
from crmctl.models.records import PAGE_LIMIT, Record

MANY_LISTS = 10
"""From so many lists on it is looked up whether reading the whole object takes fewer requests."""


@dataclass(frozen=True)
class _Trust:
    """What of a filter the service is asked about, besides what every service has."""

    times: bool = True
    parts: bool = True


class RecordQuery:
    """Every method may raise what a request raises. `purpose`: what is read, and not shown, for; without it what is read is shown."""

    def __init__(
        self, context: QueryContext, object_name: str, wanted: RecordFilter, order: ListOrder | None = None, purpose: str | None = None
    ) -> None:
        self.context = context
        self.object_name = object_name
        self.wanted = wanted
        self.order = order or ListOrder()
        self.total: int | None = None
        """How many records there are, where that is known without reading all of them."""
        self.has_body = wanted.needs_body
        self._purpose = purpose
        self._trust = _Trust()
        self._has_strays = False
        self._mirror: RecordLists | None = None
        """What is read instead of the service."""

    @property
    def is_mirrored(self) -> bool:
        """Whether the mirror is read instead of the service."""
        return self._mirror is not None

    def fetch(self, limit: int, offset: int) -> Page[Record]:
        """One page of a filter that is plain."""
        return self._page(self.wanted.conditions, self.order, limit, offset)

    def pages(self, limit: int | None, offset: int = 0, on_shift: Callable[[], None] = lambda: None) -> Iterator[Page[Record]]:
        """The records from `offset` on, `limit` at most, as they are found; the first page is given even when it is empty."""
        if self.wanted.is_plain and self.order.key is None:
            yield from iterate(self.fetch, limit=limit, offset=offset, on_shift=on_shift)
            return
        stop = None if limit is None else offset + limit
        window = islice(self.records(stop, on_shift), offset, stop)
        given, part = 0, list(islice(window, PAGE_LIMIT))
        while True:
            given += len(part)
            yield Page(part, self.total, PAGE_LIMIT, offset + given - len(part))
            part = list(islice(window, PAGE_LIMIT))
            if not part:
                return

    def records(self, stop: int | None = None, on_shift: Callable[[], None] = lambda: None) -> Iterator[Record]:
        """The records in order, `stop` at most where the order is the service's. What it costs is agreed to before the second page."""
        if self.wanted.is_impossible:
            self.total = 0
            return
        self._choose_lists()
        readers = self._readers(stop if self._is_in_order else None, on_shift)
        if self._agree(readers, stop):
            readers = self._readers(stop if self._is_in_order else None, on_shift)
        found: Iterator[Record] = merged(readers, self._list_order)
        if self.wanted.bounds:
            found = self._within(found)
        if self._decides_here:
            found = filter(self._admits, found)
        elif all(choice.is_disjoint for choice in self.wanted.choices) and all(reader.total is not None for reader in readers):
            self.total = sum(reader.total or 0 for reader in readers)
        yield from self._sorted(found) if self.order.key is not None else found

    def one_list(self) -> tuple[tuple[Condition, ...], Admits | None]:
        """For who reads a list by itself: conditions that the service heeds, and what decides the rest, where there is a rest."""
        if self.wanted.is_plain:
            return self.wanted.conditions, None
        if self.wanted.is_impossible:
            return self.wanted.conditions, lambda _: False
        self.wanted = self.wanted.without_choices()
        self._readers(None, lambda: None)
        single = [narrowing.conditions[0] for narrowing in self.wanted.narrowings if self._trust.parts and len(narrowing.conditions) == 1]
        times = [condition for bound in self.wanted.bounds if self._trust.times for condition in bound.conditions]
        bounds = self.wanted.bounds
        return (
            *self.wanted.conditions,
            *times,
            *single,
        ), lambda record: self._admits(record) and all(bound.admits(record) for bound in bounds)

    def count(self) -> int:
        """How many records there are: counted by the service where it decides all of it."""
        wanted = self.wanted
        if wanted.is_impossible:
            return 0
        if wanted.bounds and not wanted.criteria and not wanted.choices and not wanted.narrowings:
            return self._count_within()
        if wanted.is_plain and not self.has_body:
            if (total := self._page(wanted.conditions, ListOrder(), 1, 0).total) is not None:
                return total
            in_order = ListOrder(None, "asc")
            return sum(len(page.items) for page in iterate(lambda *place: self._page(wanted.conditions, in_order, *place)))
        self._purpose = self._purpose or "to count them"
        self._choose_lists()
        if not self._decides_here and not wanted.bounds and all(choice.is_disjoint for choice in self.wanted.choices):
            totals = [self._page(conditions, ListOrder(), 1, 0).total for conditions in self._combinations(_Trust())]
            if None not in totals:
                return sum(total or 0 for total in totals)
        return sum(1 for _ in self.records())

    @property
    def _decides_here(self) -> bool:
        """What the service answered is not yet the answer."""
        return bool(self.wanted.criteria or self.order.key is not None or (self.wanted.bounds and not self._trust.times))

    @property
    def _list_order(self) -> ListOrder:
        """The order in which lists are read: where they are sorted here, one that ends with the bounds."""
        if self.order.key is None:
            return self.order
        return ListOrder(next((bound.name for bound in self.wanted.bounds), None))

    @property
    def _is_in_order(self) -> bool:
        """The first records of the lists are the first of the answer."""
        sort = self.order.sort or "created_at"
        return not self.wanted.criteria and self.order.key is None and all(bound.name == sort for bound in self.wanted.bounds)

    def _within(self, found: Iterator[Record]) -> Iterator[Record]:
        """Without those outside the bounds; a list that is sorted by the time they are about ends with the first one beyond."""
        for record in found:
            if all(bound.admits(record) for bound in self.wanted.bounds):
                yield record
            elif self._is_in_order and any(self._is_beyond(bound, record) for bound in self.wanted.bounds):
                return

    def _is_beyond(self, bound: Bound, record: Record) -> bool:
        at = micros_at(record, bound.name)
        return at is not None and (bound.is_before(at) if self.order.is_descending else bound.is_after(at))

    def _admits(self, record: Record) -> bool:
        return all(one.admits(record) for one in self.wanted.criteria)

    def _page(self, conditions: Sequence[Condition], order: ListOrder, limit: int, offset: int) -> Page[Record]:
        lists: RecordLists = self._mirror or self.context.crm
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

    def _look_for_strays(self, conditions: Sequence[Condition], records: Sequence[Record]) -> None:
        """Say once that the service answers with records that were not asked for."""
        if conditions and records and not self._has_strays:
            find = stray_finder(self._attributes, conditions)
            if (stray := next(filter(None, map(find, records)), None)) is not None:
                self._has_strays = True
                self.context.warn(f"{stray}: it may not heed this filter")

    def _choose_lists(self) -> None:
        """Many lists take many requests: then rather the whole object, where that takes fewer."""
        count = 1
        for choice in self.wanted.choices:
            count *= len(choice.conditions)
        if count <= MANY_LISTS:
            return
        total = self._page(self.wanted.conditions, ListOrder(), 1, 0).total
        pages = -(-total // PAGE_LIMIT) if total is not None else None
        if pages is not None and pages < count:
            self.wanted = self.wanted.without_choices()
        else:
            self.agree(
                ReadingCost(count, f"reading {self.object_name} {self._what}, a list for each of {count:,} values", self.object_name)
            )

    def agree(self, cost: ReadingCost) -> bool:
        """Have a cost agreed to; True where the mirror is read instead, in one list: all but what every service decides is decided here."""
        self._mirror = self.context.agree(cost)
        if self._mirror is not None:
            self.wanted = self.wanted.without_choices()
            self._trust = _Trust(times=False, parts=False)
        return self._mirror is not None

    def _combinations(self, trust: _Trust) -> list[tuple[Condition, ...]]:
        wanted = self.wanted
        base = wanted.conditions + tuple(condition for bound in wanted.bounds if trust.times for condition in bound.conditions)
        groups = [choice.conditions for choice in wanted.choices]
        groups += [narrowing.conditions for narrowing in wanted.narrowings if trust.parts]
        return [base + combination for combination in product(*groups)]

    def _readers(self, stop: int | None, on_shift: Callable[[], None]) -> list[ListReader]:
        """The lists with their first pages; what the service refuses, or does not heed, is left out and decided here."""
        trust, wanted = self._trust, self.wanted
        refused: RejectedError | None = None
        while True:
            try:
                readers = [reader for conditions in self._combinations(trust) for reader in self._open(conditions, trust, stop, on_shift)]
            except RejectedError as error:
                refused = refused or error
                if trust.times and wanted.bounds:
                    trust = replace(trust, times=False)
                elif trust.parts and wanted.narrowings:
                    trust = replace(trust, parts=False)
                else:
                    raise refused from None
                continue
            if trust.times and wanted.bounds and not self._heeds_times(readers):
                self.context.tell("the service does not filter by time: its order is searched instead")
                trust = replace(trust, times=False)
            elif trust.parts and wanted.narrowings and not all(looks_into(self._first_page, one, readers) for one in wanted.narrowings):
                self.context.tell("the service's operators do not look into composite values: they are decided here")
                trust = replace(trust, parts=False)
            else:
                self._trust = trust
                return readers

    def _first_page(self, conditions: Sequence[Condition]) -> Page[Record]:
        return self._page(conditions, ListOrder(), PAGE_LIMIT, 0)

    def _open(
        self, conditions: tuple[Condition, ...], trust: _Trust, stop: int | None, on_shift: Callable[[], None]
    ) -> Iterator[ListReader]:
        """The list with these conditions; without the service's help only the part of it within the bounds."""

        def fetch(limit: int, offset: int) -> Page[Record]:
            return self._page(conditions, order, limit, offset)

        order = self._list_order
        bound = next(iter(self.wanted.bounds), None) if not trust.times else None
        if bound is None:
            yield ListReader(fetch, stop=stop, on_shift=on_shift)
            return
        in_order = ListOrder(bound.name, "asc")
        ascending = SortedList(lambda limit, offset: self._page(conditions, in_order, limit, offset), bound)
        span = ascending.span()
        if span is None or (order.sort or "created_at") != bound.name:
            yield ListReader(fetch, on_shift=on_shift)
        elif span[1] > span[0]:
            start, end = span
            length = ascending.total or 0
            yield ListReader(fetch, start=length - end if order.is_descending else start, stop=end - start, on_shift=on_shift)

    def _heeds_times(self, readers: Sequence[ListReader]) -> bool:
        """Whether the answers show that the service filters by time; where they show nothing, whether it has left something out."""
        bounds = self.wanted.bounds
        first = [record for reader in readers for record in reader.first]
        if first:
            return all(bound.admits(record) for bound in bounds for record in first)
        return len(bounds) == 1 and None in (bounds[0].least, bounds[0].below) and not self._extreme(bounds[0])

    def _extreme(self, bound: Bound) -> bool:
        """Whether the oldest record, or the newest, is within the bound, although the service found none."""
        order = ListOrder(bound.name, "asc" if bound.least is None else "desc")
        return any(
            bound.admits(record)
            for conditions in self._combinations(_Trust(times=False))
            for record in self._page(conditions, order, 1, 0).items
        )

    def _count_within(self) -> int:
        """Counted by the service where the ends of its list show that it filters by time; else by the places in its order."""
        wanted = self.wanted
        bounds = wanted.bounds
        try:
            conditions = self._combinations(_Trust())[0]
            ends = {bound.name: ("desc" if bound.below is not None else "asc") for bound in bounds}
            pages = [self._page(conditions, ListOrder(name, order), 1, 0) for name, order in ends.items()]
            found = [record for page in pages for record in page.items]
            heeded = all(bound.admits(record) for bound in bounds for record in found)
            both = any(bound.least is not None and bound.below is not None for bound in bounds)
            if heeded and pages[0].total is not None and (found or (not both and len(bounds) == 1 and not self._extreme(bounds[0]))):
                return pages[0].total
        except RejectedError as error:
            if error.status is None:
                raise
        if len(bounds) == 1:
            bound = bounds[0]
            span = SortedList(
                lambda limit, offset: self._page(wanted.conditions, ListOrder(bound.name, "asc"), limit, offset), bound
            ).span()
            if span is not None:
                return span[1] - span[0]
        return sum(1 for _ in self.records())

    def _agree(self, readers: Sequence[ListReader], stop: int | None) -> bool:
        """Say what reading costs beyond what is shown, before it does; True where the mirror is read instead."""
        left = sum(reader.requests_left for reader in readers) if self._mirror is None else 0
        if not left or not (self._decides_here or self._purpose):
            return False
        if stop is not None and self.order.key is None:
            held = merged([reader.first for reader in readers], self._list_order)
            if sum(1 for record in self._within(held) if self._admits(record)) >= stop:
                return False
        count = sum(reader.total or 0 for reader in readers)
        many = f"{count:,} records" if count else "records"
        return self.agree(ReadingCost(left, f"reading {many} of {self.object_name} {self._what}", self.object_name))

    @property
    def _what(self) -> str:
        return self._purpose or ("to sort them here" if self.order.key is not None else "to see which match")

    def _sorted(self, found: Iterator[Record]) -> Iterator[Record]:
        key = self.order.key
        assert key is not None
        valued: list[tuple[Any, Record]] = []
        empty: list[Record] = []
        for record in found:
            value = key(record)
            if value is None:
                empty.append(record)
            else:
                valued.append((value, record))
        valued.sort(key=lambda pair: pair[0], reverse=self.order.is_descending)
        self.total = len(valued) + len(empty)
        yield from (record for _, record in valued)
        yield from empty
