"""How a service is asked for the records of one key: conditions that all of them meet in whatever spelling, and how to see that they are
heeded. What comes is compared here. Pure.

Values that a filter cannot find: letters that only Unicode holds for alike (a ligature, the Kelvin sign), and telephone numbers with
something between the last two digits.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from crmctl.bulk.match.keys import KeyRule
from crmctl.bulk.match.record_match import key_form
from crmctl.models import jsontext
from crmctl.models.attribute_types import Trait, types_with
from crmctl.models.attributes import AttributeType
from crmctl.models.filters import Condition, Operator
from crmctl.models.records import Record
from crmctl.models.timestamps import micros_of

SHORTEST = 3
"""A shorter piece of text is in too many values to be asked for."""

LAST_DIGITS = 2
"""So many digits stand together at the end of a telephone number, however it is written."""

LAST_GROUP = 4
"""A shorter group of digits is in too many numbers."""

_PRINTABLE = re.compile(r"[ -~]+")
_DIGITS = re.compile(r"[0-9]+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_CONTAINED = types_with(Trait.SOUGHT_BY_PIECE)


@dataclass(frozen=True)
class Question:
    """Conditions; `fits` tells whether a service that heeds them may answer with a record of this data."""

    conditions: tuple[Condition, ...]
    fits: Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True)
class KeyFilter:
    """`sample`: a record that is there. What its values do not show a filter can do is not relied on: of a key only such characters are
    asked for as the control shows to be understood."""

    rule: KeyRule
    sample: Record

    @classmethod
    def of(cls, rule: KeyRule, records: Iterable[Record]) -> KeyFilter | None:
        """By the youngest record that has a key; None where there is none."""
        having = [record for record in records if rule.key(record.data) is not None]
        usable = [one for record in having if (one := cls(rule, record)).control is not None]
        return max(usable, key=lambda one: micros_of(one.sample.created_at) or 0, default=None)

    def exact(self, key: str) -> Question | None:
        """For the spelling that is usual, where one of another spelling is costly to ask for: the last group of digits of a telephone
        number is as long as the sample's."""
        phones = [attribute.slug for attribute in self.rule.attributes if attribute.type == AttributeType.PHONE_NUMBER]
        if not phones:
            return None
        group = min(len((_DIGITS.findall(_text(self.sample.data.get(slug))) or [""])[-1]) for slug in phones)
        return self._question(key, phone=lambda digits: digits[-group:] if group >= LAST_GROUP else digits)

    def every(self, key: str) -> Question | None:
        """For all records of a key, and maybe others; None for a key that cannot be asked for."""
        return self._question(key, phone=lambda digits: digits[-LAST_DIGITS:])

    @cached_property
    def control(self) -> Question | None:
        """Finds the sample where filters do what they must: here it is spelled as it is not there."""
        conditions = []
        for attribute in self.rule.attributes:
            said = self._control(attribute.type, self.sample.data.get(attribute.slug))
            if said is None:
                return None
            conditions.append(Condition(attribute.slug, _operator(attribute.type), said))
        return Question(tuple(conditions), self._fits(conditions))

    @cached_property
    def _shown(self) -> Mapping[str, frozenset[str]]:
        """By attribute, the characters that the control has."""
        return {condition.slug: frozenset(condition.value) for condition in (self.control.conditions if self.control else ())}

    def _question(self, key: str, phone: Callable[[str], str]) -> Question | None:
        conditions = []
        for attribute, part in zip(self.rule.attributes, jsontext.loads(key), strict=True):
            said = phone(part) if attribute.type == AttributeType.PHONE_NUMBER else self._said(attribute.type, part, attribute.slug)
            if not said or (attribute.type == AttributeType.PHONE_NUMBER and not (said.isascii() and len(said) >= LAST_DIGITS)):
                return None
            conditions.append(Condition(attribute.slug, _operator(attribute.type), said))
        return Question(tuple(conditions), self._fits(conditions))

    def _said(self, kind: str | None, part: str, slug: str) -> str | None:
        known = self._shown.get(slug, frozenset())
        if kind in _CONTAINED:
            return _longest(_pieces(part, known))
        if kind == AttributeType.DATE and not _DATE.fullmatch(part):
            return None
        return part if all(_is_plain(letter) or letter in known for letter in part) else None

    @staticmethod
    def _control(kind: str | None, value: Any) -> str | None:
        form = key_form(kind, value)
        if form is None or (kind in _CONTAINED and not isinstance(value, str)):
            return None
        match kind:
            case AttributeType.PHONE_NUMBER:
                return _longest(_DIGITS.findall(value))
            case AttributeType.EMAIL:
                return _in_other_case(_longest(_PRINTABLE.findall(value.strip())))
            case AttributeType.TEXT:
                return _longest(_PRINTABLE.findall(value.strip()))
            case AttributeType.NUMBER:
                return form + ("0" if "." in form else ".0")
            case AttributeType.DATE:
                return f"{form}T00:00:00Z" if _DATE.fullmatch(form) else None
            case AttributeType.REFERENCE:
                return _in_other_case(form)
        return form

    def _fits(self, conditions: Iterable[Condition]) -> Callable[[Mapping[str, Any]], bool]:
        kinds = {attribute.slug: attribute.type for attribute in self.rule.attributes}
        asked = [(one.slug, kinds[one.slug], one.value, key_form(kinds[one.slug], one.value)) for one in conditions]

        def fits(data: Mapping[str, Any]) -> bool:
            return all(
                _folded(said) in _folded(_text(data.get(slug))) if kind in _CONTAINED else _same(kind, data.get(slug), form)
                for slug, kind, said, form in asked
            )

        return fits


def _same(kind: str | None, value: Any, form: str | None) -> bool:
    there = key_form(kind, value)
    if kind == AttributeType.NUMBER and there is not None and form is not None:
        return there == form.removesuffix("0").removesuffix(".") or there == form
    if kind == AttributeType.DATE and form is not None:
        form = key_form(kind, form.upper())
    return there == form


def _in_other_case(text: str | None) -> str | None:
    """None for a text that has no case, and so shows nothing."""
    return other if text is not None and (other := text.swapcase()) != text else None


def _operator(kind: str | None) -> Operator:
    return Operator.CONTAINS if kind in _CONTAINED else Operator.EQUALS


def _is_plain(letter: str) -> bool:
    return letter.isascii() and letter.isalnum()


def _pieces(text: str, known: frozenset[str]) -> list[str]:
    """What is left of a text without the characters of which it is not known that a filter takes them as they are."""
    return "".join(letter if _is_plain(letter) or letter in known else "\0" for letter in text).split("\0")


def _longest(pieces: Iterable[str]) -> str | None:
    found = max((piece.strip() for piece in pieces), key=len, default="")
    return found if len(found) >= SHORTEST else None


def _text(value: Any) -> str:
    if isinstance(value, dict | list):
        return " ".join(_text(one) for one in (value.values() if isinstance(value, dict) else value))
    return "" if value is None else str(value)


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()
