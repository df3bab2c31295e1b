"""Filters of a query: the conditions for the service, and the tests that crmctl evaluates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from itertools import product
from typing import Any, NamedTuple, Protocol, Unpack

from crmctl.client.answers import ListQuery, Page
from crmctl.client.directory import Getter, SchemaLookup
from crmctl.errors import UsageError
from crmctl.frozen import frozen
from crmctl.models.resources import Record
from crmctl.values.filters import Condition
from crmctl.values.moments import micros_of

Admits = Callable[[Record], bool]


def micros_at(record: Record, name: str) -> int | None:
    return micros_of(record.created_at if name == "created_at" else record.updated_at)


@frozen
class LocalCondition:
    """A condition that no single list of the service answers; `admits` evaluates it.

    A record that it admits meets one of the `conditions`, which the service evaluates. `is_exact`: their lists are the answer;
    `is_disjoint`: no record is in two of them. Others only narrow the list, if the service searches inside composites: `part` returns the
    text of the part in question, with which crmctl probes that. Once records were read, `remark` names those that it could not evaluate.
    """

    admits: Admits
    conditions: tuple[Condition, ...] = ()
    is_exact: bool = False
    is_disjoint: bool = False
    part: Callable[[Any], str | None] = lambda _: None
    remark: Callable[[], str | None] = lambda: None


@frozen
class Bound:
    """A range of a record's time in microseconds, from `least` to before `below`. `conditions` ask the service for the same."""

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
        least = max((bound for bound in (self.least, other.least) if bound is not None), default=None)
        below = min((bound for bound in (self.below, other.below) if bound is not None), default=None)
        return Bound(self.name, least, below, self.conditions + other.conditions)


@frozen
class RecordFilter:
    """Requirements that must all hold. `needs_body`: only a search body can hold the conditions. `is_impossible`: no record can match."""

    conditions: tuple[Condition, ...] = ()
    local_conditions: tuple[LocalCondition, ...] = ()
    bounds: tuple[Bound, ...] = ()
    needs_body: bool = False
    is_impossible: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the service evaluates the whole filter in one list."""
        return not (self.local_conditions or self.bounds or self.is_impossible)

    @property
    def is_exact(self) -> bool:
        """Whether the lists of the service need no test but that of the bounds."""
        return all(condition.is_exact for condition in self.local_conditions)

    @property
    def choices(self) -> Sequence[LocalCondition]:
        """Conditions that the service answers with a list for each alternative."""
        return [condition for condition in self.local_conditions if condition.is_exact]

    @property
    def prefilters(self) -> Sequence[LocalCondition]:
        """Conditions on composites that the service can narrow the list for."""
        return [condition for condition in self.local_conditions if condition.conditions and not condition.is_exact]

    def __and__(self, other: RecordFilter) -> RecordFilter:
        bounds = {bound.name: bound for bound in self.bounds}
        for bound in other.bounds:
            bounds[bound.name] = bounds[bound.name].within(bound) if bound.name in bounds else bound
        return RecordFilter(
            self.conditions + other.conditions,
            self.local_conditions + other.local_conditions,
            tuple(bounds.values()),
            self.needs_body or other.needs_body,
            self.is_impossible or other.is_impossible,
        )

    def lists(self) -> list[tuple[Condition, ...]]:
        """Return the conditions of each list of the service; together the lists hold every matching record."""
        base = self.conditions + tuple(condition for bound in self.bounds for condition in bound.conditions)
        alternatives = [condition.conditions for condition in self.local_conditions if condition.conditions]
        return [base + chosen for chosen in product(*alternatives)]

    def decided_here(self, *, choices: bool = False, parts: bool = False, times: bool = False) -> RecordFilter:
        """Return the filter with nothing but local tests for these kinds of conditions."""
        local = tuple(
            LocalCondition(condition.admits, remark=condition.remark) if (choices if condition.is_exact else parts) else condition
            for condition in self.local_conditions
        )
        bounds = tuple(replace(bound, conditions=()) for bound in self.bounds) if times else self.bounds
        return replace(self, local_conditions=local, bounds=bounds)

    def remarks(self) -> Sequence[str]:
        """Return the remarks of all local conditions, once records were read."""
        return [remark for condition in self.local_conditions if (remark := condition.remark())]


@frozen
class ListOrder:
    """The order of a list. The service sorts by `created_at` or `updated_at`, crmctl by everything else, with empty values last."""

    sort: str | None = None
    order: str | None = None
    key: Callable[[Record], Any] | None = field(default=None, compare=False)
    prepare: Callable[[Sequence[Record]], None] = field(default=lambda _: None, compare=False)
    """Called with the records before their keys are needed."""

    @property
    def is_descending(self) -> bool:
        return self.order == "desc" if self.key is not None else self.order != "asc"


class ReadingCost(NamedTuple):
    """Requests beyond those that return the answer, and their purpose; `of` is the object whose records they read."""

    requests: int
    purpose: str
    of: str = ""


class RecordLists(Getter, Protocol):
    """A source of records: the service or the mirror."""

    def search_records(self, object_id: str, **query: Unpack[ListQuery]) -> Page[Record]: ...


def _nothing(*_: object) -> None:
    """Ignore the call."""


@frozen
class QueryContext:
    """The surroundings of a query. `approve` is called with each cost before it arises, and raises to avoid it.

    `at_hand` returns the mirror if it can answer instead of the service; `named_at_hand` does so for labels that the user did not ask for.
    `warn` receives likely mistakes, `tell` details.
    """

    crm: RecordLists
    directory: SchemaLookup
    now: float
    approve: Callable[[ReadingCost], None] = _nothing
    at_hand: Callable[[ReadingCost], RecordLists | None] = _nothing
    named_at_hand: Callable[[ReadingCost], RecordLists | None] = _nothing
    warn: Callable[[str], None] = _nothing
    tell: Callable[[str], None] = _nothing
    strict: bool = False

    def agree(self, cost: ReadingCost) -> RecordLists | None:
        """Return the mirror if it has the records, else None once the cost is approved. Raises the errors of `approve`."""
        mirror = self.at_hand(cost)
        if mirror is None:
            self.approve(cost)
        return mirror

    def doubt(self, text: str, hint: str | None = None) -> None:
        """Warn that a condition cannot match. Raises UsageError in strict mode."""
        if self.strict:
            raise UsageError(text, hint=hint, code="impossible_value")
        self.warn(f"{text}; {hint}" if hint else text)
