"""JSON values as rows of CSV and TSV text: one rule for `-o csv` and for exported files. No I/O.

Quoting as in RFC 4180, lines end in a bare line feed as Unix tools expect. Missing and null values are empty cells, nested ones are JSON.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from crmctl.models import jsontext

_QUOTED = {"csv": re.compile(r'[",\r\n]|^\s|\s$'), "tsv": re.compile(r'["\t\r\n]|^\s|\s$')}
_DELIMITERS = {"csv": ",", "tsv": "\t"}
GUARD = "'"
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")
_PLAIN_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")


def delimited_row(values: Sequence[Any], format: str, *, excel_safe: bool = False) -> str:
    """One line of `csv` or `tsv`; `excel_safe` puts an apostrophe before what a spreadsheet would run."""
    cells = [_cell(value, format, excel_safe=excel_safe) for value in values]
    # One empty cell alone would read as a blank line.
    return (_DELIMITERS[format].join(cells) if cells != [""] else '""') + "\n"


def _cell(value: Any, format: str, *, excel_safe: bool) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else jsontext.dumps(value)
    if excel_safe and isinstance(value, str) and _needs_guard(text):
        text = GUARD + text
    return '"' + text.replace('"', '""') + '"' if _QUOTED[format].search(text) else text


def without_guard(text: str) -> str:
    """A cell as it was before `excel_safe`."""
    return text[1:] if text.startswith(GUARD) and _needs_guard(text[1:]) else text


def _needs_guard(text: str) -> bool:
    """Whether a spreadsheet would run a text. One that looks guarded already is guarded once more, so that the way back is exact."""
    bare = text.lstrip(GUARD)
    return bare.startswith(_FORMULA) and (bare != text or not _PLAIN_NUMBER.fullmatch(text))
