"""Which record of a group stays, and whose values it gets: `--keep`. Pure. Empty values never win."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from crmctl.bulk.dedupe.normal_forms import said
from crmctl.bulk.match.reference_values import as_sent
from crmctl.errors import UsageError
from crmctl.models import jsontext
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.timestamps import micros_of

OLDEST = "oldest"
MOST_ACTIVITIES = "most-activities"
SURVIVOR_RULES: Mapping[str, str] = {
    OLDEST: "the one created first",
    "newest": "the one created last",
    "most-complete": "the one with most attributes that hold something; of several the oldest",
    MOST_ACTIVITIES: "the one that most activities are linked to; of several the oldest",
}
"""Which record stays."""

OF_SURVIVOR = "survivor"
UNION = "union"
VALUE_RULES: Mapping[str, str] = {
    OF_SURVIVOR: "the survivor's; where that is empty, of the record changed last",
    "newest": "of the record changed last",
    "oldest": "of the record created first",
    "longest": "the longest text",
    UNION: "all values of all records, the survivor's first; for lists",
}
"""Whose value of an attribute it gets."""

HINT = f"--keep {'|'.join(SURVIVOR_RULES)}, and by attribute --keep 'phone=newest,name=longest,tags=union'"


@dataclass(frozen=True)
class MergeRecord:
    """A record of a group as it was read; `activities`: how many are linked to it, where that was counted."""

    id: str
    data: Mapping[str, Any]
    created_at: str | None = None
    updated_at: str | None = None
    activities: int | None = None


@dataclass(frozen=True)
class MergedValue:
    """A value the survivor is to hold, the records it comes from, and the rule that chose it."""

    value: Any
    sources: tuple[str, ...]
    rule: str


@dataclass(frozen=True)
class KeepRules:
    """`survivor` is a name of SURVIVOR_RULES, `values` holds names of VALUE_RULES by slug."""

    survivor: str = OLDEST
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def said(self) -> list[str]:
        return [self.survivor, *(f"{slug}={rule}" for slug, rule in self.values.items())]


def parse_keep(texts: Sequence[str], attributes: Sequence[Attribute]) -> KeepRules:
    """The rules of `--keep`. Raises UsageError for what is none, and for an attribute that is not there."""
    known = {attribute.slug: attribute for attribute in attributes if attribute.is_active is not False}
    survivor: str | None = None
    values: dict[str, str] = {}
    for one in (part.strip() for text in texts for part in text.split(",")):
        slug, sign, rule = (part.strip() for part in one.partition("="))
        if not sign and slug in SURVIVOR_RULES and survivor in (None, slug):
            survivor = slug
        elif not sign and slug in SURVIVOR_RULES:
            raise UsageError(f"--keep: {survivor} and {slug} exclude each other", hint=HINT, code="malformed_rule")
        elif not sign or rule not in VALUE_RULES:
            raise UsageError(f"--keep: {one!r} is no rule", hint=HINT, code="malformed_rule")
        elif slug not in known:
            hint = f"the attributes are: {', '.join(known)}"
            raise UsageError(f"--keep: there is no attribute {slug}", hint=hint, code="unknown_attribute")
        elif rule == UNION and not holds_several(known[slug]):
            raise UsageError(f"--keep: {slug} holds one value, of which there is no union", hint=HINT, code="malformed_rule")
        else:
            values[slug] = rule
    return KeepRules(survivor or OLDEST, values)


def holds_several(attribute: Attribute) -> bool:
    return bool(attribute.is_list) or attribute.type == AttributeType.LIST


def is_empty(value: Any) -> bool:
    """Whether a value says nothing: blank, or every part of it is."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, Mapping):
        return all(map(is_empty, value.values()))
    if isinstance(value, list):
        return all(map(is_empty, value))
    return value is None


def choose_survivor(records: Sequence[MergeRecord], rule: str) -> MergeRecord:
    """The record that stays. `records` come as they were created, which tells those apart that were created at one moment."""

    def age(record: MergeRecord) -> int:
        return micros_of(record.created_at) or 0

    if rule == "newest":
        return max(reversed(records), key=age)
    if rule == "most-complete":
        return min(records, key=lambda record: (-sum(not is_empty(value) for value in record.data.values()), age(record)))
    if rule == MOST_ACTIVITIES:
        return min(records, key=lambda record: (-(record.activities or 0), age(record)))
    return min(records, key=age)


def merge_values(records: Sequence[MergeRecord], survivor: str, keep: KeepRules, attributes: Sequence[Attribute]) -> dict[str, MergedValue]:
    """The value of every attribute that any of the records fills, in display order."""
    merged = {}
    for attribute in attributes:
        if attribute.is_active is False:
            continue
        found = values_of(attribute, records)
        rule = keep.values.get(attribute.slug, OF_SURVIVOR)
        if any(not is_empty(as_sent(attribute, record.data.get(attribute.slug))) for record in records):
            merged[attribute.slug] = merge_value(records, survivor, found, rule)
    return merged


def values_of(attribute: Attribute, records: Sequence[MergeRecord]) -> dict[str, Any]:
    """What each record of a group can give: not a reference to another one of them, which would become one to itself."""
    found = {record.id: as_sent(attribute, record.data.get(attribute.slug)) for record in records}
    if attribute.type == AttributeType.REFERENCE:
        members = {record.id.lower() for record in records}
        return {record_id: _outside(value, members) for record_id, value in found.items()}
    return found


def merge_value(records: Sequence[MergeRecord], survivor: str, found: Mapping[str, Any], rule: str) -> MergedValue:
    """One value by one rule; None where no record has one."""
    filled = [record for record in records if not is_empty(found[record.id])]
    if not filled:
        return MergedValue(None, (survivor,), rule)
    if rule == UNION:
        ordered = sorted(filled, key=lambda record: (record.id != survivor, micros_of(record.created_at) or 0, record.id))
        items = [item for record in ordered for item in _items(found[record.id]) if not is_empty(item)]
        every: dict[str, Any] = {}
        for item in items:
            every.setdefault(jsontext.dumps(item, sort_keys=True), item)
        return MergedValue(list(every.values()), tuple(record.id for record in ordered), rule)
    if rule == OF_SURVIVOR and any(record.id == survivor for record in filled):
        chosen = survivor
    else:
        chosen = max(filled, key=lambda record: (*_RANKS[rule](record, found[record.id]), record.id == survivor, record.id)).id
    return MergedValue(found[chosen], (chosen,), rule)


def _changed(record: MergeRecord, _: Any) -> tuple[int, ...]:
    return (micros_of(record.updated_at) or 0,)


_RANKS: Mapping[str, Callable[[MergeRecord, Any], tuple[int, ...]]] = {
    OF_SURVIVOR: _changed,
    "newest": _changed,
    "oldest": lambda record, _: (-(micros_of(record.created_at) or 0),),
    "longest": lambda record, value: (len(said(value)), micros_of(record.updated_at) or 0),
}


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _outside(value: Any, members: set[str]) -> Any:
    if isinstance(value, list):
        return [one for one in value if str(one).lower() not in members]
    return None if isinstance(value, str) and value.lower() in members else value
