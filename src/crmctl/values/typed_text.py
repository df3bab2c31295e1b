"""Read text from people and files as wire values. `--set slug=value` and the cells of an import share these rules.

crmctl never guesses: it refuses an ambiguous text and says how to write it clearly.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import date
from functools import lru_cache
from typing import Any

from crmctl.errors import RejectedError
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.ids import did_you_mean, is_uuid, reference_id
from crmctl.models.jsontext import Json
from crmctl.models.numbers import check_numbers, read_number
from crmctl.values.folded_text import fold

TRUE_WORDS = frozenset({"true", "yes", "y", "t", "1", "on", "x"})
FALSE_WORDS = frozenset({"false", "no", "n", "f", "0", "off"})

_SPREADSHEET = re.compile(r"[+-]?[0-9](?:[.,][0-9]+)?[eE]\+?[0-9]+")
_MONEY = re.compile(r"(?P<before>[A-Z]{3})\s?(?P<amount>[^A-Za-z]+)|(?P<plain>[^A-Za-z]+?)\s?(?P<after>[A-Z]{3})")
_DATE = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})(?:[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.[0-9]+)?)?(?:[Zz]|[+-][0-9]{2}:?[0-9]{2})?)?"
)
PLAIN_EMAIL = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9][A-Za-z0-9-]*(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]+")
"""An address that is valid beyond doubt and needs no escape in JSON."""
PLAIN_DATE = r"(?!0000)[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
"""Dates with days that every month has."""
_EMAIL = re.compile(r"[^@\s,;<>\"]+@[^@\s,;<>\"]+")
_PHONE = re.compile(r"(?=(?:[^0-9]*[0-9]){2})[0-9A-Za-z+\-().,/#*:;= \u00a0\u2010-\u2015]+")
_DIRECTIVE = re.compile("%(.?)")
_DATE_DIRECTIVES = frozenset("aAbBdfHIjmMpSwyYzZ%")
_LETTER_FORMAT = {"yyyy": "%Y", "yy": "%y", "mm": "%m", "dd": "%d"}


@frozen
class TextRules:
    """The user's declarations about text: the list separator, the decimal mark, the date format (strptime directives), and the country
    of phone numbers, which only an import uses."""

    list_separator: str = ";"
    decimal_comma: bool = False
    date_format: str | None = None
    region: str | None = None


PLAIN = TextRules()
Reader = Callable[[str], Any]


@contextmanager
def naming(name: str, text: str | None = None) -> Iterator[None]:
    """Put a name in front of the message of a RejectedError, and the text that was read behind it."""
    try:
        yield
    except RejectedError as error:
        value = f" (value {text!r})" if text is not None else ""
        raise RejectedError(f"{name}: {error.message}{value}", hint=error.hint, code=error.code) from None


def split_list(text: str, separator: str) -> list[Any]:
    """Return the elements of a JSON array, or of a text split at the separator, without outer blanks and empty elements."""
    if text.lstrip().startswith("[") and isinstance(value := _json_inside(text), list):
        return value
    return [element for part in text.split(separator) if (element := part.strip())]


def read_currency(text: str, *, decimal_comma: bool = False) -> Any:
    """Read an amount as a number, an amount with an ISO code as `{amount, currency}`, and a JSON object or array unchanged."""
    if (value := _json_value(text)) is not None:
        return value
    stripped = text.strip()
    match = _MONEY.fullmatch(stripped) if stripped[:1].isalpha() or stripped[-1:].isalpha() else None
    if match is None:
        return read_number(text, decimal_comma=decimal_comma)
    amount = read_number(match["amount"] or match["plain"], decimal_comma=decimal_comma)
    return {"amount": amount, "currency": match["before"] or match["after"]}


def read_date(text: str, format: str | None = None) -> str:
    """Read an ISO date or timestamp, or a date in the declared format. Time zones never change it."""
    if format is None and len(text) == 10 and text[4] == text[7] == "-":
        try:
            date.fromisoformat(text)
            return text
        except ValueError:
            pass  # _iso_date gives the reason
    return _iso_date(text.strip()) if format is None else _declared_date(text.strip(), format)


@lru_cache(maxsize=4096)
def _iso_date(text: str) -> str:
    match = _DATE.fullmatch(text)
    if match is None:
        hint = "write 2026-01-31; an import reads others by --date-format: %d/%m/%Y (day first), %m/%d/%Y (month first)"
        raise RejectedError("not an ISO date", hint=hint, code="invalid_date")
    _check_day(*map(int, match.group(1, 2, 3)))
    hour, minute, second = match.group(4, 5, 6)
    if hour is not None and (int(hour) > 23 or int(minute) > 59 or int(second or 0) > 60):
        raise RejectedError("no such time of day", code="invalid_date")
    return text


@lru_cache(maxsize=4096)
def _declared_date(text: str, format: str) -> str:
    try:
        parsed = time.strptime(text, format)
    except ValueError:
        raise RejectedError(f"not a date of the form {format}", code="invalid_date") from None
    return _check_day(parsed.tm_year, parsed.tm_mon, parsed.tm_mday)


def _check_day(year: int, month: int, day: int) -> str:
    try:
        return date(year, month, day).isoformat()
    except ValueError:
        raise RejectedError("no such day in the calendar", code="invalid_date") from None


def date_directives(format: str) -> str:
    """Return a declared date format as strptime directives; `DD/MM/YYYY` becomes `%d/%m/%Y`.

    Raises RejectedError for a format without day, month and year, and for one with an unknown or repeated directive.
    """
    directives = format if "%" in format else re.sub(r"yyyy|yy|mm|dd", lambda match: _LETTER_FORMAT[match[0]], format.lower())
    directives = directives.replace("%e", "%d")
    letters = [letter for letter in _DIRECTIVE.findall(directives) if letter != "%"]
    strange = next((letter for letter in letters if letter not in _DATE_DIRECTIVES or letters.count(letter) > 1), None)
    problem = None
    if not all(group & {*letters} for group in ({"d"}, {"m", "b", "B"}, {"Y", "y"})):
        problem = "does not hold day, month and year"
    elif strange is not None:
        problem = f"repeats %{strange}" if strange in _DATE_DIRECTIVES else f"has the unknown directive %{strange}"
    if problem:
        raise RejectedError(f"the date format {format} {problem}", hint="for example %d/%m/%Y", code="invalid_date_format")
    return directives


def read_checkbox(text: str) -> bool:
    word = text.strip().lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise RejectedError("not a yes or no", hint="true, false, yes, no, y, n, 1, 0, on or off", code="invalid_checkbox")


def read_email(text: str) -> str:
    if PLAIN_EMAIL.fullmatch(text):
        return text
    address = text.strip()
    domain = address.rpartition("@")[2]
    well_formed = address.isprintable() and _EMAIL.fullmatch(address)
    if not well_formed or domain.startswith((".", "-")) or domain.endswith((".", "-", "'")) or ".." in domain:
        raise RejectedError("not an email address", hint="for example ada@example.com", code="invalid_email")
    return address


def read_phone(text: str) -> Any:
    """Read a phone number, or a JSON object or array, unchanged. Raises RejectedError for 1.23E+11, a number cut by a spreadsheet."""
    if (value := _json_value(text)) is not None:
        return value
    stripped = text.strip()
    if is_spreadsheet_number(stripped):
        raise lost_digits()
    if not _PHONE.fullmatch(stripped):
        raise RejectedError("not a phone number", hint="for example +44 20 7946 0958", code="invalid_phone")
    return stripped


def lost_digits() -> RejectedError:
    return RejectedError(
        "a spreadsheet has turned this number into its scientific form",
        hint="format the column as text and export again",
        code="spreadsheet_number",
    )


def read_reference(slug: str, text: str) -> Any:
    """Read an id, or JSON as services show references: an object with the id, which becomes the id, or a list of one."""
    stripped = text.strip()
    value = _json_inside(stripped) if stripped.startswith(("{", "[")) else stripped
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    record_id = reference_id(value)
    if isinstance(record_id, str) and is_uuid(record_id):
        return record_id
    if isinstance(value, dict):
        return value
    raise RejectedError(
        "not a record id",
        hint=f"a reference takes a record's id; --set {slug}.KEY=VALUE looks one up, and --ref {slug}=OBJECT.KEY for a whole file",
        code="invalid_reference",
    )


def read_composite(text: str) -> Any:
    """Read a JSON object or array, a text in the form of `composite_text`, or any other text as it is."""
    if not text.lstrip().startswith(("{", "[", '"')):
        return text
    value = _json_inside(text)
    is_text = isinstance(value, str) and composite_text(value) != value
    return value if is_text or isinstance(value, dict | list) else text


def composite_text(text: str) -> str:
    """Return a text so that `read_composite` gives it back: one that looks like a JSON object or array becomes a JSON string."""
    with suppress(RejectedError):
        if read_composite(text) == text:
            return text
    return jsontext.dumps(text)


def select_reader(options: list[str]) -> Reader:
    """Return a reader for a select. Options match exactly, or without case if only one does; the value has the service's spelling."""
    exact = {option: option for option in options}
    folded: dict[str, list[str]] = {}
    for option in exact:
        folded.setdefault(fold(option.strip()), []).append(option)

    def read(text: str) -> str:
        if text in exact or not exact:
            return text
        matches = folded.get(fold(text.strip()), [])
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise RejectedError(
                f"fits several options without case: {', '.join(matches)}", hint="spell the option exactly", code="unknown_option"
            )
        listed = f"options: {', '.join(options[:20])}{', ...' if len(options) > 20 else ''}"
        hint = did_you_mean(text, options) or listed
        raise RejectedError("not an option", hint=hint, code="unknown_option")

    return read


def is_spreadsheet_number(text: str) -> bool:
    """Whether a text looks like a long number that a spreadsheet shortened (1.23E+11)."""
    return ("E" in text or "e" in text) and _SPREADSHEET.fullmatch(text) is not None


def _json_value(text: str) -> Json | list[Any] | None:
    """Return the JSON object or array of a text; None if it is none."""
    value = _json_inside(text) if text.lstrip().startswith(("{", "[")) else None
    return value if isinstance(value, dict | list) else None


def _json_inside(text: str) -> Any:
    """Return the JSON value of a text; None if it is no JSON. Raises RejectedError for repeated keys and numbers that cannot be sent."""
    try:
        value = jsontext.loads(text)
    except ValueError:
        return None
    try:
        jsontext.loads(text, unique_keys=True)
    except ValueError as error:
        raise RejectedError(str(error), hint="keep one of them", code="duplicate_key") from None
    check_numbers(value)
    return value
