"""Meaning of a condition, and conditions evaluated on JSON values. The service and the client share both.

Empty is one thing: missing, null, "", [] and a composite in which every part is empty. An array matches when any element does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC
from decimal import Decimal
from typing import Any, NamedTuple

from crmctl.errors import RejectedError
from crmctl.models import jsontext
from crmctl.models.ids import reference_id
from crmctl.models.numbers import decimal_of
from crmctl.models.resources import Attribute
from crmctl.values.attribute_types import Family, StoredAttribute, type_of
from crmctl.values.composites import usual_name
from crmctl.values.folded_text import address_text, fold, name_text
from crmctl.values.moments import moment_of
from crmctl.values.operators import FAMILIES, Kind, Operator
from crmctl.values.value_readers import FALSE, TRUE, Invalid, date_key, number_key, parse_number, require_text

AnyAttribute = Attribute | StoredAttribute
"""An attribute as the wire or the service describes it."""

Test = Callable[[Any], bool]
"""Whether a value meets a condition."""


class Comparison(NamedTuple):
    """A condition resolved for one family: whether `operator` holds between a key of the value and `key`, unless it is negated.

    `is_exact`: the keys are the texts as they are, not folded.
    """

    operator: Operator
    key: str
    is_negated: bool
    is_exact: bool = False


def resolve(family: Family, operator: Operator, operand: str) -> Comparison:
    """Resolve a condition. Raises Invalid for an operator that the family does not have, and for an operand of the wrong kind."""
    positive, is_negated = operator.positive, operator.is_negation
    if family not in FAMILIES[positive.meaning.kind]:
        valid = ", ".join(operator for operator in Operator if family in FAMILIES[operator.meaning.kind])
        raise Invalid(f"does not apply to this type of attribute; what does is: {valid}")
    if not operator.takes_value and operand.lower() != TRUE:
        raise Invalid("takes the value true only")
    require_text(operand)
    if operand == "" and family in FAMILIES[Kind.PATTERN] and positive.meaning.kind in (Kind.EQUALITY, Kind.PATTERN):
        # To equal the empty text is to be empty, and every other text contains it.
        return Comparison(Operator.IS_NOT_EMPTY, "", is_negated is (positive.meaning.kind is Kind.PATTERN))
    if positive.meaning.kind is Kind.PRESENCE:
        return Comparison(positive, "", is_negated)
    is_exact = positive.meaning.kind is Kind.EQUALITY and family in (Family.TEXT, Family.CHOICE)
    text = positive.meaning.operand or operand
    return Comparison(positive, text if is_exact else _OPERANDS[family](text), is_negated, is_exact)


def _truth(text: str) -> str:
    word = text.lower()
    if word not in (TRUE, FALSE):
        raise Invalid(f"needs true or false, not {text[:80]!r}")
    return word


_OPERANDS: dict[Family, Callable[[str], str]] = {
    Family.TEXT: fold,
    Family.IDENTITY: fold,
    Family.CHOICE: fold,
    Family.NUMBER: parse_number,
    Family.DATE: date_key,
    Family.TRUTH: _truth,
}
"""How an operand becomes the key that values of a family are compared with."""


def value_test(attribute: AnyAttribute, operator: Operator, operand: str) -> Test:
    """Return the test of a condition. Raises RejectedError for an operator or operand that does not fit the attribute's type."""
    try:
        positive, key, is_negated, is_exact = resolve(type_of(attribute.type).family, operator, operand)
    except Invalid as error:
        raise RejectedError(f"the filter on {attribute.slug!r} with {operator} {error}", code="bad_filter") from None
    keys, matches = exact_keys if is_exact else keys_of, positive.meaning.matches
    return lambda value: any(matches(value_key, key) for value_key in keys(attribute, value)) is not is_negated


def keys_of(attribute: AnyAttribute, value: Any) -> list[str]:
    """Return what a value is compared by: one key, one for each element of an array, none for an empty value.

    A value that does not fit the type has no key: other services may store such values.
    """
    read = _KEYS.get(type_of(attribute.type).family)
    if read is not None:
        return [key for element in elements_of(value) if (key := read(attribute, element)) is not None]
    return [fold(text) for text in exact_keys(attribute, value)]


def exact_keys(attribute: AnyAttribute, value: Any) -> list[str]:
    """Return the texts of a value as `equals` compares them. Case does not matter in ids."""
    texts = [text for element in elements_of(value) if (text := text_of(attribute, element))]
    return [fold(text) for text in texts] if type_of(attribute.type).family is Family.IDENTITY else texts


def text_of(attribute: AnyAttribute, value: Any) -> str:
    """Return the searchable text of one value, a composite's parts in the order people write them."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if not isinstance(value, Mapping):
        return jsontext.dumps(value)
    if type_of(attribute.type).family is Family.IDENTITY:
        return record_id if isinstance(record_id := reference_id(value), str) else ""
    texts = {part: inner if isinstance(inner, str) else "" if inner is None else jsontext.dumps(inner) for part, inner in value.items()}
    return address_text(texts) if attribute.type == "address" else name_text(texts)


def number_in(attribute: AnyAttribute, value: Any) -> Decimal | None:
    """Return the number of a value, or the amount of money; None without one."""
    if isinstance(value, Mapping):
        value = next((inner for part, inner in value.items() if usual_name(attribute, part) == "amount"), None)
    return decimal_of(value)


def elements_of(value: Any) -> list[Any]:
    """Return the elements of an array, or any other value as the only one."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _number_key(attribute: AnyAttribute, value: Any) -> str | None:
    number = number_in(attribute, value)
    try:
        return None if number is None else number_key(number)
    except Invalid:
        return None


def _date_key(_attribute: AnyAttribute, value: Any) -> str | None:
    moment = moment_of(value) if isinstance(value, str) else None
    try:
        return None if moment is None else moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    except OverflowError:
        return None


def _truth_key(_attribute: AnyAttribute, value: Any) -> str | None:
    word = str(value).lower()
    return word if isinstance(value, bool | str) and word in (TRUE, FALSE) else None


_KEYS: dict[Family, Callable[[AnyAttribute, Any], str | None]] = {
    Family.NUMBER: _number_key,
    Family.DATE: _date_key,
    Family.TRUTH: _truth_key,
}
"""Keys of the families that are not compared as text."""
