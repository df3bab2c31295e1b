"""Groups of a plan that get unique values of each other, which only a plan edited by hand says: they are merged together, all values given
up before the first is taken. Where one keeps what another is to get, or none can give up first, they are refused by name. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from crmctl.bulk.dedupe.merge_plan import PlannedMerge
from crmctl.bulk.dedupe.survivorship import is_empty
from crmctl.bulk.match.reference_values import as_sent
from crmctl.bulk.merge.steps import MergeSchema, UniqueValue, unique_value

WAY_OUT = "give one of them another value, and merge what is left by a second plan"


def because(group: int, why: str) -> str:
    """Why a group is not merged: another one of its unit is not."""
    return f"group {group}, with which it exchanges values: {why}"


@dataclass(frozen=True)
class Exchanges:
    """`units`: groups that are merged together, each before those that get what it gives up; `wanted`: the values that change groups;
    `refused`: why groups cannot be merged."""

    units: Sequence[Sequence[int]] = ()
    wanted: frozenset[UniqueValue] = frozenset()
    refused: Mapping[int, str] = field(default_factory=dict)

    def unit(self, group: int) -> Sequence[int]:
        """The groups that a group is merged with, itself among them."""
        return next((unit for unit in self.units if group in unit), (group,))


def find_exchanges(merges: Callable[[], Iterable[PlannedMerge]], schema: MergeSchema) -> Exchanges:
    """Reads the plan once, and again where somebody gave a group a value of none of its records."""
    takers: dict[UniqueValue, list[int]] = defaultdict(list)
    for merge in merges():
        for value in _values_of_others(merge, schema):
            takers[value].append(merge.group)
    if not takers:
        return Exchanges()
    gives: dict[int, set[int]] = defaultdict(set)
    later: dict[int, set[int]] = defaultdict(set)
    refused = {
        group: f"group {groups[0]} gets the {value.slug} {value.text} too" for value, groups in takers.items() for group in groups[1:]
    }
    for merge in merges():
        for holder, value in _held(merge, schema, takers.keys()):
            for taker in (group for group in takers[value] if group != merge.group):
                if value in _kept(merge, schema):
                    refused[taker] = f"the survivor of group {merge.group} has the {value.slug} {value.text}, of record {holder}; {WAY_OUT}"
                    continue
                gives[taker].add(merge.group)
                attribute = schema.attribute(value.slug)
                if holder == merge.survivor and attribute is not None and attribute.is_required:
                    later[taker].add(merge.group)
    return _arranged(gives, later, frozenset(takers), refused)


def _arranged(
    gives: Mapping[int, set[int]], later: Mapping[int, set[int]], wanted: frozenset[UniqueValue], refused: dict[int, str]
) -> Exchanges:
    """Units of groups that give to each other, in order; a unit with a group that is refused is refused."""
    units = []
    for unit in _connected(gives):
        try:
            ordered = [*TopologicalSorter({group: later.get(group, ()) for group in sorted(unit)}).static_order()]
        except CycleError as error:
            ring = " and ".join(f"group {group}" for group in sorted(set(error.args[1])))
            why = f"{ring} exchange values that none can give up first, because a record has to have them; {WAY_OUT}"
            refused.update(dict.fromkeys(unit, why))
            continue
        if (first := next((group for group in ordered if group in refused), None)) is not None:
            why = because(first, refused[first])
            refused.update((group, why) for group in ordered if group not in refused)
        else:
            units.append(ordered)
    return Exchanges(units, wanted, refused)


def _connected(gives: Mapping[int, set[int]]) -> Iterator[set[int]]:
    home: dict[int, set[int]] = {}
    for taker, givers in gives.items():
        unit = {taker, *givers}.union(*(home.get(one, ()) for one in (taker, *givers)))
        home.update(dict.fromkeys(unit, unit))
    yield from {id(unit): unit for unit in home.values()}.values()


def _values_of_others(merge: PlannedMerge, schema: MergeSchema) -> set[UniqueValue]:
    """The unique values a survivor gets that no record of its group has."""
    own = {value for _, value in _held(merge, schema, None)}
    return _kept(merge, schema) - own


def _kept(merge: PlannedMerge, schema: MergeSchema) -> set[UniqueValue]:
    """The unique values of a survivor when it is merged."""
    planned = {slug: value.value for slug, value in merge.values.items()}
    return {*_unique({**merge.record(merge.survivor).data, **planned}, schema)}


def _held(merge: PlannedMerge, schema: MergeSchema, among: Collection[UniqueValue] | None) -> Iterator[tuple[str, UniqueValue]]:
    """The unique values that records of a group have, with the record."""
    for record_id in (merge.survivor, *merge.losers):
        yield from ((record_id, value) for value in _unique(merge.record(record_id).data, schema) if among is None or value in among)


def _unique(data: Mapping[str, Any], schema: MergeSchema) -> Iterator[UniqueValue]:
    for attribute in schema.unique:
        if not is_empty(value := as_sent(attribute, data.get(attribute.slug))):
            yield unique_value(attribute.slug, value)
