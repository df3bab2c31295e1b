"""How many records there are by a value, and sums and averages of others: counted by the service where that takes fewer requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from typing import Any

from crmctl.client.queries.parts import parts_of
from crmctl.client.queries.query_context import QueryContext, ReadingCost
from crmctl.client.queries.record_filter import ListOrder, RecordFilter
from crmctl.client.queries.record_query import MANY_LISTS, RecordQuery
from crmctl.errors import UsageError
from crmctl.models import jsontext
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.comparison import elements_of, number_key
from crmctl.models.composites import COMPOSITE_TYPES
from crmctl.models.filters import Condition, Operator
from crmctl.models.nearest import did_you_mean
from crmctl.models.numbers import plain_decimal
from crmctl.models.records import PAGE_LIMIT, Record

Measure = Callable[[Decimal, int], int | Decimal | None]

EXACT = Context(prec=2200)
AVERAGED = Context(prec=28)


@dataclass(frozen=True)
class Measures:
    """`by` may name a part of a composite; `sums` and `averages` name attributes that hold numbers or money."""

    by: str | None = None
    sums: Sequence[str] = ()
    averages: Sequence[str] = ()

    @property
    def measured(self) -> list[str]:
        return list(dict.fromkeys([*self.sums, *self.averages]))


@dataclass
class _Group:
    """What was seen of one value: how many records, and by attribute and currency the sum and number of amounts."""

    count: int = 0
    sums: dict[tuple[str, str | None], tuple[Decimal, int]] = field(default_factory=dict)

    def add(self, slug: str, code: str | None, number: Decimal) -> None:
        before, count = self.sums.get((slug, code), (Decimal(0), 0))
        self.sums[slug, code] = EXACT.add(before, number), count + 1


class RecordGroups:
    """Rows of a count: one for each value of `by`, most first unless it is a select, those without a value last."""

    def __init__(
        self, context: QueryContext, object_name: str, wanted: RecordFilter, measures: Measures, attributes: dict[str, Attribute]
    ) -> None:
        """Raises UsageError for an attribute that is not there, or holds no numbers."""
        self._context = context
        self._object = object_name
        self._wanted = wanted
        self._measures = measures
        self._attributes = attributes
        self.codes: dict[str, list[str]] = {}
        """Once there are rows: the currencies of what is added up."""
        self._by = self._attribute("--by", measures.by) if measures.by is not None else None
        for option, slugs in (("--sum", measures.sums), ("--avg", measures.averages)):
            for slug in slugs:
                attribute = self._attribute(option, slug)
                if attribute.type not in (AttributeType.NUMBER, AttributeType.CURRENCY):
                    raise UsageError(f"{option} {slug}: a {attribute.type} attribute holds no numbers", hint=self._numeric())

    def rows(self) -> list[dict[str, Any]]:
        """The rows. Raises what reading raises."""
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
        slugs = [each.slug for each in self._attributes.values() if each.type in (AttributeType.NUMBER, AttributeType.CURRENCY)]
        return f"those that do: {', '.join(slugs)}" if slugs else None

    def _counted(self) -> list[dict[str, Any]] | None:
        """By the service, one request for each option of a select; None where reading takes no more requests, or is needed."""
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
            return None  # values that are no options any more, or a service that does not heed the filter
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
        found = []
        for element in elements_of(record.data.get(slug)):
            number = number_key(attribute, element)
            if number is not None:
                codes = parts_of(attribute, element, "currency") if isinstance(element, dict) else []
                found.append((number, str(codes[0]) if codes else None))
        return found

    def _values(self, record: Record) -> Iterator[Any]:
        """What a record counts for: a record with a list counts for each of its values."""
        if self._by is None:
            yield None
            return
        value = record.data.get(self._by.slug)
        part = (self._measures.by or "")[len(self._by.slug) + 1 :]
        values = parts_of(self._by, value, part) if part else elements_of(value)
        found = dict.fromkeys(_hashable(one) for one in values if one not in (None, "", {}))
        yield from found or [None]

    def _as_rows(self, groups: dict[Any, _Group]) -> list[dict[str, Any]]:
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
        """Options in their order, other values with the most first, those without one last."""
        value, group = item
        options = self._by.options if self._by is not None else []
        return value is None, options.index(value) if value in options else len(options), -group.count, str(value)

    def _row(self, value: Any, group: _Group, codes: Mapping[str, Mapping[str | None, None]]) -> dict[str, Any]:
        row: dict[str, Any] = {self._measures.by: value} if self._measures.by is not None else {}
        row["count"] = group.count
        row |= {f"sum_{slug}": self._measured(group, slug, codes[slug], _sum) for slug in self._measures.sums}
        return row | {f"avg_{slug}": self._measured(group, slug, codes[slug], _average) for slug in self._measures.averages}

    @staticmethod
    def _measured(group: _Group, slug: str, codes: Mapping[str | None, None], measure: Measure) -> Any:
        """One number, or one for each currency where there are several."""
        found = {code: measure(*group.sums.get((slug, code), (Decimal(0), 0))) for code in codes}
        if len(found) > 1:
            return {code or "": number for code, number in found.items() if (slug, code) in group.sums}
        return next(iter(found.values()), measure(Decimal(0), 0))


def _sum(total: Decimal, _count: int) -> int | Decimal | None:
    return as_number(total)


def _average(total: Decimal, count: int) -> int | Decimal | None:
    return as_number(AVERAGED.divide(total, Decimal(count))) if count else None


def _hashable(value: Any) -> Any:
    return jsontext.dumps(value) if isinstance(value, dict | list) else value


def as_number(number: Decimal) -> int | Decimal:
    """An exact number as JSON has it."""
    whole = number.to_integral_value()
    return int(whole) if whole == number else Decimal(plain_decimal(number.normalize(Context(prec=max(1, len(number.as_tuple().digits))))))
