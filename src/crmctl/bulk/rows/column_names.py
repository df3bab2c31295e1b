"""Column names to attributes: which attribute a name means, and which ones it may have meant. Refuses a name that means two."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from crmctl.errors import UsageError
from crmctl.models.attributes import Attribute
from crmctl.models.composites import COMPOSITE_TYPES, Form, fold, known_parts, knows_part, learn_form
from crmctl.models.part_names import PART_NAMES

RECORD_ID = "id"
RECORD_FIELDS = frozenset({"id", "objectid", "createdat", "updatedat"})
"""Fields of a record beside its data, folded: an export has them as columns."""


class MatchedBy(StrEnum):
    """How a name found its attribute, surest first."""

    SLUG = "slug"
    NAME = "name"
    FOLDED = "folded"


@dataclass(frozen=True)
class ColumnMatch:
    attribute: Attribute
    part: str | None
    by: MatchedBy


class Names:
    """The names of an object's active attributes."""

    def __init__(self, attributes: Sequence[Attribute], samples: Sequence[Mapping[str, Any]] = ()) -> None:
        """`samples`, the `data` of existing records, show which parts values have besides the usual ones."""
        self._samples = samples
        self.attributes = [attribute for attribute in attributes if attribute.is_active is not False]
        self._slugs = {attribute.slug: attribute for attribute in self.attributes}
        self._folded: dict[str, list[Attribute]] = {}
        for attribute in self.attributes:
            for name in {fold(attribute.slug), fold(attribute.name or attribute.slug)}:
                self._folded.setdefault(name, []).append(attribute)

    @property
    def slugs(self) -> list[str]:
        return list(self._slugs)

    def find(self, name: str) -> ColumnMatch | None:
        """The attribute (and part) that a column name means, or None. Raises UsageError for a name that fits several attributes."""
        whole = self._attribute(name.strip())
        if whole is not None:
            return whole
        left, _, part = name.strip().partition(".")
        owner = self._attribute(left)
        if owner is None or not _has_parts(owner.attribute) or not knows_part(owner.attribute, part.strip(), self.form(owner.attribute)):
            return None
        return ColumnMatch(owner.attribute, part.strip(), owner.by)

    def form(self, attribute: Attribute) -> Form:
        """How existing records hold an attribute."""
        return learn_form(attribute, self._samples)

    def parts_of(self, name: str) -> list[str]:
        """The parts that `slug.part` may name where it names none of them; nothing for any other name."""
        left, dot, _ = name.strip().partition(".")
        owner = self._attribute(left) if dot else None
        if owner is None or not _has_parts(owner.attribute):
            return []
        return [f"{owner.attribute.slug}.{part}" for part in known_parts(owner.attribute, self.form(owner.attribute))]

    def _attribute(self, name: str) -> ColumnMatch | None:
        if name in self._slugs:
            return ColumnMatch(self._slugs[name], None, MatchedBy.SLUG)
        fitting = self._folded.get(fold(name), [])
        if len(fitting) > 1:
            slugs = ", ".join(attribute.slug for attribute in fitting)
            raise UsageError(
                f"the column {name!r} fits several attributes: {slugs}", hint=f"--map '{name}={fitting[0].slug}'", code="ambiguous_column"
            )
        if not fitting:
            return None
        return ColumnMatch(fitting[0], None, MatchedBy.NAME if fitting[0].name == name else MatchedBy.FOLDED)

    def nearest(self, name: str, count: int = 3) -> list[str]:
        """Slugs that a name may have meant, best first."""
        choices: dict[str, str] = {}
        for attribute in self.attributes:
            choices.setdefault(fold(attribute.slug), attribute.slug)
            choices.setdefault(fold(attribute.name or ""), attribute.slug)
            if attribute.type in PART_NAMES:
                for part, others in PART_NAMES[attribute.type].items():
                    target = f"{attribute.slug}.{part}"
                    for spelling in (fold(part), *others, fold(part) + fold(attribute.slug), fold(attribute.slug) + fold(part)):
                        choices.setdefault(spelling, target)
        choices.pop("", None)
        folded = fold(name)
        contained = [key for key in choices if len(key) > 3 and (key in folded or (len(folded) > 3 and folded in key))]
        close = difflib.get_close_matches(folded, list(choices), n=count, cutoff=0.7)
        return list(dict.fromkeys(choices[key] for key in [*close, *contained]))[:count]


def _has_parts(attribute: Attribute) -> bool:
    return attribute.type in COMPOSITE_TYPES and not attribute.is_list
