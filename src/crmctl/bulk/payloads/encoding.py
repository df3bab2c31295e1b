"""The cells of a row straight to the JSON text of its data: columns repeat themselves, so each remembers what its texts become.

What a cell means is `building`'s to say, and so is every row that there is something to say about. This gives the same, or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import getitem
from typing import Any

from crmctl.bulk.payloads.building import MEMO_CELLS, MEMO_LENGTH, Cell, RowBuilder
from crmctl.errors import RejectedError
from crmctl.models import jsontext

NOTHING: tuple[Any, ...] = (None, "", [], {})
"""Values that count as missing where one is required."""


class _Remarkable(Exception):
    """There is something to say about a text, or may be."""


class _Column(dict[str, bytes]):
    """The member of the data that each text of a column becomes, `,"slug":value`; nothing for a blank one."""

    __slots__ = ("_is_odd", "_is_required", "_member", "_read")

    def __init__(self, cell: Cell, blanks: frozenset[str], *, is_required: bool) -> None:
        super().__init__({} if is_required else dict.fromkeys(blanks, b""))
        self._read = cell.read_text
        self._is_odd = cell.is_odd
        self._is_required = is_required
        self._member = f",{jsontext.dumps(cell.slug)}:"

    def __missing__(self, text: str) -> bytes:
        value = self._read(text)
        if (self._is_odd is not None and self._is_odd(text)) or (self._is_required and value in NOTHING):
            raise _Remarkable
        member = (self._member + (jsontext.quote(value) if type(value) is str else jsontext.dumps(value))).encode()
        if len(text) <= MEMO_LENGTH and len(self) < MEMO_CELLS:
            self[text] = member
        return member


class _Ignored(dict[str, bytes]):
    """A column that fills nothing."""

    def __missing__(self, text: str) -> bytes:
        return b""


class RowEncoder:
    """Encodes the rows of one file of cells."""

    def __init__(self, builder: RowBuilder, width: int) -> None:
        """`width` is the number of columns. Call it for a builder that `can_encode` only."""
        required = {attribute.slug for attribute in builder.required}
        self._columns: list[dict[str, bytes]] = [_Ignored() for _ in range(width)]
        for cell in builder.cells:
            self._columns[cell.place] = _Column(cell, builder.blanks, is_required=cell.slug in required)
        self._places = {cell.slug: (cell.place, cell.read_text) for cell in builder.cells}
        self._constants = builder.constants
        self._head = jsontext.dumps(builder.constants)[:-1].encode()
        self._skipped = 0 if builder.constants else 1

    def encode(self, cells: list[str]) -> bytes | None:
        """The data of a row as JSON, the same as the builder's; None for a row that the builder has to look at."""
        try:
            members = b"".join(map(getitem, self._columns, cells))
        except (_Remarkable, RejectedError, ValueError):
            return None
        return b"%s%s}" % (self._head, members[self._skipped :]) if members else None

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
