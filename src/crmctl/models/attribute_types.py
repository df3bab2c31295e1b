"""What the client's side knows about the attribute types, as one table: what else is said of a type is made from it.

A new type is a new row here, and a test names every other table that must have one.
"""

from __future__ import annotations

from enum import Flag, auto

from crmctl.models.attributes import AttributeType


class Trait(Flag):
    """What may be true of a type."""

    HAS_PARTS = auto()
    """Its value may be an object, so that `slug.part` can name a part of it."""

    KEEPS_BLANKS = auto()
    """White space alone is a value; for the others it is a blank cell."""

    SCALAR = auto()
    """One JSON string, number or boolean for one text, whatever else is in the row."""

    KEY = auto()
    """It can be a key: one value, no parts that count."""

    REWRITTEN = auto()
    """Services keep its values in a form of their own: what is the same in any form is the same. In text a capital is a change."""

    TELLING = auto()
    """No two different keys of it look alike, however a service spells them."""

    FOLDED = auto()
    """Spellings that differ in case or form are one value of it."""

    SOUGHT_BY_PIECE = auto()
    """Spelled in many ways: a service is asked for a piece of it that all of them have."""

    JSON_OBJECT = auto()
    JSON_TRUTH = auto()
    JSON_NUMBER = auto()
    """What is taken as it stands in JSON, beside a string."""


_T = Trait
TRAITS: dict[str, Trait] = {
    AttributeType.TEXT: _T.KEEPS_BLANKS | _T.SCALAR | _T.KEY | _T.SOUGHT_BY_PIECE,
    AttributeType.EMAIL: _T.SCALAR | _T.KEY | _T.REWRITTEN | _T.TELLING | _T.FOLDED | _T.SOUGHT_BY_PIECE,
    AttributeType.NUMBER: _T.SCALAR | _T.KEY | _T.REWRITTEN | _T.TELLING | _T.JSON_NUMBER,
    AttributeType.PHONE_NUMBER: _T.HAS_PARTS | _T.KEY | _T.REWRITTEN | _T.SOUGHT_BY_PIECE | _T.JSON_OBJECT,
    AttributeType.CHECKBOX: _T.SCALAR | _T.REWRITTEN | _T.JSON_TRUTH,
    AttributeType.NAME: _T.HAS_PARTS | _T.KEEPS_BLANKS | _T.JSON_OBJECT,
    AttributeType.ADDRESS: _T.HAS_PARTS | _T.KEEPS_BLANKS | _T.JSON_OBJECT,
    AttributeType.CURRENCY: _T.HAS_PARTS | _T.REWRITTEN | _T.JSON_OBJECT | _T.JSON_NUMBER,
    AttributeType.DATE: _T.SCALAR | _T.KEY | _T.REWRITTEN | _T.TELLING | _T.FOLDED,
    AttributeType.SELECT: _T.SCALAR | _T.KEY,
    AttributeType.LIST: _T.JSON_NUMBER,
    AttributeType.REFERENCE: _T.KEY | _T.REWRITTEN | _T.FOLDED | _T.JSON_OBJECT,
}


def types_with(trait: Trait) -> frozenset[str]:
    """The types of which this is true."""
    return frozenset(kind for kind, traits in TRAITS.items() if trait in traits)


def takes_json(kind: str | None, trait: Trait) -> bool:
    """Whether a value of this JSON kind is taken as it stands. A type that the specification does not know takes everything."""
    traits = TRAITS.get(kind or "")
    return traits is None or trait in traits
