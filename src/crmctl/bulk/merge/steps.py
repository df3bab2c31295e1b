"""The steps of one merge: which record is written how, in an order that a service with unique values accepts. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from crmctl.bulk.dedupe.merge_plan import PlannedMerge, held
from crmctl.bulk.dedupe.survivorship import is_empty
from crmctl.bulk.match.reference_values import as_sent, ids_only, replace_ids
from crmctl.bulk.read.linked_activities import swap_links
from crmctl.models import jsontext
from crmctl.models.attributes import Attribute, AttributeType


class StepKind(StrEnum):
    """In the order in which they are taken."""

    FREE = "free"
    """A record gives up a unique value that a survivor gets: a loser, or the survivor of another group."""
    SURVIVOR = "survivor"
    """The survivor gets its values."""
    REFERENCE = "reference"
    """A record that refers to a loser refers to the survivor."""
    ACTIVITY = "activity"
    """An activity that names a loser names the survivor."""
    DELETE = "delete"
    """A loser is deleted."""
    CLAIM = "claim"
    """The survivor gets a unique value that a loser could not give up, because it is required."""


class StepState(StrEnum):
    """`sending`: it may be on its way, or done."""

    PLANNED = "planned"
    SENDING = "sending"
    DONE = "done"
    FAILED = "failed"
    UNDONE = "undone"


@dataclass(frozen=True)
class MergeStep:
    """One write. `before` and `after`: the attributes it changes (of an activity, its links), as they were and as they will be."""

    kind: StepKind
    object_id: str
    target: str
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0
    group: int = 0
    state: StepState = StepState.PLANNED


@dataclass(frozen=True)
class Surroundings:
    """What has to do with the records of a group, as of now. `members`: their data; `holders`: records that refer to a loser, each with
    its object and data; `activities`: those that name one, as they are on the wire."""

    members: Mapping[str, Mapping[str, Any]]
    holders: Sequence[tuple[str, str, Mapping[str, Any]]]
    activities: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class MergeSchema:
    """The object whose records are merged, its attributes, and those of every object that refer to it (by object id, slugs)."""

    object_id: str
    attributes: Sequence[Attribute]
    referring: Mapping[str, Sequence[str]]

    def attribute(self, slug: str) -> Attribute | None:
        return next((attribute for attribute in self.attributes if attribute.slug == slug), None)

    @property
    def unique(self) -> list[Attribute]:
        return [attribute for attribute in self.attributes if attribute.is_unique]


class UniqueValue(NamedTuple):
    """A value that one record only may have, in whatever case a service tells values apart."""

    slug: str
    text: str


def unique_value(slug: str, value: Any) -> UniqueValue:
    return UniqueValue(slug, (value if isinstance(value, str) else jsontext.dumps(value, sort_keys=True)).casefold())


def plan_steps(
    merge: PlannedMerge, schema: MergeSchema, around: Surroundings, wanted: Collection[UniqueValue] = frozenset()
) -> list[MergeStep]:
    """Every write of a merge, in order. `wanted`: unique values that other groups, merged with this one, get of its records."""
    object_id = schema.object_id
    before, after = _survivor_change(merge, schema, around.members)
    freed, late = _freed(merge, schema, around.members, after, wanted)
    if given := _given_up(schema, before, wanted):
        freed.append((merge.survivor, given))
        before |= dict.fromkeys(given)
        after = {slug: value for slug, value in after.items() if slug not in given or not is_empty(value)}
    steps = [MergeStep(StepKind.FREE, object_id, loser, held_before, dict.fromkeys(held_before)) for loser, held_before in freed]
    own = schema.referring.get(object_id, ())
    kinds = {slug: StepKind.CLAIM if slug in late else StepKind.REFERENCE if slug in own else StepKind.SURVIVOR for slug in after}
    for kind in (StepKind.SURVIVOR, StepKind.REFERENCE, StepKind.CLAIM):
        slugs = [slug for slug in after if kinds[slug] is kind]
        if slugs:
            step = MergeStep(kind, object_id, merge.survivor, {slug: before[slug] for slug in slugs}, {slug: after[slug] for slug in slugs})
            steps.append(step)
    steps += late_steps(merge, schema, around)
    steps += [MergeStep(StepKind.DELETE, object_id, loser) for loser in merge.losers]
    order = list(StepKind)
    return sorted(steps, key=lambda step: order.index(step.kind))


def late_steps(merge: PlannedMerge, schema: MergeSchema, around: Surroundings) -> list[MergeStep]:
    """What refers to a loser, or names one, refers to the survivor."""
    steps = []
    own = {merge.survivor.lower(), *(loser.lower() for loser in merge.losers)}
    away = {loser.lower(): merge.survivor for loser in merge.losers}
    for holder_object, holder, data in around.holders:
        if holder.lower() not in own and (change := redirected(data, schema.referring.get(holder_object, ()), merge)):
            before = {slug: ids_only(data.get(slug)) for slug in change}
            steps.append(MergeStep(StepKind.REFERENCE, holder_object, holder, before, change))
    for activity in around.activities:
        if links := swap_links(activity, away):
            steps.append(MergeStep(StepKind.ACTIVITY, "", str(activity["id"]), {name: activity.get(name) for name in links}, links))
    return steps


def _survivor_change(
    merge: PlannedMerge, schema: MergeSchema, members: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the survivor's attributes hold, and what they are to hold, where that differs."""
    current = members[merge.survivor.lower()]
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for slug, merged in merge.values.items():
        there = as_sent(schema.attribute(slug), current.get(slug))
        if there != merged.value and not (is_empty(there) and is_empty(merged.value)):
            before[slug], after[slug] = there, merged.value
    return before, after


def _freed(
    merge: PlannedMerge,
    schema: MergeSchema,
    members: Mapping[str, Mapping[str, Any]],
    after: Mapping[str, Any],
    wanted: Collection[UniqueValue],
) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """Unique values that losers hold of attributes the survivor gets: those they give up first, and the attributes they cannot, because a
    record has to have them: the survivor gets these when the loser is gone."""
    free = []
    for loser in merge.losers:
        data = members[loser.lower()]
        there = held({one.slug: as_sent(one, data.get(one.slug)) for one in schema.unique if not one.is_required})
        if values := {slug: value for slug, value in there.items() if after.get(slug) is not None or unique_value(slug, value) in wanted}:
            free.append((loser, values))
    return free, [one.slug for one in schema.unique if one.is_required and after.get(one.slug) is not None]


def _given_up(schema: MergeSchema, before: Mapping[str, Any], wanted: Collection[UniqueValue]) -> dict[str, Any]:
    """What a survivor gives up before any other group gets it."""
    free = {one.slug for one in schema.unique if not one.is_required}
    return {slug: value for slug, value in held(before).items() if slug in free and unique_value(slug, value) in wanted}


def redirected(data: Mapping[str, Any], slugs: Iterable[str], merge: PlannedMerge) -> dict[str, Any]:
    """The reference attributes of a record that name a loser, with the survivor instead."""
    away = {loser.lower(): merge.survivor for loser in merge.losers}
    change = {}
    for slug in slugs:
        there = ids_only(data.get(slug))
        if (moved := replace_ids(there, away)) != there:
            change[slug] = moved
    return change


def is_as_planned(attributes: Sequence[Attribute], planned: Mapping[str, Any], current: Mapping[str, Any], away: Mapping[str, str]) -> bool:
    """Whether a record holds what it held when it was compared; references to records merged meanwhile are what became of them."""
    return _comparable(attributes, planned, away) == _comparable(attributes, current, away)


def _comparable(attributes: Sequence[Attribute], data: Mapping[str, Any], away: Mapping[str, str]) -> dict[str, Any]:
    references = {attribute.slug for attribute in attributes if attribute.type == AttributeType.REFERENCE}
    return held({slug: replace_ids(ids_only(value), away) if slug in references else value for slug, value in data.items()})
