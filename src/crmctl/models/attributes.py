"""Attributes: the fields of an object (specification 2.2)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from crmctl.models.base import Resource


class AttributeType(StrEnum):
    """The twelve attribute types of the specification."""

    TEXT = "text"
    EMAIL = "email"
    NUMBER = "number"
    PHONE_NUMBER = "phone_number"
    CHECKBOX = "checkbox"
    NAME = "name"
    ADDRESS = "address"
    CURRENCY = "currency"
    DATE = "date"
    SELECT = "select"
    LIST = "list"
    REFERENCE = "reference"


class Attribute(Resource):
    """`type` stays a string: a service may know more types than this specification."""

    id: str
    slug: str
    object_id: str | None = None
    name: str | None = None
    type: str | None = None
    is_required: bool | None = None
    is_unique: bool | None = None
    is_list: bool | None = None
    is_active: bool | None = None
    display_order: int | None = None
    config: dict[str, Any] | None = None
    created_at: str | None = None
    updated_at: str | None = None

    @property
    def options(self) -> list[str]:
        """The options of a select attribute, in the service's order; options given as objects count by their `value` or `name`."""
        options = (self.config or {}).get("options")
        if not isinstance(options, list):
            return []
        return [str(option.get("value", option.get("name", ""))) if isinstance(option, dict) else str(option) for option in options]

    @property
    def target_object_id(self) -> str | None:
        """The object a reference attribute points to."""
        target = (self.config or {}).get("allowed_object_id")
        return str(target) if target else None
