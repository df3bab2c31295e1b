"""Counts, sums and averages by group, and random samples."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from typing import Any

from crmctl.client.query.clauses import parts_of
from crmctl.client.query.record_filter import ListOrder, QueryContext, ReadingCost, RecordFilter
from crmctl.client.query.record_query import MANY_LISTS, RecordQuery
from crmctl.errors import UsageError
from crmctl.models import jsontext
from crmctl.models.ids import did_you_mean
from crmctl.models.jsontext import Json
from crmctl.models.numbers import plain_decimal
from crmctl.models.resources import PAGE_LIMIT, Attribute, AttributeType, Record
from crmctl.values.attribute_types import COMPOSITE_TYPES
from crmctl.values.conditions import elements_of, number_in
from crmctl.values.filters import Condition
from crmctl.values.operators import Operator

Measure = Callable[[Decimal, int], int | Decimal | None]

EXACT = Context(prec=2200)
AVERAGED = Context(prec=28)


@dataclass(frozen=True)
class Measures:
    """Requested measures. `by` may name a part of a composite; `sums` and `averages` name attributes with numbers or money."""

    by: str | None = None
    sums: Sequence[str] = ()
    averages: Sequence[str] = ()

    @property
    def measured(self) -> list[str]:
        return list(dict.fromkeys([*self.sums, *self.averages]))


@dataclass
class _Group:
    """Records of one value: their number, and the sum and number of amounts by attribute and currency."""

    count: int = 0
    sums: dict[tuple[str, str | None], tuple[Decimal, int]] = field(default_factory=dict)

    def add(self, slug: str, code: str | None, number: Decimal) -> None:
        before, count = self.sums.get((slug, code), (Decimal(0), 0))
        self.sums[slug, code] = EXACT.add(before, number), count + 1


class RecordGroups:
    """Rows of a count, one for each value of `by`. Options of a select keep their order; others sort by count; empty ones come last."""

    def __init__(
        self, context: QueryContext, object_name: str, wanted: RecordFilter, measures: Measures, attributes: dict[str, Attribute]
    ) -> None:
        """Raises UsageError for an unknown attribute and for a measure without numbers."""
        self._context = context
        self._object = object_name
        self._wanted = wanted
        self._measures = measures
        self._attributes = attributes
        self.codes: dict[str, list[str]] = {}
        """Once there are rows, the currencies of each measured attribute."""
        self._by = self._attribute("--by", measures.by) if measures.by is not None else None
        for option, slugs in (("--sum", measures.sums), ("--avg", measures.averages)):
            for slug in slugs:
                attribute = self._attribute(option, slug)
                if attribute.type not in (AttributeType.NUMBER, AttributeType.CURRENCY):
                    raise UsageError(f"{option} {slug}: a {attribute.type} attribute holds no numbers", hint=self._numeric())

    def rows(self) -> list[Json]:
        """Return the rows. Raises the errors of requests."""
        counted = self._counted()
        if counted is not None:
            return counted
        groups: dict[Any, _Group] = {}
        query = RecordQuery(self._context, self._object, self._wanted, ListOrder(None, "asc"), "to count them")
        for record in query.records():
            self._add(groups, record)
        for remark in query.wanted.remarks():
            self._context.warn(remark)
        if not groups and self._by is None:
            groups[None] = _Group()
        return self._as_rows(groups)

    def _attribute(self, option: str, slug: str) -> Attribute:
        head, _, part = slug.partition(".") if slug not in self._attributes else (slug, "", "")
        attribute = self._attributes.get(head)
        if attribute is None or (part and (option != "--by" or attribute.type not in COMPOSITE_TYPES)):
            meant = did_you_mean(slug, self._attributes)
            hint = f"{meant} attributes: {', '.join(self._attributes)}".strip()
            raise UsageError(f"{option} {slug}: {self._object} has no such attribute", hint=hint, code="unknown_attribute")
        return attribute

    def _numeric(self) -> str | None:
        slugs = [
            attribute.slug for attribute in self._attributes.values() if attribute.type in (AttributeType.NUMBER, AttributeType.CURRENCY)
        ]
        return f"those that do: {', '.join(slugs)}" if slugs else None

    def _counted(self) -> list[Json] | None:
        """Count with one request per option of a select; None if reading is necessary or takes no more requests."""
        by = self._by
        if by is None or self._measures.measured or by.slug != self._measures.by or by.type != AttributeType.SELECT or by.is_list:
            return None
        if not by.options or not self._wanted.is_plain:
            return None
        total = self._count(())
        if -(-total // PAGE_LIMIT) <= len(by.options) + 1:
            return None
        requests = len(by.options) + 1
        if requests > MANY_LISTS and self._context.agree(ReadingCost(requests, f"counting {self._object} by {by.slug}", self._object)):
            return None
        counts = {option: self._count((Condition(by.slug, Operator.EQUALS, option),)) for option in by.options}
        empty = self._count((Condition(by.slug, Operator.IS_EMPTY),))
        if sum(counts.values()) + empty != total:
            return None  # former options, or a service that ignores the filter
        rows = [{by.slug: option, "count": count} for option, count in counts.items() if count]
        return [*rows, {by.slug: None, "count": empty}] if empty else rows

    def _count(self, more: tuple[Condition, ...]) -> int:
        wanted = replace(self._wanted, conditions=self._wanted.conditions + more)
        return RecordQuery(self._context, self._object, wanted).count()

    def _add(self, groups: dict[Any, _Group], record: Record) -> None:
        for value in self._values(record):
            group = groups.setdefault(value, _Group())
            group.count += 1
            for slug in self._measures.measured:
                for number, code in self._numbers(slug, record):
                    group.add(slug, code, number)

    def _numbers(self, slug: str, record: Record) -> list[tuple[Decimal, str | None]]:
        attribute = self._attributes[slug]
        numbers = []
        for element in elements_of(record.data.get(slug)):
            number = number_in(attribute, element)
            if number is not None:
                codes = parts_of(attribute, element, "currency") if isinstance(element, dict) else []
                numbers.append((number, str(codes[0]) if codes else None))
        return numbers

    def _values(self, record: Record) -> Iterator[Any]:
        """Yield the values that a record counts for. A record with a list counts for each of its values."""
        if self._by is None:
            yield None
            return
        value = record.data.get(self._by.slug)
        part = (self._measures.by or "")[len(self._by.slug) + 1 :]
        values = parts_of(self._by, value, part) if part else elements_of(value)
        keys = dict.fromkeys(_hashable(value) for value in values if value not in (None, "", {}))
        yield from keys or [None]

    def _as_rows(self, groups: dict[Any, _Group]) -> list[Json]:
        codes: dict[str, dict[str | None, None]] = {slug: {} for slug in self._measures.measured}
        for group in groups.values():
            for slug, code in group.sums:
                codes[slug][code] = None
        self.codes = {slug: [code for code in found if code] for slug, found in codes.items()}
        for slug, found in codes.items():
            if len(found) > 1:
                named = ", ".join(sorted(code or "no currency" for code in found))
                self._context.warn(f"{slug} is in several currencies, which are not added up: {named}")
        return [self._row(value, group, codes) for value, group in sorted(groups.items(), key=self._place)]

    def _place(self, item: tuple[Any, _Group]) -> tuple[bool, int, int, str]:
        """Sort options in their order, other values by count, and empty values last."""
        value, group = item
        options = self._by.options if self._by is not None else []
        return value is None, options.index(value) if value in options else len(options), -group.count, str(value)

    def _row(self, value: Any, group: _Group, codes: Mapping[str, Mapping[str | None, None]]) -> Json:
        row: Json = {self._measures.by: value} if self._measures.by is not None else {}
        row["count"] = group.count
        row |= {f"sum_{slug}": self._measured(group, slug, codes[slug], _sum) for slug in self._measures.sums}
        return row | {f"avg_{slug}": self._measured(group, slug, codes[slug], _average) for slug in self._measures.averages}

    @staticmethod
    def _measured(group: _Group, slug: str, codes: Mapping[str | None, None], measure: Measure) -> Any:
        """Return one number, or one for each of several currencies."""
        measured = {code: measure(*group.sums.get((slug, code), (Decimal(0), 0))) for code in codes}
        if len(measured) > 1:
            return {code or "": number for code, number in measured.items() if (slug, code) in group.sums}
        return next(iter(measured.values()), measure(Decimal(0), 0))


def _sum(total: Decimal, _count: int) -> int | Decimal | None:
    return as_number(total)


def _average(total: Decimal, count: int) -> int | Decimal | None:
    return as_number(AVERAGED.divide(total, Decimal(count))) if count else None


def _hashable(value: Any) -> Any:
    return jsontext.dumps(value) if isinstance(value, dict | list) else value


def as_number(number: Decimal) -> int | Decimal:
    """Return an exact number as JSON has it."""
    whole = number.to_integral_value()
    return int(whole) if whole == number else Decimal(plain_decimal(number.normalize(Context(prec=max(1, len(number.as_tuple().digits))))))


def sample(query: RecordQuery, count: int, seed: int | None) -> list[Record]:
    """Return `count` random records, oldest first. The same seed selects the same records as long as nothing changes.

    A plain filter takes at most one request more than records. For any other filter crmctl reads all matching records.
    """
    chance = random.Random(seed)
    query.order = ListOrder("created_at", "asc")
    if not query.wanted.is_plain:
        return _of_all(query, count, chance)
    first = query.fetch(PAGE_LIMIT, 0)
    total = first.total
    if total is None:
        return _of_all(query, count, chance)
    query.total = total
    places = sorted(chance.sample(range(total), min(count, total)))
    records = [first.items[place] for place in places if place < len(first.items)]
    parts = _together([place for place in places if place >= len(first.items)])
    cost = ReadingCost(len(parts), f"reading {count:,} of {total:,} records of {query.object_name}", query.object_name)
    if len(parts) > MANY_LISTS and not query.is_mirrored and query.agree(cost):
        return sample(query, count, seed)
    for inside in parts:
        while inside:
            page = query.fetch(inside[-1] - inside[0] + 1, inside[0])
            records += [page.items[place - inside[0]] for place in inside if place - inside[0] < len(page.items)]
            # A page may be shorter than requested.
            inside = [place for place in inside if place - inside[0] >= len(page.items)] if page.items else []
    return records


def _together(places: list[int]) -> list[list[int]]:
    """Group sorted places into parts that fit a page."""
    parts: list[list[int]] = []
    for place in places:
        if parts and place < parts[-1][0] + PAGE_LIMIT:
            parts[-1].append(place)
        else:
            parts.append([place])
    return parts


def _of_all(query: RecordQuery, count: int, chance: random.Random) -> list[Record]:
    kept: list[tuple[int, Record]] = []
    for number, record in enumerate(query.records()):
        if len(kept) < count:
            kept.append((number, record))
        elif (place := chance.randrange(number + 1)) < count:
            kept[place] = (number, record)
    return [record for _, record in sorted(kept, key=lambda pair: pair[0])]
