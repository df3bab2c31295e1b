"""Values of options that cannot be read: what the library that reads them says, in our words."""

from __future__ import annotations

import re

_EXPECTED = (
    ("a valid integer", "a whole number is expected"),
    ("a valid number", "a number is expected"),
    ("a valid boolean", "true or false is expected"),
    ("less than or equal to ", "at most {} is expected"),
    ("greater than or equal to ", "at least {} is expected"),
    ("less than ", "less than {} is expected"),
    ("greater than ", "more than {} is expected"),
)


def expected(message: str) -> str:
    """What a value should have been."""
    _, found, rest = message.partition("Input should be ")
    if "exceeded maximum size" in message:
        return "a number of fewer digits is expected"
    if not found:
        return message.rstrip(".")
    for start, words in _EXPECTED:
        if rest.startswith(start):
            return words.format(rest.removeprefix(start))
    return f"{rest} is expected"


_PLAIN_PROBLEMS = (
    (r"Input should be a valid integer.*", "a whole number is wanted"),
    (r"Input should be a valid number.*", "a number is wanted"),
    (r"Input should be (?:a )?(.*)", r"it should be \1"),
)
"""What a library says of a value, and what people understand."""


def in_our_words(message: str) -> str:
    """A whole message."""
    message = message.rstrip(".")
    for theirs, ours in _PLAIN_PROBLEMS:
        message = re.sub(theirs, ours, message)
    return message[:1].lower() + message[1:]
