"""References given by what tells a record apart (`companies.domain`) instead of its id; what values mean is in `reference_resolution`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from crmctl.bulk.match.keys import KeyRule, key_rule
from crmctl.errors import UsageError
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.composites import fold


@dataclass(frozen=True)
class Reference:
    """The attribute `slug` is given by the attribute `key` (of this `type` and `config`) of the object it points to. `required`: what else
    a record of that object cannot be without."""

    slug: str
    object: str
    object_id: str
    key: str
    type: str
    config: dict[str, Any] | None = None
    required: tuple[str, ...] = ()
    is_required: bool = False
    """Whether a record cannot be without the reference itself."""

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Reference:
        return cls(**{**document, "required": tuple(document.get("required", ()))})

    @property
    def told(self) -> str:
        return f"{self.object}.{self.key}"

    @property
    def rule(self) -> KeyRule:
        return KeyRule((Attribute(id=self.key, slug=self.key, type=self.type, config=self.config),))

    def stand_in(self, attribute: Attribute) -> Attribute:
        """The attribute as the file fills it: typed like the key."""
        return attribute.model_copy(update={"type": self.type, "config": self.config, "is_unique": False})

    def to_document(self) -> dict[str, Any]:
        return asdict(self)


TargetOf = Callable[[str], tuple[str, Sequence[Attribute]]]
"""The id and the attributes of an object."""


def parse_references(given: Iterable[str], attributes: Sequence[Attribute], target_of: TargetOf) -> tuple[Reference, ...]:
    """From `--ref ATTR=OBJECT.KEY`. Raises UsageError for what cannot be, and what looking up the object raises."""
    known = {attribute.slug: attribute for attribute in attributes}
    found: dict[str, Reference] = {}
    for text in given:
        slug, _, rest = text.partition("=")
        name, _, key = rest.partition(".")
        if not (slug and name and key):
            raise UsageError(f"--ref: not ATTR=OBJECT.KEY: {text}", hint="for example --ref company=companies.domain")
        attribute = known.get(slug)
        if attribute is None or attribute.type != AttributeType.REFERENCE:
            raise UsageError(f"--ref: {slug} is not a reference attribute", code="unknown_attribute")
        object_id, of_target = target_of(name)
        if attribute.target_object_id not in (None, object_id):
            raise UsageError(f"--ref: {slug} does not point to {name}", code="wrong_object")
        (told,) = key_rule([key], of_target, "--ref").attributes
        required = tuple(each.slug for each in of_target if each.is_required and each.is_active is not False and each.slug != key)
        found[slug] = Reference(slug, name, object_id, key, str(told.type), told.config, required, bool(attribute.is_required))
    return tuple(found.values())


def columns_of(header: Sequence[str], slug: str) -> Iterator[tuple[str, str]]:
    """The columns that name a key of a reference, `company.domain`: each with the key."""
    for column in header:
        left, dot, key = column.strip().partition(".")
        if dot and fold(left) == fold(slug) and key:
            yield column, key


def references_in(header: Sequence[str], attributes: Sequence[Attribute], given: Iterable[str], name_of: Callable[[str], str]) -> list[str]:
    """The `--ref` that columns like `company.domain` say by themselves, of attributes that none is given for. `name_of` names an object."""
    known = {text.partition("=")[0] for text in given}
    return [
        f"{attribute.slug}={name_of(attribute.target_object_id)}.{key}"
        for attribute in attributes
        if attribute.type == AttributeType.REFERENCE and attribute.slug not in known and attribute.target_object_id is not None
        for _, key in columns_of(header, attribute.slug)
    ]


def stand_ins(attributes: Sequence[Attribute], references: Sequence[Reference]) -> list[Attribute]:
    """The attributes as the file fills them."""
    by_slug = {reference.slug: reference for reference in references}
    return [found.stand_in(each) if (found := by_slug.get(each.slug)) is not None else each for each in attributes]
