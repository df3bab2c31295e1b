"""Text from the service made harmless for a terminal: no control, escape or direction characters. Machine formats never use this."""

from __future__ import annotations

import re

# CSI sequences, OSC and other strings up to their end, two-character escapes.
_ESCAPES = r"(?s)\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\x9c|$)|\x1b.|\x9b[0-?]*[ -/]*[@-~]"
_JOINERS = "\u200c\u200d"  # Persian and emoji need them


def clean(text: str) -> str:
    """One line of printable text; line breaks and odd spaces become blanks, lone surrogates the replacement character."""
    return text if text.isprintable() else "".join(_shown(character) for character in re.sub(_ESCAPES, "", text))


def clean_lines(text: str) -> list[str]:
    """The lines of a text, each clean."""
    return [clean(line) for line in text.splitlines()] or [""]


def _shown(character: str) -> str:
    if character.isprintable() or character in _JOINERS:
        return character
    if character.isspace():
        return " "
    import unicodedata  # only text that is not printable pays for it

    return {"Cs": "�", "Co": character, "Cn": character}.get(unicodedata.category(character), "")
