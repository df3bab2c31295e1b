"""Choose between the values of a feed and of people: compare the value written last, the file's value and the record's value.

Each comparison covers one attribute, or the part of it that the file names. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from crmctl.errors import UsageError
from crmctl.match.keys import base_form, is_unchanged
from crmctl.models.resources import Attribute
from crmctl.values.composites import NO_PARTS, Form, Parts, part_name

NOTHING: Sequence[Any] = (None, "", [], {})


class OnConflict(StrEnum):
    """Rule for a value that both the file and another client changed, or whose base is unknown."""

    KEEP = "keep"
    TAKE = "take"
    FAIL = "fail"
    FILL = "fill"


class ValueChoice(StrEnum):
    """Outcome of a choice between the file's value and the record's value."""

    KEPT = "kept"
    TAKEN = "taken"
    FILLED = "filled"
    FAILED = "failed"


@dataclass(frozen=True)
class Policy:
    """The parsed `--on-conflict` option, such as `take,phone=keep`."""

    default: OnConflict = OnConflict.KEEP
    by_slug: Mapping[str, OnConflict] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None, slugs: Collection[str] | None = None) -> Policy:
        """Parse a policy. Raises UsageError if it is malformed or names an attribute that is not in `slugs`."""
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
    """A value that differs between file and record, and the choice made.

    `unit`: the attribute, or `attribute.part`. `is_conflict`: both changed it or the base is unknown; otherwise only another client did.
    """

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
    """Outcome of the comparison for one row.

    `left_out`: values not written, by attribute its parts, or None for the whole attribute. `bases`: by unit, the hash of each value that
    the record then shares with the file.
    """

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
        """List the kept values for the result files. Values in conflict are marked."""
        kept = [one for one in self.chosen if one.choice is ValueChoice.KEPT]
        return ", ".join(f"{one.unit} (conflict)" if one.is_conflict else one.unit for one in kept)

    @property
    def failed(self) -> Sequence[ChosenValue]:
        return [one for one in self.chosen if one.choice is ValueChoice.FAILED]

    def reduced(self, data: Mapping[str, Any], parts: Mapping[str, Parts]) -> tuple[dict[str, Any], dict[str, Parts]]:
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
"""Hash the normal form of a value, given the name of its unit."""


@dataclass(frozen=True)
class ThreeWay:
    """Comparison for one import. `policy` decides conflicts."""

    policy: Policy
    attributes: Mapping[str, Attribute]

    def first(self, data: Mapping[str, Any], parts: Mapping[str, Parts], hash_of: Hash) -> Merge:
        """Return the outcome for a row that creates its record: every value comes from the file."""
        return Merge(bases={unit.name: _hashed(unit, unit.file, hash_of) for unit in self._units(data, parts, {})})

    def merge(
        self, row: tuple[Mapping[str, Any], Mapping[str, Parts]], current: Mapping[str, Any], known: Mapping[str, str], hash_of: Hash
    ) -> Merge:
        """Compare a row (data and parts) with its record and with the hashes of the values the feed wrote last (`known`)."""
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
        """Return whether to write the file's value, and the choice if one was necessary."""
        rule, is_known, is_empty = self.policy.of(unit.slug), base is not None, unit.record in NOTHING
        if self._holds(unit):
            return False, None
        if rule is not OnConflict.TAKE and now == there:
            return False, None  # the same value in another spelling
        bases = base.split("\n") if base is not None else []  # several after a write of unknown outcome
        if there in bases:
            return now != there or rule is OnConflict.TAKE, None
        is_conflict = now not in bases
        if rule is OnConflict.TAKE:
            quiet = now == there or (is_empty and not is_known)
            return True, None if quiet else _chosen(unit, ValueChoice.TAKEN, is_conflict, is_known)
        if not is_conflict:
            return False, _chosen(unit, ValueChoice.KEPT, is_conflict, is_known)
        if rule is OnConflict.FILL and is_empty:
            return True, _chosen(unit, ValueChoice.FILLED, is_conflict, is_known) if is_known else None
        return False, _chosen(unit, ValueChoice.FAILED if rule is OnConflict.FAIL else ValueChoice.KEPT, is_conflict, is_known)

    def _goes_along(self, unit: _Unit) -> bool:
        """Whether a value that the record already holds may be sent with the other values of its row."""
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
    """Return one part of a value. A value without parts stands for every part, a bare amount only for the amount."""
    if not isinstance(value, dict):
        is_amount = attribute is not None and part == part_name(attribute, "currency", Form()) and not isinstance(value, str)
        return None if is_amount else value
    return value.get(part_name(attribute, part, Form(keys=tuple(value)))) if attribute is not None else value.get(part)


def _hashed(unit: _Unit, value: Any, hash_of: Hash) -> str:
    return hash_of(unit.name, base_form(unit.attribute if unit.part is None else None, value))


def _chosen(unit: _Unit, choice: ValueChoice, is_conflict: bool, base_known: bool) -> ChosenValue:
    return ChosenValue(unit.name, choice, is_conflict, base_known, unit.file, unit.record)
