"""A noun is one row: added at run time, the command line lists and reads it through client and service."""

from __future__ import annotations

import pytest

from crmctl.cli.registry import BY_NAME, NOUN, CommandEntry
from crmctl.cli.verbs import NOUNS, Noun
from tests.support.inprocess import run_here
from tests.support.service import RunningService


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a noun `visits` that the service keeps under /activities."""
    row = Noun("activities", "activity", "List visits.", "title id", "id title activityDate", example="ID")
    monkeypatch.setitem(NOUNS, "visits", row)
    monkeypatch.setitem(BY_NAME, "visits", CommandEntry("visits", "Records and data", "List visits", module=NOUN))


@pytest.mark.usefixtures("visits")
def test_a_new_row_is_a_new_noun(crm: RunningService) -> None:
    made = [run_here("activities", "create", "--title", title, env=place(crm)).ok().json() for title in ("Demo", "Call")]
    assert run_here("visits", "list", "-o", "json", env=place(crm)).ok().json() == made[::-1]
    assert run_here("visits", "list", "-o", "csv", env=place(crm)).ok().out.splitlines()[0] == "id,title,activityDate"
    assert run_here("visits", "get", made[0]["id"], "-o", "json", env=place(crm)).ok().json() == made[0]
    assert run_here("visits", "get", "00000000-0000-4000-8000-000000000000", env=place(crm)).exits(3).out == ""
    assert run_here("visits", "delete", "x", env=place(crm)).exits(2).out == ""
    assert "Show one activity" in run_here("visits", "--help").ok().out


def place(crm: RunningService) -> dict[str, str]:
    return {"CRMCTL_BASE_URL": crm.base_url, "CRMCTL_API_KEY": crm.key}
