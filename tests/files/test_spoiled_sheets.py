"""Tables damaged at random: each value that arrives is exact; crmctl names or refuses all others, with a reason."""

from __future__ import annotations

import csv
import io
from collections import Counter

import pytest

from crmctl.files import delimited
from crmctl.files import encodings as decoding
from crmctl.files import payloads as building
from crmctl.values import typed_text
from tests.support.sheetreading import read_sheet
from tests.support.spoiledsheets import DAMAGES, ODDITIES, spoiled_sheet

SEEDS = 300
"""benchmarks/results/spoiled_sheets.md has a run of thousands."""


@pytest.mark.campaign
def test_nothing_is_ever_silently_changed(tmp_path):
    done, totals, found = Counter(), Counter(), {}
    for seed in range(SEEDS):
        sheet = spoiled_sheet(seed)
        outcome = read_sheet(sheet, tmp_path / "sheet.csv")
        done.update(sheet.done)
        totals.update(rows=len(sheet.rows), exact=outcome.exact, named=outcome.named, refused=outcome.refusal is not None)
        if outcome.faults:
            found[seed] = outcome.faults
    assert found == {}
    # The seeds cover every damage, and a reader that refused everything would fail.
    assert {mutate.__name__ for mutate in [*ODDITIES, *DAMAGES]} == set(done)
    assert totals["exact"] > 0.6 * totals["rows"]
    assert totals["named"] > 100
    assert totals["refused"] > 50


def pads_every_row(patch):
    read = delimited.DelimitedSource._row

    def padded(self, record, ordinal):
        cells = record.cells and [*record.cells, *[""] * (self._width - len(record.cells))]
        return read(self, record._replace(cells=cells), ordinal)

    patch.setattr(delimited.DelimitedSource, "_row", padded)


def replaces_bytes(patch):
    wrapper = decoding.io.TextIOWrapper
    patch.setattr(decoding.io, "TextIOWrapper", lambda stream, **said: wrapper(stream, **{**said, "errors": "replace"}))


def infers_numbers(patch):
    real = building.text_reader

    def inferring(attribute, *said):
        return real(attribute, *said) if attribute.type != "text" else lambda text: int(text) if text.isdigit() else text

    patch.setattr(building, "text_reader", inferring)


def reads_lines_not_records(patch):
    def split(lines, delimiter, *, lines_before=0):
        for number, line in enumerate(lines, lines_before + 1):
            text = line.rstrip("\r\n")
            cells = next(csv.reader(io.StringIO(text), delimiter=delimiter), None)
            yield delimited.QuotedRecord(number, number, text, cells if text else None)

    patch.setattr(delimited, "split_records", split)


def guesses_dates(patch):
    patch.setattr(typed_text, "_iso_date", lambda text: "-".join(reversed(text.replace(".", "/").split("/"))))


@pytest.mark.parametrize("mistake", [pads_every_row, replaces_bytes, infers_numbers, reads_lines_not_records, guesses_dates])
def test_a_reader_with_a_well_known_mistake_is_found_out(tmp_path, monkeypatch, mistake):
    mistake(monkeypatch)
    faults = (fault for seed in range(150) for fault in read_sheet(spoiled_sheet(seed), tmp_path / "sheet.csv").faults)
    assert any("CORRUPTED" in fault or "LOST" in fault or "came through" in fault for fault in faults)
