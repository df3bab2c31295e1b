"""A table and the data it stands for: the correct result of its import, row by row, is known before the file is written."""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.bulkfiles import attribute, select

ATTRIBUTES = [
    attribute("ref", isRequired=True, isUnique=True),
    attribute("person"),
    attribute("email", "email"),
    attribute("score", "number"),
    attribute("born", "date"),
    attribute("phone", "phone_number"),
    select("stage", "New", "Won", "Lost deal"),
    attribute("remark"),
]
SLUGS = [attribute.slug for attribute in ATTRIBUTES]
WESTERN = [
    *("Zoë", "José Ñúñez", "O'Brien", 'say "hi"', "a,b;c|d\te", "00123", "NA", "NULL", "None", "nan", "007", "3.10", "TRUE", "1,5"),
    *(
        "=1+1",
        "+cmd|x",
        "@SUM(A1)",
        "-2",
        "'-2",
        "''=x",
        " leading",
        "trailing ",
        "two\nlines",
        "two\r\nlines",
        "'tis",
        "\u00a0",
        "“smart, quotes”",
    ),
    *("{not json", "\\N", "a\\", "\\", '"', '""', "x" * 70_000),
]
WIDE = ["日本語", "Łódź", "Анна", "\u2028\x85", "🙂"]
TOKEN, NULL = "<clear>", "(null)"


@dataclass
class Row:
    """The cells as written, and the data they stand for. `text` replaces the whole record; a `lost` row must not be imported."""

    cells: list[str]
    data: dict[str, Any]
    text: str | None = None
    lost: bool = False


@dataclass
class Sheet:
    """A file to write, and its declarations. `refusals` are the codes with which the whole file may be refused."""

    chance: random.Random
    rows: list[Row]
    header: list[str] = field(default_factory=lambda: list(SLUGS))
    source: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    mapping: dict[str, Any] = field(default_factory=dict)
    encoding: str = "utf-8"
    bom: bytes = b""
    delimiter: str = ","
    quote: str = '"'
    quoting: str = "minimal"
    newlines: list[str] = field(default_factory=lambda: ["\n"])
    blank_lines: float = 0.0
    final_newline: bool = True
    ends_in_delimiter: bool = False
    preamble: str = ""
    compressed: bool = False
    extra: list[tuple[int, str]] = field(default_factory=list)
    refusals: set[str] = field(default_factory=set)
    spoil_text: Callable[[str], str] | None = None
    spoil_bytes: Callable[[bytes], bytes] | None = None
    done: list[str] = field(default_factory=list)

    def column(self, slug: str) -> int:
        return self.header.index(slug)

    def some(self) -> list[Row]:
        """Return a few intact rows."""
        whole = [row for row in self.rows if row.text is None and not row.lost]
        return self.chance.sample(whole, min(len(whole), self.chance.randint(1, 3)))

    def write(self) -> tuple[bytes, dict[str, tuple[int, int]]]:
        """Return the bytes, and the first and last line of every row by its `ref`."""
        text, places = self.preamble, {}
        extra = dict(self.extra)
        for number, row in enumerate([None, *self.rows]):
            while self.chance.random() < self.blank_lines:
                text += self.chance.choice(self.newlines)
            record = self._record(self.header) if row is None else row.text if row.text is not None else self._record(row.cells)
            if row is not None:
                places[row.data["ref"]] = (len(text), len(text) + len(record))
            text += record + self.chance.choice(self.newlines)
            if number in extra:
                text += extra[number] + self.chance.choice(self.newlines)
        if not self.final_newline:
            text = text.rstrip("\r\n")
        lines = {ref: (1 + _lines(text[:start]), 1 + _lines(text[:end])) for ref, (start, end) in places.items()}
        if self.spoil_text is not None:
            text = self.spoil_text(text)
        data = self.bom + text.encode(self.encoding)
        data = gzip.compress(data, 1, mtime=0) if self.compressed else data
        return (data if self.spoil_bytes is None else self.spoil_bytes(data)), lines

    def _record(self, cells: list[str]) -> str:
        return self.delimiter.join(map(self._cell, [*cells, ""] if self.ends_in_delimiter else cells))

    def _cell(self, text: str) -> str:
        special = re.search(f"[{re.escape(self.delimiter + self.quote)}\r\n]", text)
        if special or self.quoting == "all" or (self.quoting == "some" and self.chance.random() < 0.5) or text.startswith(self.quote):
            return self.quote + text.replace(self.quote, self.quote * 2) + self.quote
        return text


def _lines(text: str) -> int:
    return len(re.findall(r"\r\n|\r|\n", text))


def clean_sheet(chance: random.Random) -> Sheet:
    """Return a sheet without faults."""
    pool = WESTERN if chance.random() < 0.5 else WESTERN + WIDE
    rows = []
    for number in range(chance.randint(1, 12)):
        person, remark = chance.choice(pool), chance.choice([*pool, "", ""])
        score = chance.choice([str(number), "0.5", "-3.25", "12345678901234567890", "1234.5", "-0.000001"])
        born = f"{chance.randint(1900, 2030)}-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}"
        phone, stage = f"+44207946{chance.randint(0, 999):04}", chance.choice(["New", "Won", "Lost deal"])
        cells = [f"r{number:04}", person, f"p{number}@example.com", score, born, phone, stage, remark]
        rows.append(Row(cells, {slug: text for slug, text in zip(SLUGS, cells, strict=True) if text}))
    return Sheet(chance, rows)
