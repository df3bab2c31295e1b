"""Finds the delimiter of a text by reading a sample with each candidate. Decides only when one candidate clearly wins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from crmctl.bulk.sources.quoted_text import QuotedRecord, split_records
from crmctl.errors import UsageError

CANDIDATES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}
SAMPLE_RECORDS = 500
CLEAR_LEAD = 0.1
"""How much more consistent than the second the first candidate must be, as a share of the sampled rows."""


@dataclass(frozen=True)
class DialectCandidate:
    """How a sample looks with one candidate: cells in the header, share of rows as wide as it, whether any row has more than one cell."""

    delimiter: str
    width: int
    consistency: float
    splits_rows: bool


def detect_delimiter(lines: Callable[[], Iterator[str]], quote: str | None, name: str) -> str:
    """The delimiter of the text that `lines()` gives afresh at every call. Raises UsageError when two candidates fit."""
    readings = [_read(lines(), candidate, quote) for candidate in CANDIDATES]
    splitting = sorted((reading for reading in readings if reading.width > 1), key=lambda reading: -reading.consistency)
    if not splitting:
        # A one-column file. Where commas split no row, each is the one cell that the header promises (a list `a;b`); where they
        # do, those rows are ragged, which is reported row by row.
        splitting = [reading for reading in readings if reading.splits_rows]
        if "," not in [reading.delimiter for reading in splitting]:
            return ","
        if len(splitting) > 1:
            raise _tie(name, splitting)
        return splitting[0].delimiter
    if len(splitting) > 1 and splitting[0].consistency - splitting[1].consistency < CLEAR_LEAD:
        raise _tie(name, [reading for reading in splitting if splitting[0].consistency - reading.consistency < CLEAR_LEAD])
    return splitting[0].delimiter


def _read(lines: Iterator[str], delimiter: str, quote: str | None) -> DialectCandidate:
    records: Iterator[QuotedRecord] = (record for record in split_records(lines, delimiter, quote) if record.cells is not None)
    header = next(records, None)
    width = len(header.cells or ()) if header else 0
    fitting, total, splits = 0, 0, False
    for record in islice(records, SAMPLE_RECORDS):
        cells = len(record.cells or ())
        total += 1
        fitting += cells == width and record.problem is None
        splits = splits or cells > 1
    return DialectCandidate(delimiter, width, fitting / total if total else 1.0, splits)


def _tie(name: str, readings: list[DialectCandidate]) -> UsageError:
    names = " and ".join(CANDIDATES[reading.delimiter] for reading in readings)
    return UsageError(
        f"{name} can be read with more than one delimiter: {names}",
        hint=f"say which one it is, for example --delimiter {CANDIDATES[readings[0].delimiter]}",
        code="ambiguous_delimiter",
    )
