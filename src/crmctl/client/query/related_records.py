"""Fields of referenced records."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from crmctl.client.answers import iterate
from crmctl.client.directory import known_attributes
from crmctl.client.query.clauses import values_along
from crmctl.client.query.record_filter import ListOrder, QueryContext, ReadingCost, RecordFilter, RecordLists
from crmctl.errors import DeniedError, NotFoundError, UsageError
from crmctl.models import jsontext
from crmctl.models.ids import did_you_mean, is_uuid, reference_ids
from crmctl.models.jsontext import Json
from crmctl.models.resources import PAGE_LIMIT, Attribute, AttributeType, Record
from crmctl.values.conditions import text_of
from crmctl.values.folded_text import fold
from crmctl.values.operators import Operator

FEW = 2
"""Most records that crmctl reads one by one without looking at the total."""


class RelatedRecords:
    """Referenced records of one object. `expect` sets the number of references, if known.

    `most` limits the requests; records beyond it stay unknown. If the mirror replaces the service, crmctl requests only the records that
    the mirror lacks.
    """

    def __init__(self, context: QueryContext, target: str, slug: str, *, most: int | None = None) -> None:
        self._context = context
        self._target = target
        self._slug = slug
        self._expected = 0
        self._most = most
        self._found: dict[str, Record | None] = {}
        self._total: int | None = None
        self._has_looked = False
        self._mirror: RecordLists | None = None
        self.left_out = 0
        """Number of requests that `most` prevented."""

    def expect(self, count: int) -> None:
        self._expected = count

    def __getitem__(self, record_id: str) -> Record | None:
        return self._found.get(record_id)

    def read(self, ids: Collection[str]) -> None:
        """Read these records as far as they exist. Raises the errors of requests."""
        self._take_copies(ids)
        missing = self._missing(ids)
        if len(missing) > FEW and not self._has_looked:
            self._look()
            missing = self._missing(ids)
        if not missing:
            return
        cost, as_a_whole = self._cost(missing)
        if self._mirror is None and cost > (FEW if self._most is None else self._most):
            asks = self._context.at_hand if self._most is None else self._context.named_at_hand
            self._mirror = asks(ReadingCost(cost, self._slug, self._target))
            self._take_copies(missing)
            if self._mirror is not None:
                missing = self._missing(ids)
                cost, as_a_whole = len(missing), False
        if self._most is not None and cost > self._most:
            self.left_out += cost
            return
        if cost > FEW:
            self._context.approve(ReadingCost(cost, f"looking up {self._slug}"))
        if self._most is not None:
            self._most -= cost
        if as_a_whole:
            crm = self._context.crm
            for page in iterate(lambda limit, offset: crm.list_records(self._target, limit=limit, offset=offset), offset=PAGE_LIMIT):
                self._found |= {record.id.lower(): record for record in page.items}
        for record_id in self._missing(ids):
            self._found[record_id] = self._get(self._context.crm, record_id)

    def _cost(self, missing: Sequence[str]) -> tuple[int, bool]:
        """Return the number of requests, and whether they read the whole object."""
        pages = -(-((self._total or 0) - PAGE_LIMIT) // PAGE_LIMIT) if self._total is not None else None
        as_a_whole = pages is not None and pages <= max(len(missing), min(self._expected, self._total or 0) - PAGE_LIMIT)
        return pages if as_a_whole and pages is not None else len(missing), as_a_whole

    def _take_copies(self, ids: Collection[str]) -> None:
        if self._mirror is not None:
            copies = {record_id: self._get(self._mirror, record_id) for record_id in self._missing(ids)}
            self._found |= {record_id: record for record_id, record in copies.items() if record is not None}

    def _missing(self, ids: Collection[str]) -> list[str]:
        return [record_id for record_id in dict.fromkeys(ids) if record_id not in self._found]

    def _look(self) -> None:
        """Read the newest records and the total."""
        page = self._context.crm.list_records(self._target, limit=PAGE_LIMIT)
        self._has_looked, self._total = True, page.total
        self._found |= {record.id.lower(): record for record in page.items}

    def _get(self, lists: RecordLists, record_id: str) -> Record | None:
        try:
            return lists.get_record(self._target, record_id)
        except NotFoundError:
            return None


OF_EVERY_RECORD = {"id": "id", "createdAt": "createdAt", "updatedAt": "updatedAt"}

Wire = Mapping[str, Any]


class FieldLookups:
    """Look-ups for the fields that lead through references."""

    def __init__(self, context: QueryContext, attributes: Iterable[Attribute], names: Sequence[str]) -> None:
        """Raises UsageError for a field that the referenced object does not have."""
        by_slug = {attribute.slug: attribute for attribute in attributes}
        through: dict[str, list[str]] = {}
        for name in names:
            head, dot, rest = name.partition(".")
            if dot and name not in by_slug and head in by_slug and by_slug[head].type == AttributeType.REFERENCE:
                through.setdefault(head, []).append(rest)
        self._steps = [_Step(context, by_slug[slug], rests) for slug, rests in through.items()]

    def expect(self, count: int) -> None:
        """Set the number of records to show, which decides how to look them up."""
        for step in self._steps:
            step.expect(count)

    @property
    def slugs(self) -> list[str]:
        """The references that fields lead through."""
        return [step.slug for step in self._steps]

    def expand(self, wires: Sequence[Wire]) -> list[Wire]:
        """Return the records with their references as objects, read with few requests."""
        data = [dict(wire.get("data") or {}) for wire in wires]
        for step in self._steps:
            step.expand(data)
        return [{**wire, "data": values} for wire, values in zip(wires, data, strict=True)] if self._steps else list(wires)

    def expand_all(self, wires: Iterable[Wire]) -> Iterator[Wire]:
        """Expand many records, a page at a time."""
        part: list[Wire] = []
        for wire in wires:
            part.append(wire)
            if len(part) == PAGE_LIMIT:
                yield from self.expand(part)
                part = []
        yield from self.expand(part)


class _Step:
    """One reference attribute and the fields of its records."""

    def __init__(self, context: QueryContext, attribute: Attribute, rests: Sequence[str]) -> None:
        self.slug = attribute.slug
        target = attribute.target_object_id
        attributes = known_attributes(context.directory, target, context.tell) if target else None
        if target is None or attributes is None:
            raise UsageError(
                f"the service does not say what {self.slug} refers to, so {self.slug}.{rests[0]} is unknown", code="unknown_field"
            )
        self._heads = [rest.partition(".")[0] for rest in rests]
        valid = [*OF_EVERY_RECORD, *(attribute.slug for attribute in attributes)]
        for head in self._heads:
            if head not in valid:
                listed = ", ".join(f"{self.slug}.{path}" for path in valid)
                meant = did_you_mean(head, valid).replace("mean ", f"mean {self.slug}.")
                raise UsageError(
                    f"unknown field for records: {self.slug}.{head}",
                    hint=f"{meant} valid fields: {listed}".strip(),
                    code="unknown_field",
                    details={"unknown": [f"{self.slug}.{head}"], "valid": [f"{self.slug}.{path}" for path in valid]},
                )
        self._deeper = FieldLookups(context, attributes, rests)
        self._related = RelatedRecords(context, target, self.slug)

    def expect(self, count: int) -> None:
        self._related.expect(count)
        self._deeper.expect(count)

    def expand(self, data: Sequence[Json]) -> None:
        ids = list(dict.fromkeys(record_id for values in data for record_id in reference_ids(values.get(self.slug))))
        self._related.read(ids)
        records = [record for record_id in ids if (record := self._related[record_id]) is not None]
        wires = self._deeper.expand([record.wire for record in records])
        by_id = {record.id.lower(): wire for record, wire in zip(records, wires, strict=True)}
        for values in data:
            value = values.get(self.slug)
            if value not in (None, "", []):
                objects = [self._object(record_id, by_id.get(record_id)) for record_id in reference_ids(value)]
                values[self.slug] = objects if isinstance(value, list) else next(iter(objects), None)

    def _object(self, record_id: str, wire: Wire | None) -> Json:
        fields = wire or {}
        inner = fields.get("data") or {}
        values = {head: fields.get(head) if head in OF_EVERY_RECORD else inner.get(head) for head in self._heads}
        return {**values, "id": record_id}


def label_of(record: Record, attributes: Iterable[Attribute]) -> str:
    """Return the label of a record: its name, title, domain or e-mail address, else its id."""
    usual = {"name": 0, "full_name": 1, "title": 2, "label": 3, "domain": 4, "email": 5}

    def rank(attribute: Attribute) -> tuple[int, int]:
        place = -1 if attribute.type == AttributeType.NAME else usual.get(attribute.slug, len(usual))
        return place, attribute.display_order or 0

    texts = (AttributeType.NAME, AttributeType.TEXT, AttributeType.EMAIL)
    fitting = sorted((attribute for attribute in attributes if attribute.type in texts and not attribute.is_list), key=rank)
    return next((text for attribute in fitting if (text := text_of(attribute, record.data.get(attribute.slug)))), record.id)


MOST_CHECKED = 5
"""Most ids that crmctl looks up."""


def dangling_ids(context: QueryContext, object_name: str, record_filter: RecordFilter) -> Iterator[tuple[str, str]]:
    """Yield slug and id of every reference in the filter that names no record."""
    conditions = [*record_filter.conditions, *(condition for choice in record_filter.choices for condition in choice.conditions)]
    equal = [condition for condition in conditions if condition.operator is Operator.EQUALS and is_uuid(condition.value)]
    if not equal:
        return
    attributes = {attribute.slug: attribute for attribute in known_attributes(context.directory, object_name, context.tell) or ()}
    for condition in equal[:MOST_CHECKED]:
        attribute = attributes.get(condition.slug)
        target = attribute.target_object_id if attribute is not None and attribute.type == AttributeType.REFERENCE else None
        if target is None:
            continue
        try:
            context.crm.get_record(target, condition.value)
        except NotFoundError:
            yield condition.slug, condition.value
        except DeniedError:
            return


def related_order(context: QueryContext, sort: str, order: str | None, attribute: Attribute) -> ListOrder:
    """Return the order by a field of a referenced record, which is read before sorting."""
    lookups = FieldLookups(context, [attribute], [sort])
    keys: dict[str, tuple[int, Decimal, str] | None] = {}

    def prepare(records: Sequence[Record]) -> None:
        lookups.expect(len(records))
        for record, wire in zip(records, lookups.expand_all(record.wire for record in records), strict=True):
            keys[record.id] = next(map(_sort_key, values_along(wire["data"].get(attribute.slug), sort.partition(".")[2])), None)

    return ListOrder(sort, order or "asc", key=lambda record: keys[record.id], prepare=prepare)


def _sort_key(value: Any) -> tuple[int, Decimal, str]:
    """Sort numbers and money by amount, before texts without regard to case."""
    amount = value.get("amount") if isinstance(value, Mapping) else value
    if isinstance(amount, int | float | Decimal) and not isinstance(amount, bool):
        return 0, Decimal(str(amount)), ""
    return 1, Decimal(0), fold(value if isinstance(value, str) else jsontext.dumps(value))
