"""Choose a part of an organization that is closed under references."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from heapq import nsmallest

from crmctl.errors import RejectedError, UsageError
from crmctl.match.references import ids_only
from crmctl.mirror.local_copy import LocalCopy
from crmctl.models.resources import Attribute, AttributeType, Object, Record
from crmctl.values.conditions import value_test
from crmctl.values.filters import check_slugs, parse_condition

Chosen = dict[str, set[str]]
"""Ids of the chosen records, by object id."""


def choose_subset(
    copy: LocalCopy, objects: Mapping[str, Object], where: Sequence[str], sample: Sequence[str], most: int | None
) -> tuple[Chosen, Counter[str]]:
    """Return the records that match, or a sample of them, with every record they refer to; and how many records each reference added.

    Raises UsageError for a malformed option, RejectedError for more than `most` records.
    """
    tests, sizes = _tests(copy, objects, where), _sizes(objects, sample)
    chosen: Chosen = {one.id: set() for one in objects.values()}
    added: Counter[str] = Counter()
    work: list[tuple[str, set[str]]] = []
    for slug in tests.keys() | sizes.keys():
        records = copy.records_by_id(objects[slug].id)
        matching = (record.id for record in records if all(test(record) for test in tests.get(slug, ())))
        roots = set(nsmallest(sizes[slug], matching, key=_order)) if slug in sizes else set(matching)
        chosen[objects[slug].id] |= roots
        work.append((slug, roots))
    by_id = {one.id.lower(): slug for slug, one in objects.items()}
    while work:
        slug, ids = work.pop()
        references = {each.slug: by_id.get((each.target_object_id or "").lower()) for each in _references(copy, objects[slug])}
        for name, target, targets in _targets(copy, objects[slug].id, ids, references):
            missing = targets - chosen[objects[target].id]
            found = {record.id for record in copy.records_by_id(objects[target].id, missing)}
            chosen[objects[target].id] |= found
            added[f"{slug}.{name}"] += len(found)
            if found:
                work.append((target, found))
        refuse_too_many(sum(map(len, chosen.values())), most)
    refuse_too_many(sum(map(len, chosen.values())), most)
    return chosen, added


def _targets(copy: LocalCopy, object_id: str, ids: set[str], references: Mapping[str, str | None]) -> list[tuple[str, str, set[str]]]:
    found: dict[tuple[str, str], set[str]] = {}
    for record in copy.records_by_id(object_id, ids):
        for name, target in references.items():
            value = ids_only(record.data.get(name))
            if target is not None and value is not None:
                found.setdefault((name, target), set()).update(value if isinstance(value, list) else [value])
    return [(name, target, targets) for (name, target), targets in found.items()]


def _references(copy: LocalCopy, of: Object) -> list[Attribute]:
    attributes = copy.attributes(of.id)
    return [each for each in attributes if each.type == AttributeType.REFERENCE and each.is_active is not False]


def _order(record_id: str) -> str:
    """Return a text that orders ids at random, and always in the same way."""
    return hashlib.sha256(record_id.encode()).hexdigest()


def refuse_too_many(records: int, most: int | None) -> None:
    """Raise RejectedError if a folder would hold more records than the user allows."""
    if most is not None and records > most:
        raise RejectedError(f"the folder would hold {records:,} records or more, --max-records says {most:,}", code="too_many_records")


def _tests(copy: LocalCopy, objects: Mapping[str, Object], where: Sequence[str]) -> dict[str, list[Callable[[Record], bool]]]:
    tests: dict[str, list[Callable[[Record], bool]]] = {}
    for text in where:
        slug, sign, condition_text = text.partition(":")
        if not sign:
            raise UsageError(f"--where {text!r} is not OBJECT:CONDITION", hint="for example --where 'deals:stage=won'")
        condition, attributes = parse_condition(condition_text), copy.attributes(_known(objects, slug, "--where").id)
        check_slugs([condition], attributes)
        attribute = next((each for each in attributes if each.slug == condition.slug), None)
        if attribute is None:
            raise UsageError(f"--where {text!r}: {slug} has no attribute {condition.slug}", code="unknown_attribute")
        tests.setdefault(slug, []).append(_test(attribute, value_test(attribute, condition.operator, condition.value)))
    return tests


def _test(attribute: Attribute, meets: Callable[[object], bool]) -> Callable[[Record], bool]:
    return lambda record: meets(record.data.get(attribute.slug))


def _sizes(objects: Mapping[str, Object], sample: Sequence[str]) -> dict[str, int]:
    sizes = {}
    for text in sample:
        slug, _, number = text.partition("=")
        if not number.isdecimal():
            raise UsageError(f"--sample {text!r} is not OBJECT=N", hint="for example --sample people=500")
        _known(objects, slug, "--sample")
        sizes[slug] = int(number)
    return sizes


def _known(objects: Mapping[str, Object], slug: str, option: str) -> Object:
    if slug not in objects:
        raise UsageError(f"{option}: there is no object {slug!r}", hint=f"objects: {', '.join(objects)}", code="unknown_object")
    return objects[slug]
