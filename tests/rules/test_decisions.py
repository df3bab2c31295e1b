"""Each decision says in its third line whether it holds, and since when."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest

from tests.support.sources import ROOT

DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
DATE = r"(\d{4}-\d\d-\d\d)"
STATUS = re.compile(rf"\*\*Status\.\*\* (?:Accepted|Replaced by \[decision \d+\]\([\w.-]+\)|Withdrawn) on {DATE}(?:, changed on {DATE})?\.")


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_has_a_status_and_a_date(path: Path) -> None:
    title, blank, status, *_ = path.read_text(encoding="utf-8").splitlines()
    said = STATUS.fullmatch(status)
    assert title.startswith("# ")
    assert blank == ""
    assert said, f"the third line is {status!r}, not such as '**Status.** Accepted on 2026-11-21.'"
    dates = [datetime.date.fromisoformat(date) for date in said.groups() if date]
    assert dates == sorted(dates)


def test_no_two_decisions_have_one_number() -> None:
    numbers = [path.name[:4] for path in DECISIONS]
    assert len(set(numbers)) == len(numbers) > 10
    assert all(number.isdigit() for number in numbers)
