"""Phone numbers: what a person typed becomes E.164 by the numbering plans of the phonenumbers library. Pure; knows no rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from crmctl.bulk.findings import Finding, Severity
from crmctl.errors import RejectedError, UsageError
from crmctl.models.attributes import Attribute
from crmctl.models.composites import Form, compose_phone
from crmctl.models.typed_text import read_phone

AS_TYPED = "none"
"""The region of those who want numbers sent as they are."""

_REGION_HINT = "--default-region GB (or another country) reads it as a number of there, --default-region none sends numbers as they are"
_LENGTHS = {2: "too short", 3: "too long", 5: "of a length that its country does not have"}
"""Words for the library's ValidationResult."""


class Phone(NamedTuple):
    """A number as E.164; `is_assigned` where its country's plan has such numbers."""

    e164: str
    extension: str | None
    is_assigned: bool


def check_region(region: str | None) -> str | None:
    """A region as it was declared, in capitals. Raises UsageError for one that is none."""
    if region is None or region.lower() == AS_TYPED:
        return region and AS_TYPED
    from phonenumbers import SUPPORTED_REGIONS

    if region.upper() not in SUPPORTED_REGIONS:
        hint = "the two letters of a country, for example --default-region GB"
        raise UsageError(f"there is no region {region!r}", hint=hint, code="no_such_region")
    return region.upper()


def phone_reader(attribute: Attribute, region: str | None, form: Form) -> Callable[[str], Any]:
    """A function from text to the wire value of a phone number, in the form of existing records; it raises RejectedError.

    A number with a country code needs no `region`. One that is completed by the region has to be assigned; one written in full only has to
    be possible, because plans change. A JSON object goes through as it is.
    """

    def read(text: str) -> Any:
        typed = read_phone(text)
        if not isinstance(typed, str) or region == AS_TYPED:
            return typed
        phone = parse_phone(typed, region)
        return compose_phone(attribute, phone.e164, phone.extension, form)

    return read


def phone_doubt(region: str | None) -> Callable[..., Finding | None]:
    """A function that warns of a number that can be read but that nobody seems to have."""

    def doubt(text: str, _value: Any = None) -> Finding | None:
        if region == AS_TYPED or text.lstrip().startswith("{") or parse_phone(text.strip(), region).is_assigned:
            return None
        message = "no number of this country looks like this; it is sent all the same"
        return Finding("unassigned_phone", message, severity=Severity.WARNING)

    return doubt


@lru_cache(maxsize=4096)
def parse_phone(text: str, region: str | None) -> Phone:
    """Raises RejectedError for a text that is no number, and for a national number without a region."""
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
        raise RejectedError(f"not a phone number: {_reason(error)}", hint="for example +44 20 7946 0958", code="invalid_phone") from None
    possible = library.is_possible_number_with_reason(number)
    if possible in _LENGTHS:
        raise RejectedError(f"not a phone number: it is {_LENGTHS[possible]}", hint="for example +44 20 7946 0958", code="invalid_phone")
    is_assigned = library.is_valid_number(number)
    if is_national and not is_assigned:
        hint = "write the number with its country: +44 20 7946 0958"
        raise RejectedError(f"not a phone number of {region}", hint=hint, code="invalid_phone")
    return Phone(library.format_number(number, library.PhoneNumberFormat.E164), number.extension, is_assigned)


def _reason(error: Any) -> str:
    """The library's reason in our words."""
    words = {
        error.INVALID_COUNTRY_CODE: "no country has this code",
        error.NOT_A_NUMBER: "it cannot be read as one",
        error.TOO_SHORT_AFTER_IDD: "it ends after the prefix for calls abroad",
        error.TOO_SHORT_NSN: "it is too short",
        error.TOO_LONG: "it is too long",
    }
    return words.get(error.error_type, "it cannot be read as one")
