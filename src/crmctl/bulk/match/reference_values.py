"""Values that name records, as the service shows them and as it takes them: by id, and with other ids where records got new ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crmctl.models.attributes import Attribute, AttributeType


def as_sent(attribute: Attribute | None, value: Any) -> Any:
    """A value that the service showed, in the form it takes: references by id."""
    return ids_only(value) if attribute is not None and attribute.type == AttributeType.REFERENCE else value


def ids_only(value: Any) -> Any:
    """A reference value by id."""
    if isinstance(value, list):
        return [ids_only(one) for one in value]
    return value.get("id") if isinstance(value, Mapping) else value


def replace_ids(value: Any, new: Mapping[str, str]) -> Any:
    """A reference value with other ids, given by the old ones in lower case; of a list that then names one record twice, once."""
    if isinstance(value, list):
        return list(dict.fromkeys(replace_ids(one, new) for one in value))
    return new.get(value.lower(), value) if isinstance(value, str) else value


def moved_references(data: Mapping[str, Any], new: Mapping[str, str]) -> dict[str, Any]:
    """Those of these references that name an old id, with the new one."""
    there = {slug: ids_only(value) for slug, value in data.items()}
    return {slug: moved for slug, value in there.items() if (moved := replace_ids(value, new)) != value}
