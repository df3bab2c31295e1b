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
    """`read(value, attribute)` checks one value and gives its text form, "" for an empty one; raises Invalid."""

    family: Family
    read: Callable[[Any, StoredAttribute], str]


def _plain(read: Callable[[Any], str]) -> Callable[[Any, StoredAttribute], str]:
    return lambda value, _: read(value)


KINDS: dict[AttributeType, Kind] = {
    AttributeType.TEXT: Kind(Family.TEXT, _plain(read_text)),
    AttributeType.EMAIL: Kind(Family.TEXT, _plain(read_email)),
    AttributeType.PHONE_NUMBER: Kind(Family.TEXT, _plain(read_phone)),
    AttributeType.NAME: Kind(Family.TEXT, _plain(read_name)),
    AttributeType.ADDRESS: Kind(Family.TEXT, _plain(read_address)),
    AttributeType.LIST: Kind(Family.TEXT, _plain(read_element)),
    AttributeType.NUMBER: Kind(Family.NUMBER, _plain(read_number)),
    AttributeType.CURRENCY: Kind(Family.NUMBER, _plain(read_currency)),
    AttributeType.DATE: Kind(Family.DATE, _plain(read_date)),
    AttributeType.CHECKBOX: Kind(Family.TRUTH, _plain(read_checkbox)),
    AttributeType.SELECT: Kind(Family.CHOICE, read_select),
    AttributeType.REFERENCE: Kind(Family.IDENTITY, _plain(read_reference)),
}
