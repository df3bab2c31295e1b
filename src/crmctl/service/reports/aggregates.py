"""Groups and measures over rows of keys: count, sum, avg, min, max in exact decimal arithmetic. Pure; missing values are left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import Any

from crmctl.models.folded_text import fold
from crmctl.service.faults import BadRequest
from crmctl.service.reports.definition import Measure, Plan
from crmctl.service.values.kinds import KINDS, Family
from crmctl.service.values.numbers import MAX_DIGITS, number_of
from crmctl.service.values.projection import keys_in

MOST_GROUPS = 100_000

# Wide enough that no sum of values the service takes is ever rounded.
_EXACT = Context(prec=4 * MAX_DIGITS)
_AVERAGE = Context(prec=28)


@dataclass
class Tally:
    """One measure of one group so far; `lowest` and `highest` are keys."""

    count: int = 0
    total: Decimal = Decimal(0)
    lowest: str | None = None
    highest: str | None = None


@dataclass
class Group:
    """`key` is None for the records without a value; `first` is the sequence number of its first record."""

    key: str | None
    first: int
    records: int = 0
    tallies: list[Tally] = field(default_factory=list)


def aggregate(plan: Plan, rows: Iterable[Sequence[Any]]) -> list[Group]:
    """Rows are `(seq, group key, measured keys...)`, the group key only with a group. A record with several values is in several groups."""
    groups: dict[str | None, Group] = {}
    if plan.group is None:
        groups[None] = _new_group(plan, None, 0)
    skip = 1 if plan.group is None else 2
    for row in rows:
        for key in _group_keys(plan, row):
            group = groups.get(key)
            if group is None:
                if len(groups) >= MOST_GROUPS:
                    raise BadRequest(f"the report has more than {MOST_GROUPS:,} groups; filter it or group by something coarser")
                group = groups[key] = _new_group(plan, key, row[0])
            group.records += 1
            for measure, tally, stored in zip(plan.measures, group.tallies, row[skip:], strict=True):
                if stored is not None:
                    _count(measure, tally, stored)
    return list(groups.values())


def measured(measure: Measure, group: Group, tally: Tally) -> int | Decimal | str | None:
    """The result: the sum of nothing is 0, its average, minimum and maximum are None."""
    match measure.function:
        case "count":
            return group.records if measure.attribute is None else tally.count
        case "sum":
            return plain_number(tally.total)
        case "avg":
            return plain_number(_AVERAGE.divide(tally.total, Decimal(tally.count))) if tally.count else None
        case "min":
            return value_of(measure, tally.lowest)
        case _:
            return value_of(measure, tally.highest)


def value_of(measure: Measure, key: str | None) -> int | Decimal | str | None:
    if key is None or measure.attribute is None:
        return None
    return plain_number(number_of(key)) if KINDS[measure.attribute.type].family is Family.NUMBER else key


def plain_number(number: Decimal) -> int | Decimal:
    """An integer where it is one; otherwise without zeros at the end."""
    return int(number) if number == number.to_integral_value(context=_EXACT) else number.normalize(_EXACT)


def arrange(plan: Plan, groups: list[Group]) -> list[Group]:
    """In the order the report asks for: by group unless it says otherwise, what has no value last, at most `limit`."""
    by_group = plan.sort is None or (plan.group is not None and plan.sort == plan.group.slug)
    ordered = _sorted(groups, _group_order, descending=by_group and plan.descending)
    if not by_group:
        position = next(index for index, measure in enumerate(plan.measures) if measure.name == plan.sort)
        measure = plan.measures[position]
        ordered = _sorted(ordered, lambda group: measured(measure, group, group.tallies[position]), descending=plan.descending)
    return ordered[: plan.limit]


def _sorted(groups: list[Group], order: Any, *, descending: bool) -> list[Group]:
    values = [(order(group), group) for group in groups]
    present = sorted((pair for pair in values if pair[0] is not None), key=lambda pair: pair[0], reverse=descending)
    return [group for _, group in present] + [group for value, group in values if value is None]


def _group_order(group: Group) -> tuple[str, str] | None:
    return None if group.key is None else (fold(group.key), group.key)


def _group_keys(plan: Plan, row: Sequence[Any]) -> Sequence[str | None]:
    if plan.group is None:
        return (None,)
    if row[1] is None or not plan.group.holds_many:
        return (row[1],)
    return tuple(dict.fromkeys(keys_in(plan.group, row[1])))


def _new_group(plan: Plan, key: str | None, first: int) -> Group:
    return Group(key, first, 0, [Tally() for _ in plan.measures])


def _count(measure: Measure, tally: Tally, stored: str) -> None:
    attribute = measure.attribute
    if attribute is None:
        return
    if measure.function == "count":
        tally.count += 1
        return
    for key in keys_in(attribute, stored):
        tally.count += 1
        if measure.function in ("sum", "avg"):
            tally.total = _EXACT.add(tally.total, number_of(key))
        elif measure.function == "min":
            tally.lowest = key if tally.lowest is None or key < tally.lowest else tally.lowest
        else:
            tally.highest = key if tally.highest is None or key > tally.highest else tally.highest
