"""Tables look as captured on terminals of 80 and 120 columns; `python -m tests.output.captures` takes new captures."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.output.captures import FOLDER, TABLES, WIDTHS, capture
from tests.support.cli import CRMCTL
from tests.support.warm_program import warm_program

LEAST_COLUMNS = {80: 5, 120: 8}
"""Columns of people that a terminal shows at least."""


@pytest.mark.needs("bash")
def test_tables_look_as_captured(tmp_path: Path) -> None:
    warm_program(str(CRMCTL)).put_shim(tmp_path / "bin")
    for width, text in capture(Path.cwd(), tmp_path / "bin").items():
        assert text.splitlines() == captured(width).splitlines()


@pytest.mark.parametrize("width", WIDTHS)
def test_captured_tables_fit_and_show_the_columns_people_look_for(width: int) -> None:
    tables = captured(width).split("\n$ crmctl ")
    assert len(tables) == len(TABLES) == 20
    assert len(tables[0].splitlines()[1].split()) >= LEAST_COLUMNS[width]
    for table in tables:
        lines = [line for line in table.splitlines()[1:] if not line.startswith("hint: ")]
        assert [line for line in lines if cell_len(line) > width] == []


def captured(width: int) -> str:
    return (FOLDER / f"{width}.txt").read_text(encoding="utf-8")
