"""JSONL: one JSON object per line. A bad line is a row with a problem; the lines after it are read all the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from crmctl.bulk.sources.jsonrecords import HEADER_SAMPLE, header_of, json_problem, problem_row, row_of
from crmctl.bulk.sources.rows import Dialect, Row
from crmctl.bulk.sources.text_encodings import Encoding, open_text, read_lines
from crmctl.models import jsontext


class JsonLinesSource:
    """A JSONL file."""

    header_complete = False
    header_text = ""

    def __init__(self, path: Path, name: str, dialect: Dialect) -> None:
        self.path = path
        self.name = name
        self.blank_lines = 0
        self._encoding = Encoding(dialect.encoding, dialect.bom)
        self._compressed = dialect.compressed
        sample = list(islice(self.rows(), HEADER_SAMPLE))
        self.header = header_of(sample)
        self.dialect = replace(dialect, header=self.header)

    def rows(self) -> Iterator[Row]:
        ordinal, number = 0, 0
        with open_text(self.path, self.name, self._encoding, compressed=self._compressed) as text:
            for number, line in enumerate(read_lines(text, self.name), start=1):
                raw = line.rstrip("\r\n")
                if not raw.strip():
                    continue
                ordinal += 1
                row = Row(ordinal, number, number, raw, [])
                try:
                    value = jsontext.loads(raw, unique_keys=True)
                except ValueError as error:
                    yield problem_row(row, json_problem(error))
                else:
                    yield row_of(row, value)
        self.blank_lines = number - ordinal
