"""Keys: which attributes tell a record, what makes two of their values the same, and when a record already holds what a row says. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from crmctl.bulk.match.record_match import canonical, key_form, key_of
from crmctl.errors import UsageError
from crmctl.models import jsontext
from crmctl.models.attribute_types import Trait, types_with
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.numbers import canonical_number

KEY_TYPES = types_with(Trait.KEY)


@dataclass(frozen=True)
class KeyRule:
    """The attributes that together tell a record."""

    attributes: tuple[Attribute, ...]

    @property
    def slugs(self) -> tuple[str, ...]:
        return tuple(attribute.slug for attribute in self.attributes)

    @property
    def label(self) -> str:
        return "+".join(self.slugs)

    def key(self, data: Mapping[str, Any]) -> str | None:
        """The normal form of a record's key; None when a part of it is blank."""
        return key_of(data, ((attribute.slug, attribute.type) for attribute in self.attributes))


def key_rule(slugs: Sequence[str], attributes: Sequence[Attribute], option: str = "--key") -> KeyRule:
    """The rule for attributes given by slug. Raises UsageError for one that is not there or cannot be a key."""
    known = {attribute.slug: attribute for attribute in attributes if attribute.is_active is not False}
    found = []
    for slug in dict.fromkeys(slugs):
        attribute = known.get(slug)
        if attribute is None:
            hint = "--mode upsert updates records by their id" if slug == "id" else f"the attributes are: {', '.join(known)}"
            raise UsageError(f"{option}: there is no attribute {slug}", hint=hint, code="unknown_attribute")
        if attribute.type not in KEY_TYPES or attribute.is_list:
            kind = "list of values" if attribute.is_list else attribute.type
            raise UsageError(f"{option}: {slug} is a {kind}, which cannot be a key", code="unusable_key")
        found.append(attribute)
    return KeyRule(tuple(found))


def is_unchanged(data: Mapping[str, Any], current: Mapping[str, Any], attributes: Mapping[str, Attribute]) -> bool:
    """Whether a record already shows everything that a row would write."""
    return all(_same(attributes.get(slug), value, current.get(slug)) for slug, value in data.items())


_REWRITTEN = frozenset({AttributeType.EMAIL, AttributeType.NUMBER, AttributeType.DATE, AttributeType.CHECKBOX, AttributeType.CURRENCY})


def base_form(attribute: Attribute | None, value: Any) -> str:
    """One text for all spellings in which a service may show a value that it was given; of what is text a capital is another value."""
    kind = attribute.type if attribute is not None else None
    if kind in (AttributeType.PHONE_NUMBER, AttributeType.REFERENCE) and not isinstance(value, list):
        return key_form(kind, value) or ""
    form = canonical(value) if kind in _REWRITTEN else _stripped(_shown(kind, value))
    if isinstance(form, Decimal):
        form = canonical_number(form)
    return "" if form is None else jsontext.dumps(form, sort_keys=True)


def _stripped(value: Any) -> Any:
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, dict):
        return {name: _stripped(item) for name, item in value.items()}
    return [_stripped(item) for item in value] if isinstance(value, list) else value


def _same(attribute: Attribute | None, sent: Any, current: Any) -> bool:
    kind = attribute.type if attribute is not None else None
    there = _shown(kind, current)
    if _shown(kind, sent) == there or (isinstance(sent, str) and _shown(kind, sent.strip()) == there):
        return True
    if kind in (AttributeType.PHONE_NUMBER, AttributeType.REFERENCE) and attribute is not None and type(sent) is not type(current):
        form = key_form(kind, sent)
        return form is not None and form == key_form(kind, current)
    return False


def _shown(kind: str | None, value: Any) -> Any:
    """A value without what tells two spellings of it apart; None for anything empty."""
    if isinstance(value, str):
        if kind in (AttributeType.EMAIL, AttributeType.DATE):
            return canonical(value)
        return unicodedata.normalize("NFC", value) or None
    if isinstance(value, dict):
        return {name: item for name in sorted(value) if (item := _shown(None, value[name])) is not None} or None
    if isinstance(value, list):
        return [_shown(kind, item) for item in value] or None
    if isinstance(value, bool) or value is None:
        return value
    return Decimal(canonical_number(value))
