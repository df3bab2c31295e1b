"""Counts and measures by group, and random samples."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Context, Decimal
from itertools import product
from typing import Any, NamedTuple

from crmctl.client.directory import SORTS
from crmctl.client.query.clauses import parts_of, values_along
from crmctl.client.query.record_filter import ListOrder, QueryContext, ReadingCost, RecordFilter
from crmctl.client.query.record_query import MANY_LISTS, RecordQuery
from crmctl.client.query.related_records import FieldLookups
from crmctl.errors import UsageError
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.ids import did_you_mean
from crmctl.models.jsontext import Json
from crmctl.models.numbers import plain_decimal
from crmctl.models.resources import PAGE_LIMIT, Attribute, AttributeType, Record
from crmctl.values.attribute_types import COMPOSITE_TYPES
from crmctl.values.conditions import elements_of, number_in
from crmctl.values.filters import Condition
from crmctl.values.moments import moment_of
from crmctl.values.operators import Operator

Wire = Mapping[str, Any]

EXACT = Context(prec=2200)
AVERAGED = Context(prec=28)
AVERAGE_PLACES = 6

UNITS: dict[str, Callable[[date], str]] = {
    "day": lambda day: day.isoformat(),
    "week": lambda day: f"{day.isocalendar().year:04}-W{day.isocalendar().week:02}",
    "month": lambda day: day.isoformat()[:7],
    "quarter": lambda day: f"{day.year:04}-Q{(day.month + 2) // 3}",
    "year": lambda day: day.isoformat()[:4],
}
"""The units of a date in --by, as in `created_at:month`, and the text of the one that a day is in."""


class Amounts(NamedTuple):
    """The numbers of one attribute in one group and currency."""

    total: Decimal
    size: int
    least: Decimal
    most: Decimal

    def plus(self, number: Decimal) -> Amounts:
        return Amounts(EXACT.add(self.total, number), self.size + 1, min(self.least, number), max(self.most, number))


MEASURES: dict[str, Callable[[Amounts | None], Decimal | None]] = {
    "sum": lambda amounts: amounts.total if amounts else Decimal(0),
    "avg": lambda amounts: round(AVERAGED.divide(amounts.total, Decimal(amounts.size)), AVERAGE_PLACES) if amounts else None,
    "min": lambda amounts: amounts.least if amounts else None,
    "max": lambda amounts: amounts.most if amounts else None,
}
"""The measures of a count: each is an option and the beginning of a column's name."""


@frozen
class Measures:
    """Requested groups and measures. `by` names attributes, parts, fields of referenced records, or dates with a unit."""

    by: Sequence[str] = ()
    of: Sequence[tuple[str, str]] = ()
    """Pairs of a measure and an attribute with numbers or money."""

    @property
    def measured(self) -> list[str]:
        return list(dict.fromkeys(slug for _, slug in self.of))


@dataclass
class _Group:
    """The number of records of a group, and amounts by attribute and currency."""

    count: int = 0
    amounts: dict[tuple[str, str | None], Amounts] = field(default_factory=dict)

    def add(self, slug: str, code: str | None, number: Decimal) -> None:
        amounts = self.amounts.get((slug, code))
        self.amounts[slug, code] = amounts.plus(number) if amounts else Amounts(number, 1, number, number)


class _By(NamedTuple):
    """One --by: its attribute (None for the time of creation or change), the path behind it, and the unit of a date."""

    name: str
    attribute: Attribute | None
    path: str
    unit: str

    @property
    def options(self) -> Sequence[str]:
        return self.attribute.options if self.attribute is not None and not self.path else ()

    def values(self, wire: Wire) -> list[Any]:
        """Return the values that a record counts for: each of a list, or None."""
        if self.attribute is None:
            elements = [wire.get(self.path)]
        else:
            value = (wire.get("data") or {}).get(self.attribute.slug)
            is_part = self.path and self.attribute.type in COMPOSITE_TYPES
            elements = parts_of(self.attribute, value, self.path) if is_part else list(values_along(value, self.path))
        if self.unit:
            elements = [period(element, UNITS[self.unit]) for element in elements]
        filled = [element for element in elements if element not in (None, "", {})]
        return list(dict.fromkeys(_Composite(jsontext.dumps(value)) if isinstance(value, dict | list) else value for value in filled)) or [
            None
        ]


class _Composite(str):
    """A composite value as JSON text, which can be the key of a group."""


def period(value: Any, unit: Callable[[date], str]) -> str | None:
    """Return the unit that a date is in, of a timestamp in local time; None for any other value."""
    moment = moment_of(value) if isinstance(value, str) else None
    if moment is None:
        return None
    return unit((moment.astimezone() if "T" in str(value) else moment).date())


class RecordGroups:
    """Rows of a count, one for each group, the largest first."""

    def __init__(
        self, context: QueryContext, object_name: str, record_filter: RecordFilter, measures: Measures, attributes: dict[str, Attribute]
    ) -> None:
        """Raises UsageError for an unknown attribute and for a measure without numbers."""
        self._context = context
        self._object = object_name
        self._wanted = record_filter
        self._measures = measures
        self._attributes = attributes
        self._by = [self._read_by(name) for name in measures.by]
        self._lookups = FieldLookups(context, attributes.values(), [by.name.partition(":")[0] for by in self._by])
        numeric = [attribute.slug for attribute in attributes.values() if attribute.type in (AttributeType.NUMBER, AttributeType.CURRENCY)]
        for measure, slug in measures.of:
            attribute = self._attribute(f"--{measure}", slug)
            if slug not in numeric:
                hint = f"those that do: {', '.join(numeric)}" if numeric else None
                raise UsageError(f"--{measure} {slug}: a {attribute.type} attribute holds no numbers", hint=hint)
        self.codes: dict[str, list[str]] = {}
        """Once there are rows, the currencies of each measured attribute."""
        self._unreadable = Counter[str]()
        """Values of each measured attribute that hold no number."""

    def rows(self, sort: str | None = None) -> list[Json]:
        """Return the rows; `sort` is count or a --by, with - before it in descending order. Raises the errors of requests."""
        name = (sort or "-count").removeprefix("-")
        if name != "count" and name not in self._measures.by:
            raise UsageError(
                f"--sort {sort}: a count is sorted by count or by a --by", hint=f"one of: {', '.join(['count', *self._measures.by])}"
            )
        return [
            {name: jsontext.loads(value) if isinstance(value, _Composite) else value for name, value in row.items()}
            for row in self._sorted(self._as_rows(self._counted() or self._read()), name, sort)
        ]

    def _sorted(self, rows: list[Json], name: str, sort: str | None) -> list[Json]:
        by_value = sorted(rows, key=lambda row: [self._place(by, row[by.name]) for by in self._by])
        if name == "count":
            return sorted(by_value, key=lambda row: row["count"] * (1 if sort == "count" else -1))
        by = next(by for by in self._by if by.name == name)
        filled = [row for row in by_value if row[name] is not None]
        filled.sort(key=lambda row: self._place(by, row[name]), reverse=(sort or "").startswith("-"))
        return filled + [row for row in by_value if row[name] is None]

    def _place(self, by: _By, value: Any) -> tuple[int, int | Decimal, str]:
        """Sort options in their order, numbers before texts, and empty values last."""
        if value is None:
            return 3, 0, ""
        if value in by.options:
            return 0, by.options.index(value), ""
        is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
        return (1, Decimal(str(value)), "") if is_number else (2, 0, str(value))

    def _read(self) -> dict[tuple[Any, ...], _Group]:
        groups: dict[tuple[Any, ...], _Group] = {} if self._by else {(): _Group()}
        query = RecordQuery(self._context, self._object, self._wanted, ListOrder(None, "asc"), "to count them")
        wires: Iterable[Wire] = (record.wire for record in query.records())
        if self._lookups.slugs:
            self._lookups.expect(query.count())
            wires = self._lookups.expand_all(wires)
        for wire in wires:
            numbers = [(slug, number, code) for slug in self._measures.measured for number, code in self._numbers(slug, wire)]
            for key in product(*(by.values(wire) for by in self._by)):
                group = groups.setdefault(key, _Group())
                group.count += 1
                for slug, number, code in numbers:
                    group.add(slug, code, number)
        for slug, count in self._unreadable.items():
            self._context.warn(f"{slug} holds no number in {count:,} value{'' if count == 1 else 's'}, which no measure counts")
        for remark in query.wanted.remarks():
            self._context.warn(remark)
        return groups

    def _read_by(self, text: str) -> _By:
        """Return a --by as an attribute, a path and a unit. Raises UsageError."""
        name, colon, unit = text.rpartition(":") if text not in self._attributes else (text, "", "")
        name, unit = (name, unit) if colon else (text, "")
        example = f"--by {name}:month; units: {', '.join(UNITS)}"
        if unit and unit not in UNITS:
            raise UsageError(f"--by {text}: {unit!r} is no unit of time", hint=example)
        if name in SORTS and name not in self._attributes:
            if not unit:
                raise UsageError(f"--by {text} needs a unit of time", hint=example)
            return _By(text, None, "createdAt" if SORTS[name] == "created_at" else "updatedAt", unit)
        attribute = self._attribute("--by", name)
        path = name[len(attribute.slug) + 1 :]
        if unit and (attribute.type not in (AttributeType.DATE, AttributeType.REFERENCE)):
            raise UsageError(f"--by {text}: {name} holds no dates", hint=f"--by {name}")
        return _By(text, attribute, path, unit)

    def _attribute(self, option: str, slug: str) -> Attribute:
        head, _, path = slug.partition(".") if slug not in self._attributes else (slug, "", "")
        attribute = self._attributes.get(head)
        has_path = attribute is not None and (attribute.type in COMPOSITE_TYPES or attribute.type == AttributeType.REFERENCE)
        if attribute is None or (path and (option != "--by" or not has_path)):
            meant = did_you_mean(slug, self._attributes)
            hint = f"{meant} attributes: {', '.join(self._attributes)}".strip()
            raise UsageError(f"{option} {slug}: {self._object} has no such attribute", hint=hint, code="unknown_attribute")
        return attribute

    def _counted(self) -> dict[tuple[Any, ...], _Group] | None:
        """Count with one request per option of a select; None if reading is necessary or takes no more requests."""
        attribute = self._by[0].attribute if len(self._by) == 1 and not self._by[0].path else None
        if attribute is None or self._measures.of or attribute.type != AttributeType.SELECT or attribute.is_list:
            return None
        if not attribute.options or not self._wanted.is_plain:
            return None
        total = self._count(())
        if -(-total // PAGE_LIMIT) <= len(attribute.options) + 1:
            return None
        requests = len(attribute.options) + 1
        if requests > MANY_LISTS and self._context.agree(
            ReadingCost(requests, f"counting {self._object} by {attribute.slug}", self._object)
        ):
            return None
        counts: dict[tuple[Any, ...], int] = {
            (option,): self._count((Condition(attribute.slug, Operator.EQUALS, option),)) for option in attribute.options
        }
        counts[None,] = self._count((Condition(attribute.slug, Operator.IS_EMPTY),))
        if sum(counts.values()) != total:
            return None  # former options, or a service that ignores the filter
        return {key: _Group(count) for key, count in counts.items() if count}

    def _count(self, more: tuple[Condition, ...]) -> int:
        record_filter = replace(self._wanted, conditions=self._wanted.conditions + more)
        return RecordQuery(self._context, self._object, record_filter).count()

    def _numbers(self, slug: str, wire: Wire) -> list[tuple[Decimal, str | None]]:
        attribute = self._attributes[slug]
        numbers = []
        for element in elements_of((wire.get("data") or {}).get(slug)):
            number = number_in(attribute, element)
            if number is None:
                self._unreadable[slug] += element not in ("", {})
            else:
                codes = parts_of(attribute, element, "currency") if isinstance(element, dict) else []
                numbers.append((number, str(codes[0]) if codes else None))
        return numbers

    def _as_rows(self, groups: dict[tuple[Any, ...], _Group]) -> list[Json]:
        codes: dict[str, dict[str | None, None]] = {slug: {} for slug in self._measures.measured}
        for group in groups.values():
            for slug, code in group.amounts:
                codes[slug][code] = None
        self.codes = {slug: sorted(code or "" for code in currencies) for slug, currencies in codes.items()}
        for slug, currencies in self.codes.items():
            if len(currencies) > 1:
                named = ", ".join(code or "no currency" for code in currencies)
                self._context.warn(f"{slug} is in several currencies, which are not added up: {named}")
        rows = []
        for key, group in groups.items():
            row: Json = {**dict(zip(self._measures.by, key, strict=True)), "count": group.count}
            rows.append(row | {f"{measure}_{slug}": self._measured(group, measure, slug) for measure, slug in self._measures.of})
        return rows

    def _measured(self, group: _Group, measure: str, slug: str) -> Any:
        """Return one number, or a list of one for each of several currencies."""
        codes = self.codes[slug]
        if len(codes) > 1:
            amounts_held = ((code, group.amounts.get((slug, code or None))) for code in codes)
            return [{"currency": code or None, "value": as_number(MEASURES[measure](amounts))} for code, amounts in amounts_held if amounts]
        return as_number(MEASURES[measure](group.amounts.get((slug, codes[0] or None)) if codes else None))


def as_number(number: Decimal | None) -> int | Decimal | None:
    """Return an exact number as JSON has it."""
    if number is None:
        return None
    integer = number.to_integral_value()
    return (
        int(integer) if integer == number else Decimal(plain_decimal(number.normalize(Context(prec=max(1, len(number.as_tuple().digits))))))
    )


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
    if len(parts) > MANY_LISTS and query.mirror is None and query.agree(cost):
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
