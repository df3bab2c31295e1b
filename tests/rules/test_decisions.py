"""Each decision fits one page, and its third line states its status and date."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest

from tests.support.sources import ROOT

DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
LONGEST = 50
"""Lines of a decision: one page."""
DATE = r"(\d{4}-\d\d-\d\d)"
STATUS = re.compile(rf"\*\*Status\.\*\* (?:Accepted|Replaced by \[decision \d+\]\([\w.-]+\)|Withdrawn) on {DATE}(?:, changed on {DATE})?\.")


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_has_a_status_and_a_date(path: Path) -> None:
    title, blank, status, *_ = path.read_text(encoding="utf-8").splitlines()
    match = STATUS.fullmatch(status)
    assert title.startswith("# ")
    assert blank == ""
    assert match, f"the third line is {status!r}; expected for example '**Status.** Accepted on 2026-11-21.'"
    dates = [datetime.date.fromisoformat(date) for date in match.groups() if date]
    assert dates == sorted(dates)


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_fits_one_page(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST


def test_decisions_have_unique_numbers() -> None:
    numbers = [path.name[:4] for path in DECISIONS]
    assert len(set(numbers)) == len(numbers) > 10
    assert all(number.isdigit() for number in numbers)
