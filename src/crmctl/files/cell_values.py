"""Convert a cell to the wire value of its attribute, or to a finding."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from crmctl.errors import RejectedError, UsageError
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.field_paths import without_guard
from crmctl.models.findings import Finding, Severity
from crmctl.models.jsontext import Json
from crmctl.models.numbers import check_number, check_numbers
from crmctl.models.resources import Attribute, AttributeType
from crmctl.values.attribute_types import Trait, reader, type_of, types_with
from crmctl.values.composites import Form, Merger, compose_phone, learn_form, reshape_money
from crmctl.values.typed_text import Reader, TextRules, date_directives, is_spreadsheet_number, read_phone, split_list

AS_TYPED = "none"
"""Region value for sending numbers as written."""

_REGION_HINT = "--default-region GB (or another country) reads it as a number of there, --default-region none sends numbers as they are"
_PROBLEMS = {0: "no country has this code", 2: "it ends after the prefix for calls abroad", 3: "it is too short", 4: "it is too long"}
"""Texts for the phone library's NumberParseException."""
_LENGTHS = {2: "too short", 3: "too long", 5: "of a length that its country does not have"}
"""Texts for the phone library's ValidationResult."""


class Phone(NamedTuple):
    """A number as E.164. `is_assigned`: its country's numbering plan has such numbers."""

    e164: str
    extension: str | None
    is_assigned: bool


def check_region(region: str | None) -> str | None:
    """Return a declared region in capitals. Raises UsageError for an unknown region."""
    if region is None or region.lower() == AS_TYPED:
        return region and AS_TYPED
    from phonenumbers import SUPPORTED_REGIONS

    if region.upper() not in SUPPORTED_REGIONS:
        hint = "the two letters of a country, for example --default-region GB"
        raise UsageError(f"there is no region {region!r}", hint=hint, code="no_such_region")
    return region.upper()


def phone_doubt(region: str | None) -> Callable[..., Finding | None]:
    """Return a function that warns of valid numbers that are not assigned."""

    def doubt(text: str, _value: Any = None) -> Finding | None:
        if region == AS_TYPED or text.lstrip().startswith(("{", "[")) or parse_phone(text.strip(), region).is_assigned:
            return None
        message = "no number of this country looks like this; it is sent all the same"
        return Finding("unassigned_phone", message, severity=Severity.WARNING)

    return doubt


@lru_cache(maxsize=4096)
def parse_phone(text: str, region: str | None) -> Phone:
    """Parse a number. Raises RejectedError for text that is not a number, and for a national number without a region.

    A number with a country code need only be possible, because numbering plans change. A number completed by the region must be assigned.
    """
    import phonenumbers as library

    is_national = False
    try:
        try:
            number = library.parse(text, None)
        except library.NumberParseException as error:
            if error.error_type != error.INVALID_COUNTRY_CODE or "+" in text:
                raise
            if region is None:
                raise RejectedError("a phone number without its country", hint=_REGION_HINT, code="national_phone") from None
            is_national = True
            number = library.parse(text, region)
    except library.NumberParseException as error:
        raise RejectedError(
            f"not a phone number: {_PROBLEMS.get(error.error_type, 'it cannot be read as one')}",
            hint="for example +44 20 7946 0958",
            code="invalid_phone",
        ) from None
    possible = library.is_possible_number_with_reason(number)
    if possible in _LENGTHS:
        raise RejectedError(f"not a phone number: it is {_LENGTHS[possible]}", hint="for example +44 20 7946 0958", code="invalid_phone")
    is_assigned = library.is_valid_number(number)
    if is_national and not is_assigned:
        hint = "write the number with its country: +44 20 7946 0958"
        raise RejectedError(f"not a phone number of {region}", hint=hint, code="invalid_phone")
    return Phone(library.format_number(number, library.PhoneNumberFormat.E164), number.extension, is_assigned)


KEEPS_TEXT = types_with(Trait.KEEPS_BLANKS)

DOUBTFUL_STARTS = frozenset("#+-0123456789' \t\ufeff")

SPREADSHEET_ERRORS = frozenset({"#N/A", "#REF!", "#VALUE!", "#DIV/0!", "#NAME?", "#NULL!", "#NUM!", "#SPILL!", "#CALC!"})


@frozen
class ValueOptions:
    """How values are read. Options per column are keyed by header or slug, with "" for all other columns.

    `blank`: "skip" (the default) leaves out the attribute of a blank cell, "clear" sends null. A cell that equals one of `null_strings` or
    `clear_tokens` is blank; the latter send null in any column. `decimal_marks` are "comma" or "point", `date_formats` strptime directives.
    `default_region` is the country of phone numbers without one. `samples`, the `data` of existing records, show the form of composite
    values. `currency` applies to amounts without one, unless their record has one. `replacements` are texts and what replaces them.
    """

    blank: Mapping[str, str] = field(default_factory=dict)
    null_strings: tuple[str, ...] = ()
    clear_tokens: tuple[str, ...] = ()
    list_separator: str = ";"
    decimal_marks: Mapping[str, str] = field(default_factory=dict)
    date_formats: Mapping[str, str] = field(default_factory=dict)
    default_region: str | None = None
    samples: Sequence[Mapping[str, Any]] = ()
    currency: str | None = None
    replacements: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def replaced(self, header: str, slug: str) -> Mapping[str, str]:
        """Return the texts of a column that others replace."""
        return next((self.replacements[key] for key in (header, slug) if key in self.replacements), {})

    def rules_for(self, header: str, slug: str) -> TextRules:
        """Return the text rules of one column. Raises RejectedError for a date format that lacks day, month or year."""
        format = _for_column(self.date_formats, header, slug)  # noqa: A001
        comma = _for_column(self.decimal_marks, header, slug) == "comma"
        return TextRules(self.list_separator, comma, None if format is None else date_directives(format), self.default_region)

    def clears(self, header: str, slug: str) -> bool:
        """Whether a blank cell of a column clears the attribute."""
        return _for_column(self.blank, header, slug) == "clear"

    def check_columns(self, names: Collection[str]) -> None:
        """Raise UsageError if an option names a column that is not in `names`."""
        options: list[tuple[str, Mapping[str, Any]]] = [("--blank", self.blank), ("--decimal-mark", self.decimal_marks)]
        options += [("--date-format", self.date_formats), ("--value", self.replacements)]
        for option, columns in options:
            for column in columns.keys() - {"", *names}:
                raise UsageError(
                    f"{option}: the file has no column {column!r}",
                    hint=f"its columns are: {', '.join(dict.fromkeys(names))}",
                    code="unknown_column",
                )


def _for_column(said: Mapping[str, str], header: str, slug: str) -> str | None:
    return next((said[key] for key in (header, slug, "") if key in said), None)


def merger_of(attributes: Sequence[Attribute], options: ValueOptions) -> Merger:
    """Return the merger that builds whole values from parts."""
    forms = {attribute.slug: learn_form(attribute, options.samples) for attribute in attributes}
    return Merger({attribute.slug: attribute for attribute in attributes}, forms, options.currency)


def is_blank(value: Any, attribute: Attribute, options: ValueOptions) -> bool:
    """Whether a value is blank: null, "", a null string, or white space in a type that ignores it."""
    if value is None or value == "":
        return True
    if not isinstance(value, str):
        return False
    return value in options.null_strings or value in options.clear_tokens or (attribute.type not in KEEPS_TEXT and value.isspace())


def text_reader(attribute: Attribute, rules: TextRules, form: Form) -> Reader:
    """Return a function from the text of one value (or list element) to the wire value. The function raises RejectedError."""
    read_text = reader(attribute.with_changes(is_list=False), rules)
    if attribute.type == AttributeType.CURRENCY and form.keys:
        return lambda text: reshape_money(attribute, read_text(text), form)
    if attribute.type == AttributeType.PHONE_NUMBER:

        def read_number(text: str) -> Any:
            typed = read_phone(text)
            if not isinstance(typed, str) or rules.region == AS_TYPED:
                return typed
            phone = parse_phone(typed, rules.region)
            return compose_phone(attribute, phone.e164, phone.extension, form)

        return read_number
    return read_text


def value_reader(attribute: Attribute, rules: TextRules, form: Form) -> Callable[[Any], Any]:
    """Return a function from a JSON value, or the text of a list, to the wire value of `attribute`. The function raises RejectedError."""
    read_text = text_reader(attribute, rules, form)
    traits = type_of(attribute.type).traits

    def read(value: Any) -> Any:
        if isinstance(value, str):
            if not attribute.is_list:
                return value if Trait.KEEPS_BLANKS in traits else read_text(value)
            is_json, value = value.lstrip().startswith("["), split_list(value, rules.list_separator)
            if Trait.JSON_OBJECT in traits and not is_json:
                return list(map(read_text, value))
        if isinstance(value, list):
            if attribute.type == AttributeType.LIST and not attribute.is_list:
                check_numbers(value)
                return value
            if not attribute.is_list:
                if attribute.type == AttributeType.REFERENCE:
                    return read_text(jsontext.dumps(value))
                if Trait.JSON_OBJECT in traits:
                    check_numbers(value)
                    return value
                raise RejectedError("a list, but the attribute takes one value", code="wrong_type")
            return [_json_value(element, attribute, read_text) for element in value]
        element = _json_value(value, attribute, read_text)
        return [element] if attribute.is_list else element

    return read


def _json_value(value: Any, attribute: Attribute, read_text: Callable[[str], Any]) -> Any:
    """Return the wire value of one JSON value. Objects, which belong to composites, pass unchanged."""
    kind = attribute.type
    if isinstance(value, str):
        return value if kind == AttributeType.LIST or Trait.KEEPS_BLANKS in type_of(kind).traits else read_text(value)
    if isinstance(value, dict):
        if kind == AttributeType.REFERENCE:
            return read_text(jsontext.dumps(value))
        if Trait.JSON_OBJECT in type_of(kind).traits:
            check_numbers(value)
            return value
        raise RejectedError(f"an object, but the attribute takes a {kind}", code="wrong_type")
    if isinstance(value, bool):
        if Trait.JSON_TRUTH in type_of(kind).traits:
            return value
        raise RejectedError(f"true or false, but the attribute takes a {kind}", code="wrong_type")
    if isinstance(value, int | float | Decimal):
        if Trait.JSON_NUMBER in type_of(kind).traits:
            check_number(value)
            return value
        # keep the number as written in JSON; the type decides whether they are a date, an option or a yes
        return read_text(jsontext.spelling(value))
    if kind == AttributeType.LIST or value is None:
        check_numbers(value)
        return value
    raise RejectedError(f"a list inside a list, but the attribute takes a {kind}", code="wrong_type")


def finding_of(error: RejectedError) -> Finding:
    return Finding(error.code, error.message, hint=error.hint)


def doubt_about(text: str, _value: Any = None) -> Finding | None:
    """Return a warning about text that a spreadsheet or joined files have probably damaged. The text is sent unchanged."""
    if text[:1] not in DOUBTFUL_STARTS:
        return None
    if text[0] == "\ufeff":
        return Finding("stray_mark", "a byte order mark inside the file: were files joined?", severity=Severity.WARNING)
    if len(text) > 1 and text[0] == text[-1] == "'":
        return Finding("quoted_text", "apostrophes on both sides are part of the value", severity=Severity.WARNING)
    if without_guard(text) != text:
        message = "an export for spreadsheets may have put the apostrophe before the formula: --excel-safe removes it"
        return Finding("guarded_formula", message, severity=Severity.WARNING)
    if text[0] in ' \t"' and text.strip()[:1] == '"':
        return Finding("quoted_text", "a quote after a blank is part of the value", severity=Severity.WARNING)
    if text.startswith("#") and text in SPREADSHEET_ERRORS:
        return Finding("spreadsheet_error", "a spreadsheet's error value stands where text was expected", severity=Severity.WARNING)
    if is_spreadsheet_number(text):
        return Finding("spreadsheet_number", "a spreadsheet has probably turned a long number into this", severity=Severity.WARNING)
    return None


_GROUPED = re.compile(r"\s*[+-]?[0-9]{1,3}\.[0-9]{3}\s*")
_SLASHED = re.compile(r"\s*([0-9]{1,2})[./-]([0-9]{1,2})[./-][0-9]{2,4}\s*")


@dataclass
class NumberWatch:
    """Watches a column of numbers without a declared decimal mark: with `1,5` in the column, `1.234` may mean 1234."""

    grouped: str | None = None
    comma: str | None = None

    def is_news(self, text: str) -> bool:
        """Whether `see_good` would record a number."""
        return self.grouped is None and len(text) > 4 and _GROUPED.fullmatch(text) is not None

    def see_good(self, text: str, _value: Any) -> Finding | None:
        """Record a valid number. Return a fatal finding once both kinds have appeared."""
        if self.is_news(text):
            self.grouped = text
            return self._contradiction()
        return None

    def see_bad(self, text: str, code: str) -> Finding | None:
        """Record a rejected cell, like `see_good`."""
        if self.comma is None and code == "decimal_comma":
            self.comma = text
            return self._contradiction()
        return None

    def _contradiction(self) -> Finding | None:
        if self.comma is None or self.grouped is None:
            return None
        return Finding(
            "ambiguous_decimal",
            f"the column has {self.comma!r} and {self.grouped!r}: the point may group thousands",
            hint="--decimal-comma if the comma is the decimal mark; otherwise correct the cells with a comma",
            severity=Severity.FATAL,
        )


@dataclass
class CommaWatch:
    """Watches a column of lists split at semicolons: an item with a comma may be several."""

    is_told: bool = False

    def is_news(self, text: str) -> bool:
        return not self.is_told and "," in text and not text.lstrip().startswith("[")

    def see_good(self, text: str, _value: Any) -> Finding | None:
        """Return a warning about the first such cell."""
        if not self.is_news(text):
            return None
        self.is_told = True
        hint = "--list-separator , splits there; a semicolon separates items by default"
        return Finding("comma_in_item", "a comma is part of an item", hint=hint, severity=Severity.WARNING)


@dataclass
class DateWatch:
    """Watches a column of dates: counts the dates that stay valid with day and month swapped, and the dates that prove one order."""

    swappable: int = 0
    day_first: int = 0
    month_first: int = 0

    def see_good(self, _text: str, value: Any) -> None:
        """Record a date read in a declared format, given as ISO."""
        month, day = int(value[5:7]), int(value[8:10])
        self.swappable += day <= 12 and day != month

    def see_bad(self, text: str, _code: str) -> None:
        """Record a date rejected because no format is declared."""
        if match := _SLASHED.fullmatch(text):
            first, second = int(match[1]), int(match[2])
            self.day_first += first > 12 >= second
            self.month_first += second > 12 >= first
            self.swappable += first <= 12 and second <= 12 and first != second

    def to_document(self) -> Json:
        return {"swappable": self.swappable, "onlyDayFirst": self.day_first, "onlyMonthFirst": self.month_first}

    @property
    def tells(self) -> bool:
        """Whether the user should check the order of day and month."""
        return bool(self.swappable or self.day_first or self.month_first)
