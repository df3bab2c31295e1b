"""Text in lines that break at words, counted in terminal cells. A word that is wider than a line stays whole: ids, addresses, commands."""

from __future__ import annotations

from crmctl.output.columns import cell_width

NARROWEST = 20
"""In less room nothing is broken: the terminal does it as well."""


def wrapped(text: str, width: int | None) -> list[str]:
    """The lines of one line of text; blanks inside stay as they are, and what is indented stays so."""
    if width is None or width < NARROWEST or cell_width(text) <= width:
        return [text]
    if indent := text[: len(text) - len(text.lstrip(" "))]:
        first, *others = wrapped(text.lstrip(" "), width - 2 * len(indent))
        return [indent + first, *(2 * indent + line for line in others)]
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if line and cell_width(longer) > width:
            lines.append(line)
            line = word
        else:
            line = longer
    return [*lines, line]
