"""Filters on names, on amounts with a currency and on dates, with crmctl's service."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.inprocess import run_here
from tests.support.service import RunningService


def add(crm: RunningService, slug: str, rows: list[dict[str, Any]]) -> None:
    path = f"/api/v1/objects/{crm.object_id(slug)}/records/bulk"
    crm.client.post(path, json={"records": [{"data": row} for row in rows]}).raise_for_status()


def test_several_records_of_one_name_are_listed_by_id(crm: RunningService) -> None:
    add(crm, "companies", [{"name": "Twice", "domain": f"twice{one}.com"} for one in range(2)])
    ids = run_here("records", "list", "companies", "-o", "ids").ok().out.split()
    several = run_here("records", "list", "people", "--filter", "company=Twice").exits(2).error()
    assert (several["code"], sorted(several["details"]["ids"])) == ("ambiguous_record", sorted(ids))
    assert all(record_id in several["message"] for record_id in ids)


def test_measures_name_each_currency_in_every_format(crm: RunningService) -> None:
    amounts = [(20, "EUR"), (1000, "EUR"), (7.5, "USD")]
    add(crm, "deals", [{"name": f"{code} {one}", "stage": "won", "amount": {"amount": one, "currency": code}} for one, code in amounts])
    arguments = ("records", "count", "deals", "--by", "stage", "--sum", "amount", "--avg", "amount")
    assert run_here(*arguments).ok().json() == [
        {
            "stage": "won",
            "count": 3,
            "sum_amount": [{"currency": "EUR", "value": 1020}, {"currency": "USD", "value": 7.5}],
            "avg_amount": [{"currency": "EUR", "value": 510}, {"currency": "USD", "value": 7.5}],
        }
    ]
    assert "1,020.00 EUR, 7.50 USD  510.00 EUR, 7.50 USD" in run_here(*arguments, "-o", "table").ok().out
    lines = run_here(*arguments, "-o", "csv").ok().out.splitlines()
    assert lines == ["stage,count,sum_amount_EUR,sum_amount_USD,avg_amount_EUR,avg_amount_USD", "won,3,1020,7.5,510,7.5"]
    chart = run_here(*arguments, "--chart").ok().out
    assert [line for line in chart.splitlines() if line.startswith("sum_")] == ["sum_amount_EUR", "sum_amount_USD"]
    assert "1,020.00 EUR, 7.50 USD" in run_here("records", "count", "deals", "--sum", "amount", "-o", "table").ok().out


def test_an_average_has_at_most_six_decimals(crm: RunningService) -> None:
    add(crm, "people", [{"email": f"p{score}@acme.com", "score": score} for score in (1, 2, 4)])
    assert run_here("records", "count", "people", "--avg", "score").ok().json()["avg_score"] == 2.333333
    assert "2.33\n" in run_here("records", "count", "people", "--avg", "score", "-o", "table").ok().out


@pytest.mark.parametrize(("condition", "count"), [("birthday>=31/12/1990", 1), ("birthday<12/31/1990", 1), ("birthday=05/05/1990", 1)])
def test_a_date_that_can_be_read_in_one_way_only(crm: RunningService, condition: str, count: int) -> None:
    days = ("1990-05-05", "1990-12-31") if "=05" not in condition else ("1990-05-05", "1990-05-06")
    add(crm, "people", [{"email": f"{day}@acme.com", "birthday": day} for day in days])
    assert run_here("records", "count", "people", "--filter", condition).ok().json() == {"count": count}
    assert "two ways" in run_here("records", "count", "people", "--filter", "birthday>01/12/1990").exits(2).error()["message"]


@pytest.mark.parametrize(("local", "month"), [("Europe/Berlin", "2026-02"), ("America/New_York", "2026-01"), ("UTC", "2026-01")])
def test_a_time_counts_for_its_local_month(local: str, month: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    from crmctl.client.query.groups import UNITS, period

    monkeypatch.setenv("TZ", local)
    time.tzset()
    assert period("2026-01-31T23:30:00Z", UNITS["month"]) == month
    assert period("2026-01-31", UNITS["month"]) == "2026-01"
    assert period("2027-01-01", UNITS["week"]) == "2026-W53"
    monkeypatch.undo()
    time.tzset()
