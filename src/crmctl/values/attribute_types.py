"""The table of attribute types: one row says everything about a type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from enum import Enum, Flag, auto
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from crmctl.errors import RejectedError
from crmctl.frozen import frozen
from crmctl.models import numbers
from crmctl.values import typed_text, value_readers
from crmctl.values.typed_text import PLAIN, Reader, TextRules, naming, split_list

if TYPE_CHECKING:
    from crmctl.models.resources import Attribute


class Family(Enum):
    """How the values of a type compare. TEXT also keeps its exact spelling; every other family has one canonical form."""

    TEXT = "text"
    IDENTITY = "identity"
    NUMBER = "number"
    DATE = "date"
    CHOICE = "choice"
    TRUTH = "truth"


class Trait(Flag):
    """Properties that a type may have."""

    KEEPS_BLANKS = auto()
    """White space alone is a value. In other types it is a blank cell."""

    SCALAR = auto()
    """One text always gives one JSON string, number or boolean, whatever else is in the row."""

    KEY = auto()
    """An attribute of the type can be the key of an import."""

    REWRITTEN = auto()
    """Services store values in their own form, so two forms of the same value are equal. In text a capital is a change."""

    TELLING = auto()
    """Two different keys never look alike, however a service spells them."""

    FOLDED = auto()
    """Spellings that differ in case or form are one value."""

    SOUGHT_BY_PIECE = auto()
    """Values have many spellings, so crmctl searches for a piece that all of them share."""

    INDEXED = auto()
    """The service keeps an index of the values."""

    JSON_OBJECT = auto()
    JSON_TRUTH = auto()
    JSON_NUMBER = auto()
    """JSON values of this kind are accepted besides strings."""


Parts = Mapping[str, tuple[str, ...]]


@frozen
class ValueType:
    """One attribute type.

    `shown` names its renderer in `output/value_text.py`. `read` makes a function from text to a value. `check` returns the text form of
    a value, or raises Invalid; without it the options of the attribute decide. `check_all` does the same for a batch, faster.
    `parts` lists the usual parts of an object in the order people write them, each with other spellings (folded); `bare` is the part
    that a value which is no object stands for.
    """

    family: Family
    traits: Trait
    shown: str = "text"
    read: Callable[[Attribute, TextRules], Reader] = lambda *_: str
    check: Callable[[Any], str] | None = value_readers.require_text
    check_all: Callable[[Sequence[Any]], Sequence[str]] | None = None
    parts: Parts = field(default_factory=dict)
    bare: str | None = None


def _always(read: Reader) -> Callable[[Attribute, TextRules], Reader]:
    return lambda *_: read


_T = Trait
TYPES: dict[str, ValueType] = {
    "text": ValueType(Family.TEXT, _T.KEEPS_BLANKS | _T.SCALAR | _T.KEY | _T.SOUGHT_BY_PIECE, check_all=value_readers.read_texts),
    "email": ValueType(
        Family.TEXT,
        _T.SCALAR | _T.KEY | _T.REWRITTEN | _T.TELLING | _T.FOLDED | _T.SOUGHT_BY_PIECE | _T.INDEXED,
        shown="email",
        read=_always(typed_text.read_email),
        check=value_readers.read_email,
        check_all=value_readers.read_emails,
    ),
    "number": ValueType(
        Family.NUMBER,
        _T.SCALAR | _T.KEY | _T.REWRITTEN | _T.TELLING | _T.JSON_NUMBER | _T.INDEXED,
        shown="number",
        read=lambda _, rules: partial(numbers.read_number, decimal_comma=rules.decimal_comma),
        check=value_readers.read_number,
        check_all=value_readers.read_numbers,
    ),
    "phone_number": ValueType(
        Family.TEXT,
        _T.KEY | _T.REWRITTEN | _T.SOUGHT_BY_PIECE | _T.JSON_OBJECT | _T.INDEXED,
        shown="email",
        read=_always(typed_text.read_phone),
        check=value_readers.read_phone,
        check_all=value_readers.read_phones,
        parts={
            "number": ("phone", "phonenumber", "value", "e164", "originalphonenumber", "primaryphonenumber"),
            "countryCode": ("country",),
            "extension": ("ext",),
        },
        bare="number",
    ),
    "checkbox": ValueType(
        Family.TRUTH,
        _T.SCALAR | _T.REWRITTEN | _T.JSON_TRUTH | _T.INDEXED,
        shown="checkbox",
        read=_always(typed_text.read_checkbox),
        check=value_readers.read_checkbox,
    ),
    "name": ValueType(
        Family.TEXT,
        _T.KEEPS_BLANKS | _T.JSON_OBJECT,
        shown="name",
        read=_always(typed_text.read_composite),
        check=value_readers.read_name,
        check_all=value_readers.read_names,
        parts={
            "title": ("prefix", "salutation"),
            "first": ("firstname", "given", "givenname", "forename"),
            "middle": ("middlename",),
            "last": ("lastname", "family", "familyname", "surname"),
            "suffix": (),
        },
    ),
    "address": ValueType(
        Family.TEXT,
        _T.KEEPS_BLANKS | _T.JSON_OBJECT,
        shown="address",
        read=_always(typed_text.read_composite),
        check=value_readers.read_address,
        check_all=value_readers.read_addresses,
        parts={
            "street": ("street1", "line1", "address1", "addressline1", "streetaddress", "address"),
            "street2": ("line2", "address2", "addressline2"),
            "city": ("town", "locality"),
            "state": ("region", "province", "county", "statecode"),
            "postalCode": ("zip", "zipcode", "postcode"),
            "country": ("countrycode",),
        },
    ),
    "currency": ValueType(
        Family.NUMBER,
        _T.REWRITTEN | _T.JSON_OBJECT | _T.JSON_NUMBER | _T.INDEXED,
        shown="currency",
        read=lambda _, rules: partial(typed_text.read_currency, decimal_comma=rules.decimal_comma),
        check=value_readers.read_currency,
        parts={"amount": ("value", "number"), "currency": ("currencycode", "code", "unit")},
        bare="amount",
    ),
    "date": ValueType(
        Family.DATE,
        _T.SCALAR | _T.KEY | _T.REWRITTEN | _T.TELLING | _T.FOLDED | _T.INDEXED,
        shown="date",
        read=lambda _, rules: lambda text: typed_text.read_date(text, rules.date_format),
        check=value_readers.read_date,
    ),
    "select": ValueType(
        Family.CHOICE,
        _T.SCALAR | _T.KEY | _T.INDEXED,
        shown="word",
        read=lambda attribute, _: typed_text.select_reader(attribute.options),
        check=None,
    ),
    "list": ValueType(
        Family.TEXT,
        _T.JSON_NUMBER,
        shown="list",
        read=lambda _, rules: lambda text: split_list(text, rules.list_separator),
        check=value_readers.read_element,
    ),
    "reference": ValueType(
        Family.IDENTITY,
        _T.KEY | _T.REWRITTEN | _T.FOLDED | _T.JSON_OBJECT | _T.INDEXED,
        shown="id",
        read=lambda attribute, _: partial(typed_text.read_reference, attribute.slug),
        check=value_readers.read_reference,
    ),
}

UNKNOWN = ValueType(Family.TEXT, ~Trait(0))
"""A type that the specification does not know: it is compared as text and accepts every JSON value."""

PART_NAMES: dict[str, Parts] = {name: row.parts for name, row in TYPES.items() if row.parts}
COMPOSITE_TYPES = frozenset(PART_NAMES)


def type_of(name: str | None) -> ValueType:
    return TYPES.get(name or "", UNKNOWN)


def types_with(trait: Trait) -> frozenset[str]:
    return frozenset(name for name, row in TYPES.items() if trait in row.traits)


@frozen
class StoredAttribute:
    """An attribute as the service stores it. `number` names its columns, `target_id` the object that a reference points to."""

    id: str
    number: int
    slug: str
    type: str
    is_required: bool = False
    is_unique: bool = False
    is_list: bool = False
    options: tuple[str, ...] = ()
    target_id: str | None = None

    @cached_property
    def row(self) -> ValueType:
        return TYPES[self.type]

    @cached_property
    def check(self) -> Callable[[Any], str]:
        """Return the text form of a value, or raise Invalid. Without a check of the type the options decide."""
        return self.row.check or partial(value_readers.read_option, self.option_set, self.options)

    @cached_property
    def holds_many(self) -> bool:
        """Whether values are arrays: in every list attribute, and in any other with isList."""
        return self.is_list or self.type == "list"

    @cached_property
    def is_indexed(self) -> bool:
        """Whether single values have an index. The projection of an array cannot be searched through one."""
        return not self.holds_many and (self.is_unique or Trait.INDEXED in self.row.traits)

    @cached_property
    def option_set(self) -> frozenset[str]:
        return frozenset(self.options)


def typed(text: str, attribute: Attribute) -> Any:
    """Return the wire value of a text. Raises RejectedError, which names the attribute, for a text that does not fit its type."""
    with naming(attribute.slug, text):
        return reader(attribute)(text)


def reader(attribute: Attribute, rules: TextRules = PLAIN) -> Reader:
    """Return the function that turns a text into a wire value of the attribute. It raises RejectedError."""
    read = type_of(attribute.type).read(attribute, rules)
    if not attribute.is_list or attribute.type == "list":
        return read

    def read_items(text: str) -> list[Any]:
        """Split at the separator. Options are also split at commas if the text is no option and its parts are."""
        items = split_list(text, rules.list_separator)
        try:
            return [read(element) if isinstance(element, str) else element for element in items]
        except RejectedError:
            if attribute.type != "select" or len(items) != 1:
                raise
            with suppress(RejectedError):
                return [read(element) for element in split_list(text, ",")]
            raise

    return read_items
