"""Everyday questions of an admin to crmctl's service: answers, notes, and the number of requests each may take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from crmctl.clock import SystemClock
from tests.support.cli import Result
from tests.support.inprocess import run_here
from tests.support.service import RunningService, running_service

CITIES = ("Rome", "Paris", "Bonn")
STATUS = ("new", "contacted", "customer")
YEAR = 365 * 86_400


class ShiftedClock(SystemClock):
    """Return the moment that many seconds ago."""

    ago = 0

    def now(self) -> float:
        return super().now() - self.ago


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """Create 30 companies, 240 people (half of them three years old) and 130 deals."""
    clock = ShiftedClock()
    with running_service(tmp_path_factory.mktemp("asked"), clock=clock) as running:
        companies = add(running, "companies", [{"name": f"Company {one}", "domain": f"c{one}.com"} for one in range(30)])
        for half, ago in ((0, 3 * YEAR), (120, 0)):
            clock.ago = ago
            add(running, "people", [person(number, companies) for number in range(half, half + 120)])
        amounts = [{"amount": 10 * one, "currency": "EUR"} for one in range(130)]
        stages = ("won", "lost", "lead", None)
        deals = [{"name": f"Deal {one}", "stage": stages[one % 4], "company": companies[one % 5]} for one in range(130)]
        add(running, "deals", [deal | {"amount": amount} for deal, amount in zip(deals, amounts, strict=True)])
        yield running


def person(number: int, companies: list[str]) -> dict[str, Any]:
    return {
        "email": f"p{number}@acme.com",
        "name": {"first": "Grace" if number % 60 == 7 else "Ada", "last": f"L{number}"},
        "address": {"city": CITIES[number % 3], "street": f"{number} Via Roma"},
        "company": companies[number % 30],
        "status": STATUS[number % 3],
        "score": number if number % 4 else None,
    }


def add(service: RunningService, slug: str, rows: list[dict[str, Any]]) -> list[str]:
    """Return the ids of new records."""
    path = f"/api/v1/objects/{service.object_id(slug)}/records"
    for start in range(0, len(rows), 100):
        answer = service.client.post(f"{path}/bulk", json={"records": [{"data": row} for row in rows[start : start + 100]]}).json()
        assert answer["failed"] == []
    found = []
    for start in range(0, len(rows), 100):
        query = {"limit": min(100, len(rows) - start), "offset": start, "order": "asc"}
        found += [record["id"] for record in service.client.get(path, params=query).json()["records"]]
    return found


@pytest.fixture(autouse=True)
def _environment(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRMCTL_BASE_URL", service.base_url)
    monkeypatch.setenv("CRMCTL_API_KEY", service.key)


def ask(service: RunningService, *arguments: str, at_most: int | None = None) -> Result:
    """Run a command; it may send at most `at_most` requests about records, apart from those for the schema."""
    service.log.clear()
    result = run_here("records", *arguments)
    asked = [str(entry["path"]) for entry in service.log if "/records" in str(entry["path"])]
    assert at_most is None or len(asked) <= at_most, asked
    return result


def emails(result: Result) -> list[str]:
    return [record["data"]["email"] for record in result.ok().json()]


ROWS = [
    (("get", "people", "email=p7@acme.com"), 1, 1),
    (("list", "people", "--filter", "address.city=Rome"), 1, 50),
    (("list", "people", "--filter", "company.domain=c3.com"), 2, 8),
    (("list", "people", "--filter", "company.domain in c3.com,c4.com"), 4, 16),
    (("list", "people", "--filter", "status in new,customer"), 2, 50),
    (("list", "people", "--filter", "status in new,customer", "--all"), 2, 160),
    (("list", "people", "--filter", "status not in new,customer", "--all"), 1, 80),
    (("list", "people", "--filter", "created_at<2y", "--all"), 2, 120),
    (("list", "people", "--filter", "createdAt<2y", "--sort", "updated_at"), 1, 50),
    (("list", "people", "--sort", "score", "--order", "desc", "--limit", "3"), 3, 3),
    (("list", "people", "--fields", "email,company.name"), 2, 50),
    (("list", "people", "--fields", "email,company.name", "--limit", "2"), 3, 2),
    (("list", "people", "--sample", "10"), 4, 10),
    (("search", "people", "grace"), 8, 4),
]


@pytest.mark.parametrize(("arguments", "bound", "count"), ROWS, ids=lambda each: " ".join(each) if isinstance(each, tuple) else "")
def test_each_row_of_the_table_within_its_bound(service: RunningService, arguments: tuple[str, ...], bound: int, count: int) -> None:
    found = ask(service, *arguments, at_most=bound).ok().json()
    assert len(found if isinstance(found, list) else [found]) == count


@pytest.mark.parametrize(
    ("filters", "bound", "count"),
    [
        (["address.city=Rome"], 1, 80),
        (["status in new,customer"], 2, 160),
        (["status not in new,customer"], 1, 80),
        (["company.domain=c3.com"], 2, 8),
        (["created_at<2y"], 1, 120),
        (["created_at=today"], 1, 120),
        (["company.domain!=c3.com"], 2, 232),
        (["address.city!=Rome"], 3, 160),
    ],
)
def test_counting_takes_few_requests(service: RunningService, filters: list[str], bound: int, count: int) -> None:
    arguments = [word for one in filters for word in ("--filter", one)]
    assert ask(service, "count", "people", *arguments, at_most=bound).ok().json() == {"count": count}


def test_sorted_here_with_nulls_last_and_a_price(service: RunningService) -> None:
    up = ask(service, "list", "people", "--sort", "score", "--all").ok()
    scores = [record["data"].get("score") for record in up.json()]
    assert scores == [*(one for one in range(240) if one % 4), *([None] * 60)]
    assert "reading 240 records of people to sort them here: 2 more requests" in up.err
    down = ask(service, "list", "people", "--sort", "name.last", "--order", "desc", "--limit", "2", "--offset", "1").ok()
    assert emails(down) == ["p98@acme.com", "p97@acme.com"]


def test_a_high_price_needs_consent_off_a_terminal(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crmctl.cli.record_queries.MOST_REQUESTS", 1)
    refused = ask(service, "list", "people", "--sort", "score", "--limit", "1", at_most=1).exits(2)
    assert refused.out == ""
    assert "2 more requests" in refused.error()["message"]
    assert "--yes" in refused.error()["hint"]
    assert emails(ask(service, "list", "people", "--sort", "score", "--limit", "1", "--yes")) == ["p1@acme.com"]
    assert len(ask(service, "list", "people", "--sort", "score", "--all").ok().json()) == 240


def test_names_instead_of_ids(service: RunningService) -> None:
    as_csv = ask(service, "list", "people", "--limit", "2", "--fields", "email,company.name,company", "-o", "csv").ok().out.splitlines()
    assert as_csv[0] == "email,company.name,company"
    assert [line.split(",")[:2] for line in as_csv[1:]] == [["p239@acme.com", "Company 29"], ["p238@acme.com", "Company 28"]]
    assert all(len(line.split(",")[2]) == 36 for line in as_csv[1:])
    shown = ask(service, "get", "people", "email=p7@acme.com", "--fields", "email,company.name,company.domain").ok().json()
    assert shown == {"data": {"email": "p7@acme.com", "company": {"name": "Company 7", "domain": "c7.com"}}}
    table = ask(service, "list", "people", "--limit", "1", "--fields", "email,company", "-o", "table", at_most=2).ok().out
    assert table.split() == ["email", "company", "p239@acme.com", "Company", "29"]
    plain = ask(service, "get", "people", "email=p7@acme.com", at_most=1).ok().json()
    assert len(plain["data"]["company"]) == 36, "JSON never changes unasked"
    wrong = ask(service, "list", "people", "--fields", "company.nmae", at_most=0).exits(2).error()
    assert wrong["hint"].startswith("did you mean company.name?")


def test_counts_by_a_value_and_sums(service: RunningService) -> None:
    rows = ask(service, "count", "deals", "--by", "stage", "--sum", "amount", "--avg", "amount", at_most=2).ok().json()
    assert [(row["stage"], row["count"]) for row in rows] == [("won", 33), ("lost", 33), ("lead", 32), (None, 32)]
    assert sum(row["sum_amount"] for row in rows) == sum(10 * one for one in range(130))
    assert [row["avg_amount"] for row in rows] == [640, 650, 640, 650]
    table = ask(service, "count", "deals", "--by", "company", "-o", "table").ok().out
    assert sorted(table.splitlines()[1:]) == [f"Company {number}     26" for number in range(5)]
    assert ask(service, "count", "deals", "--sum", "amount").ok().json() == {"count": 130, "sum_amount": 83850}
    assert "amount, probability" in ask(service, "count", "deals", "--sum", "name").exits(2).error()["hint"]
    by_city = ask(service, "count", "people", "--by", "address.city").ok().json()
    assert sorted(row["address.city"] for row in by_city) == sorted(CITIES)


def test_groups_of_several_attributes_references_and_dates(service: RunningService) -> None:
    by_amount = ask(service, "count", "deals", "--by", "amount", "--sort", "amount", "--limit", "1").ok().json()
    assert by_amount[0]["amount"] == {"amount": 0, "currency": "EUR"}
    two = ask(service, "count", "people", "--by", "status", "--by", "address.city", "--min", "score", "--max", "score").ok().json()
    assert [(row["status"], row["address.city"], row["count"]) for row in two] == [
        ("new", "Rome", 80), ("contacted", "Paris", 80), ("customer", "Bonn", 80),
    ]  # fmt: skip
    assert [(row["min_score"], row["max_score"]) for row in two] == [(3, 237), (1, 238), (2, 239)]
    top = ask(service, "count", "people", "--by", "company.name", "--limit", "2", "--sort", "company.name").ok()
    assert top.json() == [{"company.name": "Company 0", "count": 8}, {"company.name": "Company 1", "count": 8}]
    years = ask(service, "count", "people", "--by", "created_at:year", "--sort", "-created_at:year").ok().json()
    assert [row["count"] for row in years] == [120, 120]
    assert int(years[0]["created_at:year"]) - int(years[1]["created_at:year"]) == 3
    smallest = ask(service, "count", "deals", "--by", "stage", "--sort", "count").ok().json()
    assert [row["count"] for row in smallest] == [32, 32, 33, 33]


def test_a_chart_of_groups(service: RunningService) -> None:
    chart = ask(service, "count", "deals", "--by", "stage", "--chart").ok().out.splitlines()
    assert chart[0] == "count"
    assert [line.split()[0] for line in chart[1:]] == ["won", "lost", "lead", "(none)"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--by", "created_at"), "needs a unit"),
        (("--by", "created_at:mnth"), "no unit"),
        (("--by", "name:month"), "holds no dates"),
        (("--by", "status", "--sort", "score"), "sorted by count"),
        (("--limit", "3"), "need --by"),
    ],
)
def test_a_mistaken_count_is_refused(service: RunningService, arguments: tuple[str, ...], said: str) -> None:
    assert said in ask(service, "count", "people", *arguments).exits(2).error()["message"]


def test_a_sample_is_random_and_with_a_seed_the_same_again(service: RunningService) -> None:
    drawn = [emails(ask(service, "list", "people", "--sample", "5", "--seed", seed)) for seed in ("1", "1", "2")]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(len(set(each)) == 5 for each in drawn)
    assert len(ask(service, "list", "people", "--sample", "500").ok().json()) == 240
    rome = ask(service, "list", "people", "--sample", "4", "--filter", "address.city=Rome").ok().json()
    assert [one["data"]["address"]["city"] for one in rome] == ["Rome"] * 4
    assert ask(service, "list", "people", "--sample", "4", "--limit", "3", at_most=0).exits(2).error()["code"] == "usage"


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("status=nwe", "'nwe' is no option of status (new, contacted, qualified, customer, inactive); did you mean new?"),
        ("company=00000000-0000-4000-8000-000000000000", "company refers to no record with the id"),
    ],
)
def test_an_impossible_value_is_a_warning_and_with_strict_an_error(service: RunningService, condition: str, said: str) -> None:
    shown = ask(service, "list", "people", "--filter", condition).ok()
    assert shown.json() == []
    assert said in shown.err
    assert "warning: " in shown.err
    strict = ask(service, "list", "people", "--filter", condition, "--strict").exits(2)
    assert strict.out == ""
    assert said.partition(";")[0] in strict.error()["message"]


@pytest.mark.parametrize(
    ("condition", "form"),
    [("company=acme.com", "company.domain=acme.com"), ("status=new or status=customer", "status in new,customer")],
)
def test_an_impossible_form_is_refused_with_the_right_one(service: RunningService, condition: str, form: str) -> None:
    refused = ask(service, "list", "people", "--filter", condition, at_most=1).exits(2).error()
    assert form in refused["hint"]


def test_a_value_into_a_variable(service: RunningService) -> None:
    assert ask(service, "list", "people", "--limit", "1", "-q", "[0].data.email", "-r").out == "p239@acme.com\n"
    assert ask(service, "list", "people", "--limit", "1", "-q", "[].data.email", "-r").json() == ["p239@acme.com"], "as jq does"
    assert ask(service, "get", "people", "email=p7@acme.com", "-r", "-o", "csv").exits(2).error()["code"] == "usage"


def test_a_quick_raw_call(service: RunningService) -> None:
    made = run_here("api", "POST", "objects/{deals}/records", "-f", "data.name=Quick", "-f", "data.probability:=0.5").ok().json()
    try:
        assert made["data"] == {"name": "Quick", "probability": 0.5}
        read = run_here("api", "GET", "objects/{deals}/records", "-f", "limit=1", "-q", "records[0].data.name", "-r")
        assert read.out == "Quick\n"
    finally:
        run_here("records", "delete", "deals", made["id"], "--yes").ok()
    assert "did you mean deals?" in run_here("api", "GET", "objects/{dealz}/records").exits(3).error()["hint"]
    assert run_here("api", "POST", "objects/{deals}/records", "-f", "data").exits(2).error()["code"] == "usage"
    assert run_here("api", "POST", "objects/{deals}/records", "-f", "a=1", "-f", "a.b=2").exits(2).error()["code"] == "usage"


def test_a_reference_is_found_by_name(service: RunningService) -> None:
    listed = ask(service, "list", "people", "--filter", "company=Company 7", at_most=3).ok()
    assert emails(listed) == emails(ask(service, "list", "people", "--filter", "company.domain=c7.com").ok())
    assert len(listed.json()) == 8
    without = ask(service, "count", "people", "--filter", "company!=Company 7").ok().json()
    assert without == {"count": 232}
    unknown = ask(service, "list", "people", "--filter", "company=Nobody").exits(2).error()
    assert "none is named 'Nobody'" in unknown["message"]


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_records_are_sorted_by_a_field_of_their_reference(service: RunningService, order: str) -> None:
    arguments = ("list", "people", "--sort", "company.name", "--order", order, "--limit", "9", "--fields", "company.name")
    rows = ask(service, *arguments).ok().json()
    names = sorted(f"Company {number}" for number in range(30))
    first, second = names[:2] if order == "asc" else names[:-3:-1]
    assert [row["data"]["company"]["name"] for row in rows] == [first] * 8 + [second]
    assert ask(service, "list", "people", "--sort", "company.nmae").exits(2).error()["hint"].startswith("did you mean company.name?")


def test_money_is_compared_in_one_currency(service: RunningService) -> None:
    assert ask(service, "count", "deals", "--filter", "amount>=1280 EUR").ok().json() == {"count": 2}
    assert ask(service, "count", "deals", "--filter", "amount>=1280 USD").ok().json() == {"count": 0}
    assert ask(service, "count", "deals", "--filter", "amount>=1280").ok().json() == {"count": 2}


def test_a_word_instead_of_an_id_gets_a_hint(service: RunningService) -> None:
    assert "attr=value" in ask(service, "get", "people", "Hopper").exits(3).error()["hint"]
