"""By what records are sorted that the service cannot sort: an attribute, or a part of one. Compared as its filters compare."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from crmctl.client.queries.parts import parts_of
from crmctl.client.queries.record_filter import ListOrder
from crmctl.client.record_lists import SORTS
from crmctl.errors import UsageError
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.comparison import keys_of
from crmctl.models.composites import COMPOSITE_TYPES
from crmctl.models.nearest import did_you_mean
from crmctl.models.records import Record


def list_order(sort: str | None, order: str | None, attributes: Callable[[], Mapping[str, Attribute] | None]) -> ListOrder:
    """The order that --sort and --order ask for; `attributes` is asked where the service does not sort by itself.

    Raises UsageError for what records have not, listing what they have.
    """
    if sort is None or sort in SORTS:
        return ListOrder(SORTS[sort] if sort else None, order)
    known = attributes() or {}
    slug, _, part = sort.partition(".") if sort not in known else (sort, "", "")
    attribute = known.get(slug)
    if attribute is None or (part and attribute.type not in COMPOSITE_TYPES):
        signed = re.fullmatch(r"([-+]?)([^:\s]+?)(?:[:\s]+(asc|desc))?", sort.lower())
        if signed is not None and (signed[1] or signed[3]) and signed[2] in {*SORTS, *known}:
            meant = f"--sort {signed[2]} --order {signed[3] or ('desc' if signed[1] == '-' else 'asc')}"
        else:
            meant = did_you_mean(sort, [*SORTS, *known])
        valid = f"created_at, updated_at, or an attribute: {', '.join(known)}" if known else "created_at or updated_at"
        raise UsageError(f"--sort must be {valid}, not {sort!r}", hint=meant or None, code="unknown_attribute")
    return ListOrder(sort, order or "asc", key=_key(attribute, part))


def _key(attribute: Attribute, part: str) -> Callable[[Record], Any]:
    text = Attribute(id="", slug=attribute.slug, type=AttributeType.TEXT, is_list=True)

    def key(record: Record) -> Any:
        value = record.data.get(attribute.slug)
        keys = keys_of(text, parts_of(attribute, value, part)) if part else keys_of(attribute, value)
        return keys[0] if keys else None

    return key
