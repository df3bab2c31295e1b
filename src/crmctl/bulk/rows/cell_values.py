"""One cell or JSON value plus an attribute, to the wire value or a finding. Builds on the shared typing of text; knows no rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from crmctl.bulk.findings import Finding, Severity
from crmctl.bulk.rows.phones import phone_reader
from crmctl.errors import RejectedError, UsageError
from crmctl.models import jsontext
from crmctl.models.attribute_types import Trait, takes_json, types_with
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.composites import Form, Merger, learn_form, reshape_money
from crmctl.models.numbers import check_number, check_numbers
from crmctl.models.typed_text import Reader, TextRules, date_directives, is_spreadsheet_number, reader, split_list

KEEPS_TEXT = types_with(Trait.KEEPS_BLANKS)

DOUBTFUL_STARTS = frozenset("#+-0123456789' \t\ufeff")

SPREADSHEET_ERRORS = frozenset({"#N/A", "#REF!", "#VALUE!", "#DIV/0!", "#NAME?", "#NULL!", "#NUM!", "#SPILL!", "#CALC!"})


@dataclass(frozen=True)
class ValueOptions:
    """How values are read. What may differ from column to column is by its header or slug, under "" for the columns not named.

    `blank`: "skip" leaves a blank cell's attribute out (also where nothing is said), "clear" sends null. `null_strings` count as blank when
    they are the whole cell, and so do `clear_tokens`, which send null in any column. `decimal_marks` are "comma" or "point", and
    `date_formats` strptime directives. `default_region` is the country of phone numbers without one. `samples` are the `data` of some
    existing records, whose form composite values follow. `currency` is that of amounts without one, where their record has none.
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

    def rules_for(self, header: str, slug: str) -> TextRules:
        """The text rules of one column. Raises RejectedError for a date format without day, month and year."""
        format = _for_column(self.date_formats, header, slug)  # noqa: A001
        comma = _for_column(self.decimal_marks, header, slug) == "comma"
        return TextRules(self.list_separator, comma, None if format is None else date_directives(format), self.default_region)

    def clears(self, header: str, slug: str) -> bool:
        """Whether a blank cell of a column empties the attribute."""
        return _for_column(self.blank, header, slug) == "clear"

    def check_columns(self, names: Collection[str]) -> None:
        """Raise UsageError where something is said of a column that is none of `names`."""
        for option, said in (("--blank", self.blank), ("--decimal-mark", self.decimal_marks), ("--date-format", self.date_formats)):
            for column in said.keys() - {"", *names}:
                raise UsageError(
                    f"{option}: the file has no column {column!r}",
                    hint=f"its columns are: {', '.join(dict.fromkeys(names))}",
                    code="unknown_column",
                )


def _for_column(said: Mapping[str, str], header: str, slug: str) -> str | None:
    return next((said[key] for key in (header, slug, "") if key in said), None)


def merger_of(attributes: Sequence[Attribute], options: ValueOptions) -> Merger:
    """How parts of values become whole ones."""
    forms = {attribute.slug: learn_form(attribute, options.samples) for attribute in attributes}
    return Merger({attribute.slug: attribute for attribute in attributes}, forms, options.currency)


def convert(value: Any, attribute: Attribute, options: ValueOptions, *, header: str | None = None) -> Any:
    """The wire value of one cell (text) or JSON value: None for a blank one. Returns a Finding where the value does not fit."""
    column = header if header is not None else attribute.slug
    if is_blank(value, attribute, options):
        return None
    try:
        return value_reader(attribute, options.rules_for(column, attribute.slug), learn_form(attribute, options.samples))(value)
    except RejectedError as error:
        return finding_of(error).on(column, value)


def is_blank(value: Any, attribute: Attribute, options: ValueOptions) -> bool:
    """Whether a value counts as no value: null, the empty string, a declared null string, white space where the type has no use for it."""
    if value is None or value == "":
        return True
    if not isinstance(value, str):
        return False
    return value in options.null_strings or value in options.clear_tokens or (attribute.type not in KEEPS_TEXT and value.isspace())


def text_reader(attribute: Attribute, rules: TextRules, form: Form) -> Reader:
    """A function from the text of one value (one element, for a list of values) to the wire value; it raises RejectedError."""
    read_text = reader(attribute.model_copy(update={"is_list": False}), rules)
    if attribute.type == AttributeType.CURRENCY and form.keys:
        return lambda text: reshape_money(attribute, read_text(text), form)
    if attribute.type == AttributeType.PHONE_NUMBER:
        return phone_reader(attribute, rules.region, form)
    return read_text


def value_reader(attribute: Attribute, rules: TextRules, form: Form) -> Callable[[Any], Any]:
    """A function from a cell's text, or any JSON value, to the wire value of `attribute`; it raises RejectedError."""
    read_text = text_reader(attribute, rules, form)

    def read(value: Any) -> Any:
        if isinstance(value, str):
            if not attribute.is_list:
                return read_text(value)
            value = split_list(value, rules.list_separator)
        if isinstance(value, list):
            if attribute.type == AttributeType.LIST and not attribute.is_list:
                check_numbers(value)
                return value
            if not attribute.is_list:
                raise RejectedError("a list, but the attribute takes one value", code="wrong_type")
            return [_json_value(element, attribute, read_text) for element in value]
        element = _json_value(value, attribute, read_text)
        return [element] if attribute.is_list else element

    return read


def _json_value(value: Any, attribute: Attribute, read_text: Callable[[str], Any]) -> Any:
    """One JSON value that is no list (where the type is list itself, it may be). Objects belong to composites and go through unchanged."""
    kind = attribute.type
    if isinstance(value, str):
        return value if kind == AttributeType.LIST else read_text(value)
    if isinstance(value, dict):
        if takes_json(kind, Trait.JSON_OBJECT):
            check_numbers(value)
            return value
        raise RejectedError(f"an object, but the attribute takes a {kind}", code="wrong_type")
    if isinstance(value, bool):
        if takes_json(kind, Trait.JSON_TRUTH):
            return value
        raise RejectedError(f"true or false, but the attribute takes a {kind}", code="wrong_type")
    if isinstance(value, int | float | Decimal):
        if takes_json(kind, Trait.JSON_NUMBER):
            check_number(value)
            return value
        # The digits are kept as JSON spelled them; whether they make a date, an option or a yes is for the type to say.
        return read_text(jsontext.dumps(value))
    if kind == AttributeType.LIST or value is None:
        check_numbers(value)
        return value
    raise RejectedError(f"a list inside a list, but the attribute takes a {kind}", code="wrong_type")


def finding_of(error: RejectedError) -> Finding:
    return Finding(error.code, error.message, hint=error.hint)


def doubt_about(text: str, _value: Any = None) -> Finding | None:
    """A warning about a text that a spreadsheet, or the way the file was put together, has probably spoilt; the text is kept."""
    if text[:1] not in DOUBTFUL_STARTS:
        return None
    if text[0] == "\ufeff":
        return Finding("stray_mark", "a byte order mark inside the file: were files joined?", severity=Severity.WARNING)
    if len(text) > 1 and text[0] == text[-1] == "'":
        return Finding("quoted_text", 'apostrophes on both sides; --quote "\'" if they quote the cell', severity=Severity.WARNING)
    if text[0] in ' \t"' and text.strip()[:1] == '"':
        return Finding("quoted_text", "a quote after a blank is part of the value", severity=Severity.WARNING)
    if text.startswith("#") and text in SPREADSHEET_ERRORS:
        return Finding("spreadsheet_error", "a spreadsheet's error value stands where text was expected", severity=Severity.WARNING)
    if is_spreadsheet_number(text):
        return Finding("spreadsheet_number", "a spreadsheet has probably turned a long number into this", severity=Severity.WARNING)
    return None
