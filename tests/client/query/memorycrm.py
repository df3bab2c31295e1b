"""A service in memory that imitates the habits of other services and counts its requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from crmctl.client.answers import Page
from crmctl.client.query.record_filter import QueryContext, ReadingCost
from crmctl.errors import NotFoundError, RejectedError
from crmctl.models.resources import Attribute, Record
from crmctl.values.conditions import elements_of, value_test
from crmctl.values.filters import Condition
from crmctl.values.moments import micros_of
from crmctl.values.operators import Operator

COMPANIES = "11111111-1111-4111-8111-111111111111"
NOW = 1_795_000_000.0
"""November 2026."""

ATTRIBUTES = {
    "people": [
        Attribute(id="1", slug="email", type="email", is_unique=True),
        Attribute(id="2", slug="name", type="name"),
        Attribute(id="3", slug="address", type="address"),
        Attribute(id="4", slug="status", type="select", config={"options": ["new", "won", "lost"]}),
        Attribute(id="5", slug="score", type="number"),
        Attribute(id="6", slug="tags", type="list"),
        Attribute(id="7", slug="company", type="reference", config={"allowed_object_id": COMPANIES}),
        Attribute(id="8", slug="amount", type="currency"),
        Attribute(id="9", slug="birthday", type="date"),
    ],
    COMPANIES: [Attribute(id="10", slug="name", type="text"), Attribute(id="11", slug="domain", type="text", is_unique=True)],
}


@dataclass
class MemoryCrm:
    """`flaws`: `refuses times`, `ignores times`, `finds no times`, `refuses parts`, `blind to parts`, `one condition each`, `no total`,
    `counts short pages`."""

    records: dict[str, list[Record]]
    flaws: frozenset[str] = frozenset()
    asked: list[tuple[Condition, ...]] = field(default_factory=list)

    def list_records(self, target: str, *, filters: Sequence[Condition] = (), **paging: Any) -> Page[Record]:
        if "one condition each" in self.flaws:
            filters = list({(each.slug, each.operator): each for each in filters}.values())
        return self._answer(target, filters, **paging)

    def search_records(self, target: str, *, filters: Sequence[Condition] = (), **paging: Any) -> Page[Record]:
        return self._answer(target, filters, **paging)

    def get_record(self, target: str, record_id: str) -> Record:
        found = next((one for one in self.records[target] if one.id == record_id), None)
        if found is None:
            raise NotFoundError("not found", status=404)
        return found

    def _answer(
        self, target: str, filters: Sequence[Condition], *, sort: str | None = None, order: str | None = None, limit: int, offset: int = 0
    ) -> Page[Record]:
        self.asked.append(tuple(filters))
        assert limit <= 100
        name = sort or "created_at"
        tests = [self._test(target, condition) for condition in filters]
        fits = {id(record): all(test(record) for test in tests) for record in self._different(target)}
        found = [record for record in self.records[target] if fits[id(record)]]
        found.sort(key=lambda record: micros_of(getattr(record, name)) or 0, reverse=order != "asc")
        limit = min(limit, 37) if "counts short pages" in self.flaws else limit
        items = found[offset : offset + limit]
        total = None if "no total" in self.flaws else len(items if "counts short pages" in self.flaws else found)
        return Page(items, total if total is None or total >= offset + len(items) else None, limit, offset)

    def _different(self, target: str) -> list[Record]:
        """Return each record once; a test may store the same one many times."""
        return list({id(record): record for record in self.records[target]}.values())

    def _test(self, target: str, condition: Condition) -> Callable[[Record], bool]:
        slug = condition.slug
        if slug in ("created_at", "updated_at"):
            if "refuses times" in self.flaws:
                raise RejectedError(f"unknown attribute {slug}", status=400)
            if "ignores times" in self.flaws or "finds no times" in self.flaws:
                return lambda _: "ignores times" in self.flaws
            moment = value_test(Attribute(id="", slug=slug, type="date"), condition.operator, condition.value)
            return lambda record: moment(getattr(record, slug))
        attribute = next(each for each in ATTRIBUTES[target] if each.slug == slug)
        plain = value_test(attribute, condition.operator, condition.value)
        if attribute.type in ("name", "address", "currency") and condition.operator is not Operator.IS_NOT_EMPTY:
            if "refuses parts" in self.flaws:
                raise RejectedError("not for this type", status=400)
            if "blind to parts" in self.flaws:
                return lambda record: not _has_object(record.data.get(slug)) and plain(record.data.get(slug))
        return lambda record: plain(record.data.get(slug))


def _has_object(value: Any) -> bool:
    return any(isinstance(one, dict) for one in elements_of(value))


class MemoryDirectory:
    def with_object(self, name: str, call: Callable[[str], Any]) -> Any:
        return call(name)

    def attributes(self, name: str) -> list[Attribute]:
        return ATTRIBUTES[name]


@dataclass
class Told:
    """Collects the costs and warnings that a user would see."""

    costs: list[ReadingCost] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def context(self, crm: MemoryCrm, *, strict: bool = False) -> QueryContext:
        return QueryContext(
            crm,  # type: ignore[arg-type]
            MemoryDirectory(),  # type: ignore[arg-type]
            NOW,
            approve=self.costs.append,
            warn=self.warnings.append,
            strict=strict,
        )
