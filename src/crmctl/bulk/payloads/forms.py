"""The inner shape of composite values (name, address, currency, phone): the specification leaves it open, so imports follow the form that
existing records show, and a documented default otherwise: parts make an object, one cell stays one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crmctl.models.attributes import Attribute, AttributeType

PART_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    AttributeType.NAME: {
        "title": ("prefix", "salutation"),
        "first": ("firstname", "given", "givenname", "forename"),
        "middle": ("middlename",),
        "last": ("lastname", "family", "familyname", "surname"),
        "suffix": (),
    },
    AttributeType.ADDRESS: {
        "street": ("street1", "line1", "address1", "addressline1", "streetaddress"),
        "street2": ("line2", "address2", "addressline2"),
        "city": ("town", "locality"),
        "state": ("region", "province", "county"),
        "postalCode": ("zip", "zipcode", "postcode"),
        "country": ("countrycode",),
    },
    AttributeType.CURRENCY: {"amount": ("value",), "currency": ("currencycode", "code")},
    AttributeType.PHONE_NUMBER: {
        "number": ("phone", "phonenumber", "value", "e164", "originalphonenumber", "primaryphonenumber"),
        "countryCode": ("country",),
        "extension": ("ext",),
    },
}
"""Part names in the order people write them, each with other spellings of the same part (folded)."""

JOINED_BY: dict[str, str] = {AttributeType.NAME: " ", AttributeType.ADDRESS: ", "}


@dataclass(frozen=True)
class Form:
    """How existing records hold one attribute: as plain text or number (`plain`), or as an object with these `keys`. Neither: not known."""

    plain: bool = False
    keys: tuple[str, ...] = ()


def fold(text: str) -> str:
    """A name without case, spaces, underscores and hyphens, for comparison only."""
    return "".join(character for character in text.casefold() if character not in " _-\u00a0\t")


def learn_form(attribute: Attribute, samples: Sequence[Mapping[str, Any]]) -> Form:
    """The form in which `samples` (the `data` of existing records) hold the attribute; objects win over plain values."""
    values = [value for sample in samples if (value := sample.get(attribute.slug)) not in (None, "", [], {})]
    keys = tuple(dict.fromkeys(key for value in values if isinstance(value, dict) for key in value))
    return Form(plain=bool(values) and not keys, keys=keys)


def part_name(attribute: Attribute, part: str, form: Form) -> str:
    """The part's name as it is sent: as existing records spell it, else the usual spelling of a known part, else as given."""
    usual = _usual_name(attribute, part)
    wanted = {fold(part)} | ({fold(usual), *PART_NAMES[attribute.type or ""][usual]} if usual is not None else set())
    for key in form.keys:
        if fold(key) in wanted:
            return key
    if usual is not None and fold(part) == fold(usual):
        return usual
    return part


def compose(attribute: Attribute, parts: Mapping[str, Any], form: Form) -> Any:
    """One value from its parts: an object, or a string joined in the usual order where existing records hold plain text."""
    separator = JOINED_BY.get(attribute.type or "")
    if not form.plain or separator is None:
        return dict(parts)
    rank = {name: place for place, name in enumerate(PART_NAMES[attribute.type or ""])}
    ranked = sorted(parts, key=lambda part: rank.get(_usual_name(attribute, part) or "", len(rank)))
    return separator.join(str(parts[part]) for part in ranked if parts[part] not in (None, ""))


def reshape_money(attribute: Attribute, value: Any, form: Form) -> Any:
    """An `{amount, currency}` of ours with the key names of existing records."""
    if not isinstance(value, dict) or value.keys() != {"amount", "currency"}:
        return value
    return {part_name(attribute, part, form): value[part] for part in ("amount", "currency")}


def compose_phone(attribute: Attribute, number: str, extension: str | None, form: Form) -> Any:
    """A number in E.164, with `;ext=` where it has an extension, or as the number, and extension, of an object where records hold objects.

    The other keys of such objects, a country for example, are left out: how they are spelled is for the service to know.
    """
    names = {part: part_name(attribute, part, form) for part in ("number", "extension")}
    in_full = f"{number};ext={extension}" if extension else number
    if names["number"] not in form.keys:
        return in_full
    if extension and names["extension"] in form.keys:
        return {names["number"]: number, names["extension"]: extension}
    return {names["number"]: in_full}


def _usual_name(attribute: Attribute, part: str) -> str | None:
    folded = fold(part)
    for usual, others in PART_NAMES.get(attribute.type or "", {}).items():
        if folded == fold(usual) or folded in others:
            return usual
    return None
