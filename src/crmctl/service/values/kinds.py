"""The attribute types as data: how each reads a value, and which family of comparison it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from crmctl.models.attributes import AttributeType
from crmctl.service.values.attribute import StoredAttribute
from crmctl.service.values.choices import read_checkbox, read_element, read_reference, read_select
from crmctl.service.values.composite import read_address, read_name
from crmctl.service.values.dates import read_date
from crmctl.service.values.numbers import read_currency, read_number
from crmctl.service.values.text import read_email, read_phone, read_text


class Family(Enum):
    """How values compare. TEXT is folded and kept exactly beside it; the others have one canonical form."""

    TEXT = auto()
    IDENTITY = auto()
    NUMBER = auto()
    DATE = auto()
    CHOICE = auto()
    TRUTH = auto()


@dataclass(frozen=True)
class Kind:
    """`read(value, attribute)` checks one value and gives its text form, "" for an empty one; raises Invalid.

    `plain(value)` does the same where the attribute has no say.
    """

    family: Family
    read: Callable[[Any, StoredAttribute], str]
    plain: Callable[[Any], str] | None = None


def _plain(family: Family, read: Callable[[Any], str]) -> Kind:
    return Kind(family, lambda value, _: read(value), read)


KINDS: dict[AttributeType, Kind] = {
    AttributeType.TEXT: _plain(Family.TEXT, read_text),
    AttributeType.EMAIL: _plain(Family.TEXT, read_email),
    AttributeType.PHONE_NUMBER: _plain(Family.TEXT, read_phone),
    AttributeType.NAME: _plain(Family.TEXT, read_name),
    AttributeType.ADDRESS: _plain(Family.TEXT, read_address),
    AttributeType.LIST: _plain(Family.TEXT, read_element),
    AttributeType.NUMBER: _plain(Family.NUMBER, read_number),
    AttributeType.CURRENCY: _plain(Family.NUMBER, read_currency),
    AttributeType.DATE: _plain(Family.DATE, read_date),
    AttributeType.CHECKBOX: _plain(Family.TRUTH, read_checkbox),
    AttributeType.SELECT: Kind(Family.CHOICE, read_select),
    AttributeType.REFERENCE: _plain(Family.IDENTITY, read_reference),
}
