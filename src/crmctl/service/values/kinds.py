"""The attribute types as data: how each reads a value, and which family of comparison it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from crmctl.models.attributes import AttributeType
from crmctl.service.values.attribute import StoredAttribute
from crmctl.service.values.choices import read_checkbox, read_element, read_reference, read_select
from crmctl.service.values.composite import read_address, read_addresses, read_name, read_names
from crmctl.service.values.dates import read_date
from crmctl.service.values.numbers import read_currency, read_number, read_numbers
from crmctl.service.values.text import read_email, read_emails, read_phone, read_phones, read_text, read_texts


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

    `plain(value)` does the same where the attribute has no say, `read_plain(values)` for all values of a batch.
    """

    family: Family
    read: Callable[[Any, StoredAttribute], str]
    plain: Callable[[Any], str] | None = None
    read_plain: Callable[[Sequence[Any]], Sequence[str]] | None = None


def _plain(family: Family, read: Callable[[Any], str], read_all: Callable[[Sequence[Any]], Sequence[str]] | None = None) -> Kind:
    return Kind(family, lambda value, _: read(value), read, read_all or (lambda values: [read(value) for value in values]))


KINDS: dict[AttributeType, Kind] = {
    AttributeType.TEXT: _plain(Family.TEXT, read_text, read_texts),
    AttributeType.EMAIL: _plain(Family.TEXT, read_email, read_emails),
    AttributeType.PHONE_NUMBER: _plain(Family.TEXT, read_phone, read_phones),
    AttributeType.NAME: _plain(Family.TEXT, read_name, read_names),
    AttributeType.ADDRESS: _plain(Family.TEXT, read_address, read_addresses),
    AttributeType.LIST: _plain(Family.TEXT, read_element),
    AttributeType.NUMBER: _plain(Family.NUMBER, read_number, read_numbers),
    AttributeType.CURRENCY: _plain(Family.NUMBER, read_currency),
    AttributeType.DATE: _plain(Family.DATE, read_date),
    AttributeType.CHECKBOX: _plain(Family.TRUTH, read_checkbox),
    AttributeType.SELECT: Kind(Family.CHOICE, read_select),
    AttributeType.REFERENCE: _plain(Family.IDENTITY, read_reference),
}
