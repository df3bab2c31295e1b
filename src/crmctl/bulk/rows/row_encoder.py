"""The cells of a row straight to the JSON text of its data: columns repeat themselves, so each remembers what its texts become.

What a cell means is `record_builder`'s to say, and so is every row that there is something to say about. This gives the same, or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from crmctl.bulk.rows.cell_values import DOUBTFUL_STARTS
from crmctl.bulk.rows.record_builder import MEMO_CELLS, MEMO_LENGTH, Cell, RowBuilder
from crmctl.bulk.sources.rows import Row
from crmctl.errors import RejectedError
from crmctl.models import jsontext
from crmctl.models.attributes import AttributeType
from crmctl.models.typed_text import PLAIN_DATE, PLAIN_EMAIL, read_email

NOTHING: tuple[Any, ...] = (None, "", [], {})
"""Values that count as missing where one is required."""


class _Remarkable(Exception):
    """There is something to say about a text, or may be."""


def _same_on_the_wire(cell: Cell) -> str | None:
    """A pattern of texts of a column that are their own values, with nothing in them that JSON escapes and nothing to say about them.

    Not of all such texts: of those that nearly all are.
    """
    if cell.read_text is str:
        return UNDOUBTED_TEXT
    if cell.read_text is read_email:
        return PLAIN_EMAIL.pattern
    if cell.attribute.type == AttributeType.DATE and not cell.attribute.is_list and cell.after_good is None:
        return PLAIN_DATE
    return None


UNDOUBTED_TEXT = rf"""(?![{re.escape("".join(DOUBTFUL_STARTS))}])[^"\\\x00-\x1f]+"""


class _Column(dict[str, str]):
    """The member of the data that each text of a column becomes, `,"slug":value`; nothing for a blank one."""

    __slots__ = ("_are_same", "_blanks", "_is_odd", "_is_required", "_is_same", "_member", "_read")

    def __init__(self, cell: Cell, blanks: frozenset[str], *, is_required: bool) -> None:
        super().__init__({} if is_required else dict.fromkeys(blanks, ""))
        same = _same_on_the_wire(cell)
        self._is_same = re.compile(same).fullmatch if same else None
        self._are_same = re.compile(f"(?:(?:{same})\n)*+").fullmatch if same else None
        self._blanks = blanks
        self._read = cell.read_text
        self._is_odd = cell.is_odd
        self._is_required = is_required
        self._member = f",{jsontext.dumps(cell.slug)}:"

    def __missing__(self, text: str) -> str:
        if text in self._blanks:
            raise _Remarkable  # of a required attribute: others know what becomes of blanks
        if self._is_same is not None and self._is_same(text):
            member = f'{self._member}"{text}"'
        else:
            value = self._read(text)
            if (self._is_odd is not None and self._is_odd(text)) or (self._is_required and value in NOTHING):
                raise _Remarkable
            member = self._member + (jsontext.quote(value) if type(value) is str else jsontext.dumps(value))
        if len(text) <= MEMO_LENGTH and len(self) < MEMO_CELLS:
            self[text] = member
        return member

    def members(self, texts: Sequence[str]) -> list[str]:
        """Of several texts at once. A column whose memory is full repeats itself little, and often nothing in it is special."""
        if self._are_same is not None and len(self) >= MEMO_CELLS and self._blanks.isdisjoint(texts):
            lines = "\n".join(texts) + "\n"
            if lines.count("\n") == len(texts) and self._are_same(lines):
                opening = f'{self._member}"'
                return [f'{opening}{text}"' for text in texts]
        return [self[text] for text in texts]


class _Ignored:
    """A column that fills nothing."""

    def members(self, texts: Sequence[str]) -> list[str]:
        return [""] * len(texts)


class RowEncoder:
    """Encodes the rows of one file of cells."""

    def __init__(self, builder: RowBuilder, width: int) -> None:
        """`width` is the number of columns. Call it for a builder that `can_encode` only."""
        required = {attribute.slug for attribute in builder.required}
        self._columns: list[_Column | _Ignored] = [_Ignored() for _ in range(width)]
        for cell in builder.cells:
            self._columns[cell.place] = _Column(cell, builder.blanks, is_required=cell.slug in required)
        self._places = {cell.slug: (cell.place, cell.read_text) for cell in builder.cells}
        self._constants = builder.constants
        self._head = f'{{"data":{jsontext.dumps(builder.constants)[:-1]}'
        self._skipped = 0 if builder.constants else 1

    def encode(self, rows: Sequence[Row]) -> list[bytes | None]:
        """The records of rows as JSON, their data the same as the builder's; None for a row that the builder has to look at."""
        try:
            _, _, _, _, cells, _, problems = zip(*rows, strict=True)
            if any(problems):
                raise _Remarkable
            columns = zip(*cells, strict=True)
            members = [column.members(texts) for column, texts in zip(self._columns, columns, strict=True)]
        except (_Remarkable, RejectedError, ValueError):
            middle = len(rows) // 2
            return [*self.encode(rows[:middle]), *self.encode(rows[middle:])] if middle else [None]
        head, skipped = self._head, self._skipped
        return [f"{head}{text[skipped:]}}}}}".encode() if text else None for text in map("".join, zip(*members, strict=True))]

    def values(self, cells: list[str], slugs: Sequence[str]) -> dict[str, Any]:
        """Some of the values of a row that was encoded."""
        found = {slug: self._constants[slug] for slug in slugs if slug in self._constants}
        for slug in slugs:
            if slug in self._places:
                place, read = self._places[slug]
                if any(self._columns[place].members([cells[place]])):
                    found[slug] = read(cells[place])
        return found


def can_encode(builder: RowBuilder) -> bool:
    """Whether rows have nothing but cells that stand for themselves: no parts of a value, no ids, no clearing, nothing set twice."""
    slugs = {cell.slug for cell in builder.cells}
    constants = builder.constants
    return (
        builder.id_column is None
        and not builder.clears_blanks
        and not builder.constant_parts
        and not any(cell.part is not None or cell.splits_amounts for cell in builder.cells)
        and all(cell.after_good is None or cell.is_odd is not None for cell in builder.cells)
        and slugs.isdisjoint(constants)
        and all(attribute.slug in slugs or constants.get(attribute.slug) not in NOTHING for attribute in builder.required)
    )
