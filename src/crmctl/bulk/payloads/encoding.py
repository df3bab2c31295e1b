"""The cells of a row straight to the JSON text of its data: columns repeat themselves, so each remembers what its texts become.

What a cell means is `building`'s to say, and so is every row that there is something to say about. This gives the same, or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import getitem
from typing import Any

from crmctl.bulk.payloads.building import MEMO_CELLS, MEMO_LENGTH, Cell, RowBuilder
from crmctl.bulk.payloads.values import DOUBTFUL_STARTS
from crmctl.errors import RejectedError
from crmctl.models import jsontext
from crmctl.models.attributes import AttributeType
from crmctl.models.typed_text import PLAIN_DATE, PLAIN_EMAIL, read_email

NOTHING: tuple[Any, ...] = (None, "", [], {})
"""Values that count as missing where one is required."""


class _Remarkable(Exception):
    """There is something to say about a text, or may be."""


def _same_on_the_wire(cell: Cell) -> Callable[[str], object]:
    """Tells of a text of a column that it is its own value, with nothing in it that JSON escapes and nothing to say about it.

    Not of all such texts: of those that nearly all are.
    """
    if cell.read_text is str:
        return _UNDOUBTED.fullmatch
    if cell.read_text is read_email:
        return PLAIN_EMAIL.fullmatch
    if cell.attribute.type == AttributeType.DATE and not cell.attribute.is_list and cell.after_good is None:
        return PLAIN_DATE.fullmatch
    return lambda _: None


_UNDOUBTED = re.compile(rf"""(?![{re.escape("".join(DOUBTFUL_STARTS))}])[^"\\\x00-\x1f]+""")


class _Column(dict[str, str]):
    """The member of the data that each text of a column becomes, `,"slug":value`; nothing for a blank one."""

    __slots__ = ("_is_odd", "_is_required", "_is_same", "_member", "_read", "_refused")

    def __init__(self, cell: Cell, blanks: frozenset[str], *, is_required: bool) -> None:
        super().__init__({} if is_required else dict.fromkeys(blanks, ""))
        self._refused = blanks if is_required else frozenset()
        self._is_same = _same_on_the_wire(cell)
        self._read = cell.read_text
        self._is_odd = cell.is_odd
        self._is_required = is_required
        self._member = f",{jsontext.dumps(cell.slug)}:"

    def __missing__(self, text: str) -> str:
        if text in self._refused:
            raise _Remarkable
        if self._is_same(text):
            member = f'{self._member}"{text}"'
        else:
            value = self._read(text)
            if (self._is_odd is not None and self._is_odd(text)) or (self._is_required and value in NOTHING):
                raise _Remarkable
            member = self._member + (jsontext.quote(value) if type(value) is str else jsontext.dumps(value))
        if len(text) <= MEMO_LENGTH and len(self) < MEMO_CELLS:
            self[text] = member
        return member


class _Ignored(dict[str, str]):
    """A column that fills nothing."""

    def __missing__(self, text: str) -> str:
        return ""


class RowEncoder:
    """Encodes the rows of one file of cells."""

    def __init__(self, builder: RowBuilder, width: int) -> None:
        """`width` is the number of columns. Call it for a builder that `can_encode` only."""
        required = {attribute.slug for attribute in builder.required}
        self._columns: list[dict[str, str]] = [_Ignored() for _ in range(width)]
        for cell in builder.cells:
            self._columns[cell.place] = _Column(cell, builder.blanks, is_required=cell.slug in required)
        self._places = {cell.slug: (cell.place, cell.read_text) for cell in builder.cells}
        self._constants = builder.constants
        self._head = jsontext.dumps(builder.constants)[:-1]
        self._skipped = 0 if builder.constants else 1

    def encode(self, cells: list[str]) -> bytes | None:
        """The data of a row as JSON, the same as the builder's; None for a row that the builder has to look at."""
        try:
            members = "".join(map(getitem, self._columns, cells))
        except (_Remarkable, RejectedError, ValueError):
            return None
        return f"{self._head}{members[self._skipped :]}}}".encode() if members else None

    def values(self, cells: list[str], slugs: Sequence[str]) -> dict[str, Any]:
        """Some of the values of a row that was encoded."""
        found = {slug: self._constants[slug] for slug in slugs if slug in self._constants}
        for slug in slugs:
            if slug in self._places:
                place, read = self._places[slug]
                if self._columns[place][cells[place]]:
                    found[slug] = read(cells[place])
        return found


def can_encode(builder: RowBuilder) -> bool:
    """Whether rows have nothing but cells that stand for themselves: no parts of a value, no ids, no clearing, nothing set twice."""
    slugs = {cell.slug for cell in builder.cells}
    constants = builder.constants
    return (
        builder.id_column is None
        and not builder.clears_blanks
        and all(cell.part is None and (cell.after_good is None or cell.is_odd is not None) for cell in builder.cells)
        and slugs.isdisjoint(constants)
        and all(attribute.slug in slugs or constants.get(attribute.slug) not in NOTHING for attribute in builder.required)
    )
