"""Whether a record still holds what an update wrote, or what was there before: decides whether it is put back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from crmctl.bulk.match.keys import is_unchanged
from crmctl.bulk.match.record_match import canonical, key_form
from crmctl.models.attribute_types import Trait, types_with
from crmctl.models.attributes import Attribute, AttributeType

REWRITTEN = types_with(Trait.REWRITTEN)


class UpdateStatus(StrEnum):
    """How the record of an updated row stands: as the job `wrote` it, `back` as it was before, or `changed` by somebody since."""

    WROTE = "wrote"
    BACK = "back"
    CHANGED = "changed"


def standing(
    sent: Mapping[str, Any], before: Mapping[str, Any], current: Mapping[str, Any], attributes: Mapping[str, Attribute]
) -> tuple[UpdateStatus, list[str]]:
    """How a record stands, and the attributes that somebody changed. `before` holds what the update overwrote."""
    earlier = {slug: before.get(slug, value) for slug, value in sent.items()}
    if all(current.get(slug) == earlier[slug] for slug in before):
        return UpdateStatus.BACK, []
    changed = [slug for slug, value in sent.items() if not alike(attributes.get(slug), value, current.get(slug))]
    if not changed:
        return UpdateStatus.WROTE, []
    if all(alike(attributes.get(slug), value, current.get(slug)) for slug, value in earlier.items()):
        return UpdateStatus.BACK, []
    return UpdateStatus.CHANGED, changed


def alike(attribute: Attribute | None, written: Any, current: Any) -> bool:
    """Whether a service that was given one value may show the other."""
    if is_unchanged({"it": written}, {"it": current}, {"it": attribute} if attribute is not None else {}):
        return True
    if attribute is None or attribute.type not in REWRITTEN:
        return False
    if canonical(written) == canonical(current):
        return True
    form = key_form(attribute.type, written)
    return attribute.type == AttributeType.PHONE_NUMBER and form is not None and form == key_form(attribute.type, current)
