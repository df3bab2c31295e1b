"""How wide each column of a table becomes, counted in terminal cells. Ids, e-mails, numbers and dates are never cut; there are
fewer columns before free text becomes hard to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

GAP = "  "
LEAST = 32
"""Cells a shortened text keeps. With less it is hard to read: then rather one column fewer."""

LEAST_OF_CHOSEN = 20
"""The same of a column that was asked for by name."""


@dataclass(frozen=True, eq=False)
class Cells:
    """A column as text: `right` aligns to the right, `rigid` is never cut, others to no less than `short` cells."""

    header: str
    texts: list[str]
    right: bool = False
    rigid: bool = False
    short: int = LEAST

    @cached_property
    def natural(self) -> int:
        """The width at which nothing is cut."""
        return max([cell_width(self.header), *map(cell_width, self.texts)])

    @property
    def least(self) -> int:
        return self.natural if self.rigid else min(self.natural, self.short)

    @property
    def is_empty(self) -> bool:
        return not any(self.texts)


def fits(columns: list[Cells], width: int | None) -> bool:
    """Whether all columns can be read in lines of this width."""
    return width is None or _total([column.least for column in columns]) <= width


def fit(columns: list[Cells], width: int | None, *, may_drop: bool) -> tuple[list[Cells], list[int]]:
    """The columns that are shown, and their widths. Empty ones go first, then from the right; the first always stays.

    Without `may_drop` all stay, even when the lines then get longer than the terminal.
    """
    kept = list(columns)
    while width is not None and may_drop and len(kept) > 1 and _total([column.least for column in kept]) > width:
        kept.remove(next((column for column in reversed(kept[1:]) if column.is_empty), kept[-1]))
    return kept, _widths(kept, width)


def _total(widths: list[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _widths(columns: list[Cells], width: int | None) -> list[int]:
    """Natural widths where they fit; otherwise the texts share what the others leave, short ones keeping all of theirs."""
    widths = [column.natural for column in columns]
    if width is None or _total(widths) <= width:
        return widths
    texts = sorted((number for number, column in enumerate(columns) if not column.rigid), key=lambda number: widths[number])
    room = width - _total([column.natural if column.rigid else 0 for column in columns])
    for position, number in enumerate(texts):
        share = max(room // (len(texts) - position), columns[number].least)
        widths[number] = min(widths[number], share)
        room -= widths[number]
    return widths


def cell_width(text: str) -> int:
    """Terminal cells a text takes: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def pad(text: str, width: int, right: bool) -> str:
    """A text in exactly this many cells, shortened with an ellipsis where it is longer."""
    length = cell_width(text)
    if length > width:
        from rich.cells import set_cell_size

        text = set_cell_size(text, max(width - 1, 0)).rstrip() + "…"
        length = cell_width(text)
    blanks = " " * (width - length)
    return blanks + text if right else text + blanks


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of texts below each other, a line each."""
    widths = [max(map(cell_width, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(pad(cell, width, False) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
