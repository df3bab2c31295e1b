"""Request bodies: bytes to checked JSON, and JSON to the shape an endpoint documents. What the values mean is the store's business."""

from __future__ import annotations

import re
from typing import Any

from crmctl.errors import reason
from crmctl.models import jsontext
from crmctl.service.http.errors import bad_request
from crmctl.service.shapes import Body, check_shape

_QUOTE = ord('"')

DEEPEST = 64
"""Levels of nesting a body may have: enough for any data, far from where parsers give up."""


MOST_VALUES = 200_000
"""Values a body may hold: a hundred records of all attributes an object can have, several times. Each takes many bytes of memory."""

_TOKENS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{,]', re.DOTALL)

_SPACED = re.compile(rb"[ \t\r\n]:")
"""Blanks before a colon, which hardly anybody writes."""


def parse_json(raw: bytes) -> Any:
    """The body as JSON values.

    Raises a 400 for anything that is not UTF-8 JSON (NaN, duplicate keys, numbers beyond reason, absurd nesting), and for too many values.
    """
    if _has_too_many_values(raw):
        raise bad_request(f"the request body holds more than {MOST_VALUES:,} values")
    try:
        text = raw.decode("utf-8")
        document = jsontext.loads(text)
        # Each member that was written has a colon after its name: where there are as many members, none was written twice.
        if raw.count(b'":') != _count_members(document) or _SPACED.search(raw):
            document = jsontext.loads(text, unique_keys=True)
    except RecursionError:
        raise bad_request(f"the request body is nested deeper than {DEEPEST} levels") from None
    except ValueError as error:
        raise bad_request(f"the request body is not JSON: {reason(error)}") from None
    return document


def _has_too_many_values(raw: bytes) -> bool:
    """Told before any of them takes memory. Every value but the first follows a sign; most bodies have few, those in texts included."""
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") <= MOST_VALUES:
        return False
    signs = texts = 0
    for token in _TOKENS.finditer(raw):
        if raw[token.start()] == _QUOTE:
            texts += 1
        else:
            signs += 1
        # Two texts (a key and its value) for every sign, where it is JSON.
        if signs > MOST_VALUES or texts > 2 * MOST_VALUES + 2:
            return True
    return False


def _count_members(document: Any) -> int:
    """Of all objects in it. Raises RecursionError where it is nested deeper than DEEPEST."""
    members, level = 0, [document]
    for _ in range(DEEPEST):
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                members += len(each)
                below += each.values()
            elif isinstance(each, list):
                below += each
        # Not one by one: most values hold nothing.
        level = [each for each in below if type(each) is dict or type(each) is list]
        if not level:
            return members
    raise RecursionError


def read_shape(model: type[Body], raw: bytes, *, optional: bool = False) -> dict[str, Any]:
    """The fields that were sent, checked against `model`. Raises a 400 that names the first field at fault."""
    if optional and not raw.strip():
        return {}
    document = parse_json(raw)
    if not isinstance(document, dict):
        raise bad_request("the request body must be a JSON object")
    check_shape(model, document)
    return document
