"""Whose value counts where a feed and people change the same records: what it wrote last, what its file says, what the record holds.

One value at a time: an attribute, or the part of it that the file names. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from crmctl.bulk.match.keys import base_form, is_unchanged
from crmctl.errors import UsageError
from crmctl.models.attributes import Attribute
from crmctl.models.composites import NO_PARTS, Form, Parts, part_name

NOTHING: Sequence[Any] = (None, "", [], {})


class OnConflict(StrEnum):
    """What happens to a value that the file and somebody else have changed, or of which nobody knows what the feed wrote."""

    KEEP = "keep"
    TAKE = "take"
    FAIL = "fail"
    FILL = "fill"


class ValueChoice(StrEnum):
    """Whose value counts, where that had to be chosen."""

    KEPT = "kept"
    TAKEN = "taken"
    FILLED = "filled"
    FAILED = "failed"


@dataclass(frozen=True)
class Policy:
    """What `--on-conflict take,phone=keep` says."""

    default: OnConflict = OnConflict.KEEP
    by_slug: Mapping[str, OnConflict] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None, slugs: Collection[str] | None = None) -> Policy:
        """Raises UsageError for what is no policy, and where `slugs` are given for an attribute that is none of them."""
        default, by_slug = OnConflict.KEEP, {}
        for item in (text or "").split(",") if text else ():
            slug, sign, word = item.strip().rpartition("=")
            if word not in list(OnConflict) or (sign and not slug):
                hint = "for example --on-conflict take,phone=keep,notes=fill"
                raise UsageError(f"--on-conflict takes {', '.join(OnConflict)}, not {item.strip()!r}", hint=hint)
            if not slug:
                default = OnConflict(word)
            elif slugs is not None and slug not in slugs:
                hint = f"the attributes are: {', '.join(slugs)}"
                raise UsageError(f"--on-conflict: there is no attribute {slug}", hint=hint, code="unknown_attribute")
            else:
                by_slug[slug] = OnConflict(word)
        return cls(default, by_slug)

    def of(self, slug: str) -> OnConflict:
        return self.by_slug.get(slug, self.default)


class ChosenValue(NamedTuple):
    """A value of which it had to be chosen whose counts. `unit`: the attribute, or `attribute.part`. A conflict: both have changed it, or
    nobody knows; else only somebody else has."""

    unit: str
    choice: ValueChoice
    is_conflict: bool
    base_known: bool
    file: Any
    record: Any

    def to_document(self) -> dict[str, Any]:
        return {
            "attribute": self.unit,
            "choice": str(self.choice),
            "conflict": self.is_conflict,
            "baseKnown": self.base_known,
            "file": self.file,
            "record": self.record,
        }


class Merge(NamedTuple):
    """What of a row is written: all but `left_out` (by attribute its parts, None for all of it). `bases`: by unit, the hash of each value
    that the record holds afterwards because the file says it."""

    left_out: Mapping[str, Sequence[str] | None] = {}
    chosen: Sequence[ChosenValue] = ()
    bases: Mapping[str, str] = {}

    @property
    def kept(self) -> int:
        return sum(one.choice is ValueChoice.KEPT and not one.is_conflict for one in self.chosen)

    @property
    def conflicts(self) -> int:
        return sum(one.is_conflict for one in self.chosen)

    @property
    def told(self) -> str:
        """The values that were kept, for the result files: those in conflict are said to be."""
        kept = [one for one in self.chosen if one.choice is ValueChoice.KEPT]
        return ", ".join(f"{one.unit} (conflict)" if one.is_conflict else one.unit for one in kept)

    @property
    def failed(self) -> Sequence[ChosenValue]:
        return [one for one in self.chosen if one.choice is ValueChoice.FAILED]

    def reduced(self, data: Mapping[str, Any], parts: Mapping[str, Parts]) -> tuple[dict[str, Any], dict[str, Parts]]:
        """The data and parts of the row that are written."""
        out = self.left_out
        left = {slug: {part: value for part, value in said.items() if part not in (out.get(slug) or ())} for slug, said in parts.items()}
        gone = {slug for slug in out if out[slug] is None or not left.get(slug)}
        return (
            {slug: value for slug, value in data.items() if slug not in gone},
            {slug: said for slug, said in left.items() if slug not in gone},
        )


class _Unit(NamedTuple):
    slug: str
    part: str | None
    attribute: Attribute | None
    file: Any
    record: Any

    @property
    def name(self) -> str:
        return self.slug if self.part is None else f"{self.slug}.{self.part}"


Hash = Callable[[str, str], str]
"""Of a unit and a value in its one form."""


@dataclass(frozen=True)
class ThreeWay:
    """The rule of one import."""

    policy: Policy
    attributes: Mapping[str, Attribute]

    def first(self, data: Mapping[str, Any], parts: Mapping[str, Parts], hash_of: Hash) -> Merge:
        """Of a row that creates its record: it holds what the file says."""
        return Merge(bases={unit.name: _hashed(unit, unit.file, hash_of) for unit in self._units(data, parts, {})})

    def merge(
        self, row: tuple[Mapping[str, Any], Mapping[str, Parts]], current: Mapping[str, Any], known: Mapping[str, str], hash_of: Hash
    ) -> Merge:
        """Of the data and parts of a row, a record, and the hashes of what the feed wrote there last."""
        whole: dict[str, None] = {}
        parts: dict[str, list[str]] = {}
        chosen: list[ChosenValue] = []
        bases: dict[str, str] = {}
        for unit in self._units(*row, current):
            base, now = known.get(unit.name), _hashed(unit, unit.file, hash_of)
            writes, choice = self._choose(unit, base, now, _hashed(unit, unit.record, hash_of))
            if choice is not None:
                chosen.append(choice)
            if writes or choice is None:
                bases[unit.name] = now
            if not writes and not self._goes_along(unit):
                if unit.part is None:
                    whole[unit.slug] = None
                else:
                    parts.setdefault(unit.slug, []).append(unit.part)
        return Merge({**whole, **parts}, chosen, bases)

    def _choose(self, unit: _Unit, base: str | None, now: str, there: str) -> tuple[bool, ChosenValue | None]:
        """Whether the file's value is written, and what had to be chosen for that."""
        rule, is_known, is_empty = self.policy.of(unit.slug), base is not None, unit.record in NOTHING
        if self._holds(unit):
            return False, None
        if rule is not OnConflict.TAKE and now == there:
            return False, None  # another spelling of what is there
        if is_known and there == base:
            return now != base or rule is OnConflict.TAKE, None
        is_conflict = not is_known or now != base
        if rule is OnConflict.TAKE:
            quiet = now == there or (is_empty and not is_known)
            return True, None if quiet else _chosen(unit, ValueChoice.TAKEN, is_conflict, is_known)
        if not is_conflict:
            return False, _chosen(unit, ValueChoice.KEPT, is_conflict, is_known)
        if rule is OnConflict.FILL and is_empty:
            return True, _chosen(unit, ValueChoice.FILLED, is_conflict, is_known) if is_known else None
        return False, _chosen(unit, ValueChoice.FAILED if rule is OnConflict.FAIL else ValueChoice.KEPT, is_conflict, is_known)

    def _goes_along(self, unit: _Unit) -> bool:
        """Whether a value that need not be written may go with others of its row: it changes nothing, or no more than it always did."""
        return self._holds(unit) and (unit.file == unit.record or self.policy.of(unit.slug) is OnConflict.TAKE)

    def _holds(self, unit: _Unit) -> bool:
        known = {"it": unit.attribute} if unit.attribute is not None and unit.part is None else {}
        return is_unchanged({"it": unit.file}, {"it": unit.record}, known)

    def _units(self, data: Mapping[str, Any], parts: Mapping[str, Parts], current: Mapping[str, Any]) -> Iterator[_Unit]:
        for slug, value in data.items():
            attribute = self.attributes.get(slug)
            if slug not in parts:
                yield _Unit(slug, None, attribute, value, current.get(slug))
        for slug, said in (parts or NO_PARTS).items():
            for part, value in said.items():
                yield _Unit(slug, part, self.attributes.get(slug), value, _part(self.attributes.get(slug), part, current.get(slug)))


def _part(attribute: Attribute | None, part: str, value: Any) -> Any:
    """What a value holds of a part. One without parts is all of them; a bare amount only the amount."""
    if not isinstance(value, dict):
        is_amount = attribute is not None and part == part_name(attribute, "currency", Form()) and not isinstance(value, str)
        return None if is_amount else value
    return value.get(part_name(attribute, part, Form(keys=tuple(value)))) if attribute is not None else value.get(part)


def _hashed(unit: _Unit, value: Any, hash_of: Hash) -> str:
    return hash_of(unit.name, base_form(unit.attribute if unit.part is None else None, value))


def _chosen(unit: _Unit, choice: ValueChoice, is_conflict: bool, base_known: bool) -> ChosenValue:
    return ChosenValue(unit.name, choice, is_conflict, base_known, unit.file, unit.record)
