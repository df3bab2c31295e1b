"""Which records are wanted: what the service is asked, and what is decided here. Made by `clauses.py`, answered by `record_query.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from crmctl.models.filters import Condition
from crmctl.models.records import Record
from crmctl.models.timestamps import micros_of

Admits = Callable[[Record], bool]

WHEN: dict[str, Callable[[Record], str | None]] = {
    "created_at": lambda record: record.created_at,
    "updated_at": lambda record: record.updated_at,
}
"""The two times of a record, by the names that lists are sorted by."""


def micros_at(record: Record, name: str) -> int | None:
    """A time of a record in microseconds."""
    return micros_of(WHEN[name](record))


@dataclass(frozen=True)
class Criterion:
    """A condition that is decided here. `remark` says afterwards what could not be decided."""

    admits: Admits
    remark: Callable[[], str | None] = lambda: None


@dataclass(frozen=True)
class AnyOf:
    """Conditions of which a record must meet one: one list of the service for each. `admits` decides the same here.

    `is_disjoint`: no record can be in two of the lists.
    """

    conditions: tuple[Condition, ...]
    admits: Admits
    is_disjoint: bool = False


@dataclass(frozen=True)
class Narrowing:
    """Conditions on a composite of which every record that meets the criteria meets one, if the service looks into composites.

    `part` gives the text of the part in question, which tells whether it does.
    """

    slug: str
    conditions: tuple[Condition, ...]
    part: Callable[[Any], str | None]


@dataclass(frozen=True)
class Bound:
    """A time of the record, from `least` on and before `below`, in microseconds; `conditions` ask the service for the same."""

    name: str
    least: int | None = None
    below: int | None = None
    conditions: tuple[Condition, ...] = ()

    def admits(self, record: Record) -> bool:
        at = micros_at(record, self.name)
        return at is not None and not self.is_before(at) and not self.is_after(at)

    def is_before(self, at: int) -> bool:
        return self.least is not None and at < self.least

    def is_after(self, at: int) -> bool:
        return self.below is not None and at >= self.below

    def within(self, other: Bound) -> Bound:
        """Both at once."""
        least = max((one for one in (self.least, other.least) if one is not None), default=None)
        below = min((one for one in (self.below, other.below) if one is not None), default=None)
        return Bound(self.name, least, below, self.conditions + other.conditions)


@dataclass(frozen=True)
class RecordFilter:
    """All must hold. `needs_body`: the conditions can only be asked as a search body. `is_impossible`: nothing can meet it."""

    conditions: tuple[Condition, ...] = ()
    choices: tuple[AnyOf, ...] = ()
    narrowings: tuple[Narrowing, ...] = ()
    criteria: tuple[Criterion, ...] = ()
    bounds: tuple[Bound, ...] = ()
    needs_body: bool = False
    is_impossible: bool = False

    @property
    def is_plain(self) -> bool:
        """The service decides all of it with one list."""
        return not (self.choices or self.narrowings or self.criteria or self.bounds or self.is_impossible)

    def __and__(self, other: RecordFilter) -> RecordFilter:
        bounds = {bound.name: bound for bound in self.bounds}
        for bound in other.bounds:
            bounds[bound.name] = bounds[bound.name].within(bound) if bound.name in bounds else bound
        return RecordFilter(
            self.conditions + other.conditions,
            self.choices + other.choices,
            self.narrowings + other.narrowings,
            self.criteria + other.criteria,
            tuple(bounds.values()),
            self.needs_body or other.needs_body,
            self.is_impossible or other.is_impossible,
        )

    def without_choices(self) -> RecordFilter:
        """The same, decided here instead of by a list for each value."""
        return replace(self, choices=(), criteria=self.criteria + tuple(Criterion(choice.admits) for choice in self.choices))

    def remarks(self) -> Sequence[str]:
        """What could not be decided, once records were read."""
        return [remark for criterion in self.criteria if (remark := criterion.remark())]


@dataclass(frozen=True)
class ListOrder:
    """The order of a list: by `created_at` or `updated_at` by the service, by anything else here, with those without a value last."""

    sort: str | None = None
    order: str | None = None
    key: Callable[[Record], Any] | None = field(default=None, compare=False)

    @property
    def is_descending(self) -> bool:
        return self.order == "desc" if self.key is not None else self.order != "asc"
