"""Fields of other records (`company.name`): each reference that is asked through becomes an object with what is asked of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from crmctl.client.queries.query_context import QueryContext
from crmctl.client.queries.related import reference_ids
from crmctl.client.queries.related_records import RelatedRecords
from crmctl.client.record_lists import known_attributes
from crmctl.errors import UsageError
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.comparison import text_of
from crmctl.models.nearest import did_you_mean
from crmctl.models.records import PAGE_LIMIT, Record

OF_EVERY_RECORD = {"id": "id", "createdAt": "createdAt", "updatedAt": "updatedAt"}

Wire = Mapping[str, Any]


class FieldLookups:
    """Of the wanted field `names` those that lead through references. `expected`: how many records will be shown."""

    def __init__(self, context: QueryContext, attributes: Iterable[Attribute], names: Sequence[str], expected: int = 0) -> None:
        """Raises UsageError for a field that the other object does not have."""
        known = {attribute.slug: attribute for attribute in attributes}
        through: dict[str, list[str]] = {}
        for name in names:
            head, dot, rest = name.partition(".")
            if dot and name not in known and head in known and known[head].type == AttributeType.REFERENCE:
                through.setdefault(head, []).append(rest)
        self._steps = [_Step(context, known[slug], rests, expected) for slug, rests in through.items()]

    def expect(self, count: int) -> None:
        """So many records will be shown: which look-ups are cheapest depends on it."""
        for step in self._steps:
            step.expect(count)

    @property
    def slugs(self) -> list[str]:
        """The references that are asked through."""
        return [step.slug for step in self._steps]

    def expand(self, wires: Sequence[Wire]) -> list[Wire]:
        """The same records, their references as objects; what they name is looked up with few requests."""
        data = [dict(wire.get("data") or {}) for wire in wires]
        for step in self._steps:
            step.expand(data)
        return [{**wire, "data": one} for wire, one in zip(wires, data, strict=True)] if self._steps else list(wires)

    def expand_all(self, wires: Iterable[Wire]) -> Iterator[Wire]:
        """The same for many, a page at a time."""
        part: list[Wire] = []
        for wire in wires:
            part.append(wire)
            if len(part) == PAGE_LIMIT:
                yield from self.expand(part)
                part = []
        yield from self.expand(part)


class _Step:
    """One reference, and what is asked of the records it names."""

    def __init__(self, context: QueryContext, attribute: Attribute, rests: Sequence[str], expected: int) -> None:
        self.slug = attribute.slug
        target = attribute.target_object_id
        known = known_attributes(context.directory, target, context.tell) if target else None
        if target is None or known is None:
            raise UsageError(f"it is not known what {self.slug} refers to, so {self.slug}.{rests[0]} means nothing", code="unknown_field")
        self._heads = [rest.partition(".")[0] for rest in rests]
        valid = [*OF_EVERY_RECORD, *(each.slug for each in known)]
        for head in self._heads:
            if head not in valid:
                listed = ", ".join(f"{self.slug}.{each}" for each in valid)
                meant = did_you_mean(head, valid).replace("mean ", f"mean {self.slug}.")
                raise UsageError(
                    f"unknown field for records: {self.slug}.{head}",
                    hint=f"{meant} valid fields: {listed}".strip(),
                    code="unknown_field",
                    details={"unknown": [f"{self.slug}.{head}"], "valid": [f"{self.slug}.{each}" for each in valid]},
                )
        self._deeper = FieldLookups(context, known, rests, expected)
        self._related = RelatedRecords(context, target, self.slug, expected=expected)

    def expect(self, count: int) -> None:
        self._related.expect(count)
        self._deeper.expect(count)

    def expand(self, data: Sequence[dict[str, Any]]) -> None:
        ids = list(dict.fromkeys(one for each in data for one in reference_ids(each.get(self.slug))))
        self._related.read(ids)
        there = [record for one in ids if (record := self._related[one]) is not None]
        wires = self._deeper.expand([record.wire for record in there])
        by_id = {record.id.lower(): wire for record, wire in zip(there, wires, strict=True)}
        for each in data:
            value = each.get(self.slug)
            if value not in (None, "", []):
                objects = [self._object(one, by_id.get(one)) for one in reference_ids(value)]
                each[self.slug] = objects if isinstance(value, list) else next(iter(objects), None)

    def _object(self, record_id: str, wire: Wire | None) -> dict[str, Any]:
        held = wire or {}
        inner = held.get("data") or {}
        asked = {head: held.get(head) if head in OF_EVERY_RECORD else inner.get(head) for head in self._heads}
        return {**asked, "id": record_id}


def label_of(record: Record, attributes: Iterable[Attribute]) -> str:
    """What people call a record: its name, title, domain or e-mail address; its id where it has none of them."""
    usual = {"name": 0, "full_name": 1, "title": 2, "label": 3, "domain": 4, "email": 5}

    def rank(attribute: Attribute) -> tuple[int, int]:
        place = -1 if attribute.type == AttributeType.NAME else usual.get(attribute.slug, len(usual))
        return place, attribute.display_order or 0

    texts = (AttributeType.NAME, AttributeType.TEXT, AttributeType.EMAIL)
    fitting = sorted((each for each in attributes if each.type in texts and not each.is_list), key=rank)
    return next((text for each in fitting if (text := text_of(each, record.data.get(each.slug)))), record.id)
