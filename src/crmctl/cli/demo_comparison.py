"""What the demonstration imported against what it exported, cell by cell. Rules of this one file of sample data."""

from __future__ import annotations

import csv
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

from crmctl.models import jsontext


def compare(imported: Path, exported: Path, company: str) -> dict[str, Any]:
    """`{"imported", "exported", "cells", "differences"}`; people are matched by e-mail address."""
    before, after = _rows(imported), _rows(exported)
    by_email = {row["email"]: row for row in after}
    cells = differences = 0
    for row in before:
        found = by_email.get(row["Email"], {})
        for column, text in row.items():
            cells += 1
            differences += not _same(column, text, found)
        cells += 1
        differences += found.get("company") != company
    return {"imported": len(before), "exported": len(after), "cells": cells, "differences": differences}


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _same(column: str, text: str, found: dict[str, str]) -> bool:
    slug, _, part = column.partition(".")
    cell = found.get(slug.lower().replace(" ", "_"))
    if cell is None:
        return False
    if part:
        return bool(jsontext.loads(cell)[part] == text)
    if text == "" or cell == "":
        return text == cell
    return READINGS.get(column, _plain)(text, cell)


def _plain(text: str, cell: str) -> bool:
    return text == cell


def _money(text: str, cell: str) -> bool:
    amount, _, currency = text.partition(" ")
    value = jsontext.loads(cell)
    return Decimal(str(value["amount"])) == Decimal(amount) and value["currency"] == currency


def _digits(text: str) -> str:
    return "".join(filter(str.isdigit, text))


READINGS: dict[str, Callable[[str, str], bool]] = {
    "Score": lambda text, cell: Decimal(text) == Decimal(cell),
    "Tags": lambda text, cell: bool(text.split(";") == jsontext.loads(cell)),
    "Subscribed": lambda text, cell: (text == "yes") == (cell == "true"),
    "Annual spend": _money,
    "Phone": lambda text, cell: _digits(text) == _digits(cell),
}
