"""JSON text to values and back without losing a digit: the one place that reads or writes JSON for the wire, for files and for output.

Numbers that a float would change (more than 17 digits, out of range) become Decimal on reading and are written back digit for digit.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any

from crmctl.models.numbers import plain_decimal

Json = dict[str, Any]
"""A JSON object."""

TYPE_NAMES = {
    **{"str": "string", "dict": "object", "list": "array", "bool": "boolean", "NoneType": "null"},
    **dict.fromkeys(("int", "float", "Decimal"), "number"),
}
"""Names of JSON's types by those of Python's."""

# A Decimal leaves the encoder as a string with this marker and is unquoted afterwards; random, so that no data can hold it.
_MARK = f"decimal-{secrets.token_hex(8)}:"
_HALF = re.compile("[\ud800-\udfff]")
_MARKED = re.compile(f'"{_MARK}([^"]*)"')


class NotJsonError(ValueError):
    """A text that is no JSON for a reason other than its syntax. The message names it."""


class TooDeepError(NotJsonError):
    """A value of more levels than allowed."""

    def __init__(self) -> None:
        super().__init__("arrays or objects are nested too deeply")


class SpelledFloat(float):
    """A number as a file spells it, in `text`: 1.10, 1e3. Otherwise it is the float."""

    __slots__ = ("text",)
    text: str


def _exact_number(text: str) -> float | Decimal:
    number = float(text)
    if math.isfinite(number) and Decimal(repr(number)) == Decimal(text):
        return number
    return Decimal(text)


def _spelled_number(text: str) -> float | Decimal:
    number = _exact_number(text)
    if isinstance(number, Decimal) or repr(number) == text:
        return number
    spelled = SpelledFloat(number)
    spelled.text = text
    return spelled


def _refuse_constant(text: str) -> Any:
    raise NotJsonError(f"{text} is not JSON")


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        repeated = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise NotJsonError(f"the key {repeated!r} is there twice")
    return document


DEEPEST = 200
"""Most levels of arrays and objects. Deeper values would end functions that walk through them in a RecursionError."""


def loads(text: str | bytes | bytearray, *, unique_keys: bool = False, spelled: bool = False, deepest: int = DEEPEST) -> Any:
    """Parse JSON; raises ValueError (json.JSONDecodeError) for anything that is not JSON: NaN and Infinity, numbers and nesting beyond
    all reason included.

    With `unique_keys`, an object that names a key twice is refused as well; with `spelled` too, and floats keep their spelling.
    """
    try:
        # json.loads would make a decoder for every call.
        decoded = text if isinstance(text, str) else text.decode(json.detect_encoding(text), "surrogatepass")
        value = (_SPELLED if spelled else _UNIQUE if unique_keys else _PLAIN).decode(decoded)
    except (RecursionError, ArithmeticError, ValueError) as error:
        raise _in_our_words(error) from None
    _check_depth(value, decoded, 0, len(decoded), deepest)
    return value


def scan(text: str, start: int = 0, *, spelled: bool = False) -> tuple[Any, int]:
    """Parse the one JSON value that begins exactly at `start`; gives it and the position after it. Raises as `loads` does."""
    try:
        value, end = (_SPELLED if spelled else _PLAIN).raw_decode(text, start)
    except (RecursionError, ArithmeticError, ValueError) as error:
        raise _in_our_words(error) from None
    _check_depth(value, text, start, end, DEEPEST)
    return value, end


def _check_depth(value: Any, text: str, start: int, end: int, deepest: int) -> None:
    """Raise TooDeepError for a value of more than `deepest` levels. Most values are known to be shallow without a walk through them."""
    if end - start <= 2 * deepest:
        return
    brackets = text[start:end].encode("utf-8", "surrogatepass").translate(None, _OTHER_BYTES)
    for _ in range(deepest // 2):  # each round removes one or two levels; brackets inside strings may remain
        brackets = brackets.replace(b"{}", b"").replace(b"[]", b"")
        if not brackets:
            return
    level = [value]
    for _ in range(deepest):
        below = (item for parent in level for item in (parent.values() if type(parent) is dict else parent))
        level = [item for item in below if type(item) is dict or type(item) is list]
        if not level:
            return
    raise TooDeepError


_OTHER_BYTES = bytes({*range(256)} - {*b"[]{}"})


def _in_our_words(error: Exception) -> Exception:
    if isinstance(error, RecursionError):
        return TooDeepError()
    if isinstance(error, ArithmeticError) or type(error) is ValueError:  # of integers with thousands of digits
        return NotJsonError("a number is beyond all reason")
    return error


_PLAIN = json.JSONDecoder(parse_float=_exact_number, parse_constant=_refuse_constant)
_UNIQUE = json.JSONDecoder(parse_float=_exact_number, parse_constant=_refuse_constant, object_pairs_hook=_unique_pairs)
_SPELLED = json.JSONDecoder(parse_float=_spelled_number, parse_constant=_refuse_constant, object_pairs_hook=_unique_pairs)


_DOUBLE_DIGITS = 308
"""Numbers beyond the range of a double keep their spelling."""


def _encode(value: Any) -> Any:
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise ValueError(f"{value} is not JSON")
        return f"{_MARK}{value if value.adjusted() > _DOUBLE_DIGITS else plain_decimal(value)}"
    raise TypeError(f"{type(value).__name__} is not JSON")


@lru_cache
def _encoder(indent: int | None, sort_keys: bool) -> Callable[[Any], str]:
    """Making an encoder takes longer than encoding one record with it, so the compiled one that `json` makes for every call is kept."""
    separators = (",", ": ") if indent is not None else (",", ":")
    compiled = getattr(json.encoder, "c_make_encoder", None)
    if indent is not None or compiled is None:
        return json.JSONEncoder(
            ensure_ascii=False, allow_nan=False, indent=indent, sort_keys=sort_keys, separators=separators, default=_encode
        ).encode
    pieces = compiled(None, _encode, json.encoder.encode_basestring, None, ":", ",", sort_keys, False, False)
    return lambda value: "".join(pieces(value, 0))


quote: Callable[[str], str] = json.encoder.encode_basestring
"""Write one string as JSON, faster than `dumps`."""


def dumps(value: Any, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """Write JSON with Unicode as it is; compact without `indent`. Half of a surrogate pair is escaped: no file and no database holds it."""
    text = _encoder(indent, sort_keys)(value)
    if not text.isascii() and _HALF.search(text):
        text = _HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", text)
    return _MARKED.sub(r"\1", text) if _MARK in text else text


def spelling(value: Any) -> str:
    """Return the text of a number as its file spells it, and any other value as JSON."""
    return value.text if isinstance(value, SpelledFloat) else dumps(value)


def holds_half(value: Any) -> bool:
    """Whether a value contains half of a surrogate pair, which is no text."""
    return _HALF.search(_encoder(None, False)(value)) is not None
