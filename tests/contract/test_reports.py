"""Reports through HTTP: loaded definitions, stored runs, exact results, and refusals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest

from crmctl.service.context import new_id
from crmctl.service.definitions.definitions_file import load_document, parse_document
from crmctl.service.faults import Fault
from crmctl.service.http.schemas import SHAPES
from tests.contract.scenarios import NIL, Scenario, check_all, check_documented
from tests.support.clock import FakeClock
from tests.support.databases import ANY_ENGINE
from tests.support.service import RunningService

EXAMPLE = """
reports:
  - {name: Deals by stage, object: deals, filters: [{attributeSlug: amount, operator: greaterThan, value: "0"}], groupBy: stage,
     measures: [{function: sum, attribute: amount}, {function: count}]}
  - {name: All people, object: people, columns: [name, email], sort: {field: created_at, order: desc}, limit: 1000}
"""


def load(crm: RunningService, text: str) -> Any:
    return load_document(crm.engine, parse_document(text), clock=crm.clock, ids=new_id)


def define(crm: RunningService, **definition: Any) -> str:
    """Load one report and return its id."""
    named = {"name": "Report", "object": "deals"} | definition
    load(crm, json.dumps({"reports": [named]}))
    return next(report["id"] for report in crm.client.get("/api/v1/reports").json()["reports"] if report["name"] == named["name"])


def add(crm: RunningService, slug: str, *rows: dict[str, Any]) -> None:
    path = f"/api/v1/objects/{crm.object_id(slug)}/records/bulk"
    answer = crm.client.post(path, json={"records": [{"data": row} for row in rows]}).json()
    assert answer["failed"] == []


def run(crm: RunningService, report_id: str) -> Any:
    """Run the report. Return the stored run with its results as exact numbers."""
    answer = crm.client.post(f"/api/v1/reports/{report_id}/run")
    assert answer.status_code == 201, answer.text
    made = answer.json()["run"]
    text = crm.client.get(f"/api/v1/reports/{report_id}/runs/{made['id']}").text
    stored = json.loads(text, parse_float=Decimal)
    assert {key: stored[key] for key in made} == made
    return stored


def results(crm: RunningService, **definition: Any) -> list[Any]:
    return list(run(crm, define(crm, **definition))["results"])


def test_loading_the_example_twice_changes_nothing(crm: RunningService) -> None:
    assert load(crm, EXAMPLE)["reports"] == {"created": 2, "updated": 0, "unchanged": 0}
    before = crm.client.get("/api/v1/reports").json()
    assert load(crm, EXAMPLE)["reports"] == {"created": 0, "updated": 0, "unchanged": 2}
    assert crm.client.get("/api/v1/reports").json() == before
    first, second = before["reports"]
    assert [first["name"], second["name"]] == ["Deals by stage", "All people"]
    # A report that never ran has no field for the time of its last run, not even null.
    assert set(first) == {"id", "name", "description", "createdAt", "creator"}
    assert set(first["creator"]) == {"id", "name", "email"}
    assert first["description"] == ""
    found = crm.client.get(f"/api/v1/reports/{first['id']}").json()
    assert found.items() >= first.items()
    assert found["object"]["slug"] == "deals"
    assert found["definition"]["groupBy"] == "stage"


def test_a_changed_definition_keeps_the_report_and_its_runs(crm: RunningService) -> None:
    report_id = define(crm, columns=["name"])
    run(crm, report_id)
    assert define(crm, columns=["amount"], description="now amounts") == report_id
    found = crm.client.get(f"/api/v1/reports/{report_id}").json()
    assert (found["definition"]["columns"], found["description"]) == (["amount"], "now amounts")
    assert len(crm.client.get(f"/api/v1/reports/{report_id}/runs").json()["runs"]) == 1


def test_a_stored_run_keeps_its_results_when_the_data_changes(crm: RunningService) -> None:
    add(crm, "deals", {"name": "A", "amount": 5})
    report_id = define(crm, columns=["name", "amount"])
    answer = crm.client.post(f"/api/v1/reports/{report_id}/run")
    assert answer.status_code == 201
    assert set(answer.json()) == {"run"}
    made = answer.json()["run"]
    assert set(made) == {"id", "status", "resultCount", "startedAt", "completedAt"}
    assert (made["status"], made["resultCount"]) == ("completed", 1)
    assert crm.client.get(f"/api/v1/reports/{report_id}").json()["lastRunAt"] == made["completedAt"]
    deals = crm.object_id("deals")
    [record] = crm.client.get(f"/api/v1/objects/{deals}/records").json()["records"]
    crm.client.delete(f"/api/v1/objects/{deals}/records/{record['id']}")
    stored = crm.client.get(f"/api/v1/reports/{report_id}/runs/{made['id']}").json()
    assert stored == made | {"truncated": False, "columns": ["name", "amount"], "results": [{"name": "A", "amount": 5}]}
    assert run(crm, report_id)["results"] == []


def test_answers_have_the_documented_shape(crm: RunningService) -> None:
    report_id = define(crm, groupBy="stage", filters=[{"attributeSlug": "amount", "operator": "isNotEmpty"}])
    run_id = run(crm, report_id)["id"]
    path = f"/api/v1/reports/{report_id}"
    check_documented(crm.client.get("/api/v1/reports").json(), SHAPES["ReportList"])
    check_documented(crm.client.get(path).json(), SHAPES["ReportWithDefinition"])
    check_documented(crm.client.get(f"{path}/runs").json(), SHAPES["ReportRunList"])
    check_documented(crm.client.get(f"{path}/runs/{run_id}").json(), SHAPES["ReportRunWithResults"])


def test_runs_are_paged_newest_first(crm: RunningService) -> None:
    report_id, path = define(crm), ""
    path = f"/api/v1/reports/{report_id}/runs"
    assert isinstance(crm.clock, FakeClock)
    made = []
    for _ in range(23):
        made.append(run(crm, report_id)["id"])
        crm.clock.advance(1)

    def ids(**query: Any) -> list[str]:
        return [run["id"] for run in crm.client.get(path, params=query).json()["runs"]]

    assert ids() == made[:2:-1]
    assert ids(limit=2, offset=1) == made[-2:-4:-1]
    assert ids(limit=100) == made[::-1]
    assert ids(offset=23) == []
    assert all("results" not in run for run in crm.client.get(path).json()["runs"])


DEALS: Sequence[dict[str, Any]] = [
    {"name": "a", "stage": "won", "amount": 0.1},
    {"name": "b", "stage": "won", "amount": 0.2},
    {"name": "c", "stage": "lead", "amount": {"amount": 7, "currency": "EUR"}},
    {"name": "d", "stage": "lead"},
    {"name": "e", "amount": -3},
]


def stages(crm: RunningService) -> list[str]:
    path = f"/api/v1/objects/{crm.object_id('deals')}/attributes"
    [stage] = [attribute for attribute in crm.client.get(path).json()["attributes"] if attribute["slug"] == "stage"]
    return list(stage["config"]["options"])


def measure(*wanted: str) -> list[dict[str, str]]:
    return [dict(zip(("function", "attribute"), words.split(), strict=False)) for words in wanted]


def test_groups_are_measured_exactly_without_missing_values(crm: RunningService) -> None:
    one, two = sorted(stages(crm)[:2])
    add(crm, "deals", *({**deal, "stage": {"won": two, "lead": one}[deal["stage"]]} if "stage" in deal else deal for deal in DEALS))
    wanted = measure("count", "count amount", "sum amount", "avg amount", "min amount", "max amount")
    names = ("count", "count_amount", "sum_amount", "avg_amount", "min_amount", "max_amount")
    found = run(crm, define(crm, groupBy="stage", measures=wanted))
    assert found["columns"] == ["stage", "currency", *names]
    assert [tuple(row[name] for name in found["columns"]) for row in found["results"]] == [
        (one, "EUR", 1, 1, 7, 7, 7, 7),
        (one, None, 1, 0, 0, None, None, None),
        (two, None, 2, 2, Decimal("0.3"), Decimal("0.15"), Decimal("0.1"), Decimal("0.2")),
        (None, None, 1, 1, -3, -3, -3, -3),
    ]


def money(*amounts: tuple[float, str]) -> list[dict[str, Any]]:
    return [{"amount": amount, "currency": currency} for amount, currency in amounts]


def test_currencies_are_never_added(crm: RunningService) -> None:
    stage = stages(crm)[0]
    amounts = [*money((12, "EUR"), (4.5, "USD"), (30, "eur"), (1, "")), 2]
    add(crm, "deals", *({"name": "x", "stage": stage, "amount": amount} for amount in amounts), {"name": "y", "stage": stage})
    expected = [
        {"stage": stage, "currency": "EUR", "sum_amount": 42, "count": 2},
        {"stage": stage, "currency": "USD", "sum_amount": Decimal("4.5"), "count": 1},
        {"stage": stage, "currency": None, "sum_amount": 3, "count": 3},
    ]
    question: dict[str, Any] = {"groupBy": "stage", "measures": measure("sum amount", "count")}
    assert results(crm, **question) == expected
    assert results(crm, **question, sort={"field": "currency", "order": "desc"}) == [expected[1], expected[0], expected[2]]
    assert results(crm, **question, sort={"field": "sum_amount"})[0] == expected[2]
    assert results(crm, **question, limit=1) == expected[:1]
    assert results(crm, measures=measure("max amount")) == [
        {"currency": "EUR", "max_amount": 30},
        {"currency": "USD", "max_amount": Decimal("4.5")},
        {"currency": None, "max_amount": 2},
    ]
    assert results(crm, groupBy="stage", measures=measure("count amount")) == [{"stage": stage, "count_amount": 5}]
    assert results(crm, groupBy="amount", filters=[{"attributeSlug": "amount", "operator": "lessThan", "value": "3"}]) == [
        {"amount": {"amount": 1, "currency": ""}, "currency": None, "count": 1},
        {"amount": 2, "currency": None, "count": 1},
    ]


def test_amounts_in_several_attributes_are_separated_by_currency(crm: RunningService) -> None:
    attributes = (
        "{name: Currency, slug: currency, type: text}, {name: Paid, slug: paid, type: currency, isList: true}, "
        "{name: Due, slug: due, type: currency}"
    )
    load(crm, f"objects: [{{slug: bills, pluralName: Bills, attributes: [{attributes}]}}]")
    [due] = money((7, "USD"))
    add(crm, "bills", {"currency": "a", "paid": money((1, "EUR"), (2, "USD"), (4, "EUR")), "due": due}, {"currency": "a", "paid": [8]})
    assert results(crm, object="bills", groupBy="currency", measures=measure("sum paid", "sum due", "count paid")) == [
        {"currency": "a", "currency_code": "EUR", "sum_paid": 5, "sum_due": 0, "count_paid": 1},
        {"currency": "a", "currency_code": "USD", "sum_paid": 2, "sum_due": 7, "count_paid": 1},
        {"currency": "a", "currency_code": None, "sum_paid": 8, "sum_due": 0, "count_paid": 1},
    ]


def test_measures_without_a_group_have_one_result_even_without_records(crm: RunningService) -> None:
    wanted = measure("count", "sum amount", "avg amount", "min amount")
    assert results(crm, measures=wanted) == [{"currency": None, "count": 0, "sum_amount": 0, "avg_amount": None, "min_amount": None}]
    assert results(crm, groupBy="stage") == []


def test_dates_have_minimum_and_maximum(crm: RunningService) -> None:
    add(crm, "deals", *({"name": day, "close_date": day} for day in ("2026-05-01", "2025-12-31T23:30:00-01:00", "2026-01-01")))
    assert results(crm, measures=measure("min close_date", "max close_date", "count close_date")) == [
        {"min_close_date": "2026-01-01T00:00:00.000000Z", "max_close_date": "2026-05-01T00:00:00.000000Z", "count_close_date": 3}
    ]


def test_dates_are_grouped_by_period(crm: RunningService) -> None:
    days = ("2024-12-30", "2025-01-01", "2025-03-31T23:30:00-01:00", "2025-04-01", None)
    add(crm, "deals", *({"name": "x", "close_date": day, "amount": {"amount": 2, "currency": "EUR"}} for day in days))
    for period, expected in {
        "day": [("2024-12-30", 1), ("2025-01-01", 1), ("2025-04-01", 2), (None, 1)],
        "week": [("2025-W01", 2), ("2025-W14", 2), (None, 1)],
        "month": [("2024-12", 1), ("2025-01", 1), ("2025-04", 2), (None, 1)],
        "quarter": [("2024-Q4", 1), ("2025-Q1", 1), ("2025-Q2", 2), (None, 1)],
        "year": [("2024", 1), ("2025", 3), (None, 1)],
    }.items():
        rows = results(crm, groupBy="close_date", groupPeriod=period, measures=measure("count", "sum amount"))
        assert rows == [{"close_date": name, "currency": "EUR", "count": count, "sum_amount": 2 * count} for name, count in expected]
    newest = results(crm, groupBy="close_date", groupPeriod="month", sort={"field": "close_date", "order": "desc"}, limit=1)
    assert newest == [{"close_date": "2025-04", "count": 2}]


def test_options_are_grouped_in_their_own_order(crm: RunningService) -> None:
    options = stages(crm)
    assert options != sorted(options)
    add(crm, "deals", *({"name": "x", "stage": option} for option in sorted(options)))
    assert [row["stage"] for row in results(crm, groupBy="stage")] == options
    assert [row["stage"] for row in results(crm, groupBy="stage", sort={"field": "stage", "order": "desc"})] == options[::-1]


def test_numbers_beyond_floats_are_not_rounded(crm: RunningService) -> None:
    big = "123456789012345678901234567890.5"
    raw = f'{{"records":[{{"data":{{"name":"x","amount":{big}}}}},{{"data":{{"name":"y","amount":0.000000000000000000001}}}}]}}'
    assert crm.client.post(f"/api/v1/objects/{crm.object_id('deals')}/records/bulk", content=raw).json()["created"] == 2
    [row] = results(crm, measures=measure("sum amount", "max amount"))
    assert row["sum_amount"] == Decimal("123456789012345678901234567890.500000000000000000001")
    assert row["max_amount"] == Decimal(big)
    shown = results(crm, columns=["amount"], sort={"field": "amount", "order": "desc"})
    assert [row["amount"] for row in shown] == [Decimal(big), Decimal("1e-21")]


def test_groups_sort_by_a_measure_with_missing_values_last_up_to_the_limit(crm: RunningService) -> None:
    first, second, third = stages(crm)[:3]
    add(
        crm, "deals", {"name": "a", "stage": first, "amount": 1}, {"name": "b", "stage": second, "amount": 2}, {"name": "c", "stage": third}
    )
    definition = {"groupBy": "stage", "measures": measure("avg amount")}
    for order, expected in (("asc", [first, second, third]), ("desc", [second, first, third])):
        rows = results(crm, **definition, sort={"field": "avg_amount", "order": order})
        assert [row["stage"] for row in rows] == expected
    cut = run(crm, define(crm, **definition, sort={"field": "avg_amount", "order": "desc"}, limit=1))
    assert (cut["results"], cut["truncated"]) == ([{"stage": second, "currency": None, "avg_amount": 2}], True)


def test_a_record_with_several_values_counts_once_in_each_group(crm: RunningService) -> None:
    load(
        crm,
        "objects: [{slug: tickets, pluralName: Tickets, attributes: [{name: Tags, slug: tags, type: list}, "
        "{name: Hours, slug: hours, type: number, isList: true}]}]",
    )
    add(crm, "tickets", {"tags": ["b", "a", "b"], "hours": [1, 2.5]}, {"tags": ["a"], "hours": [4]}, {})
    rows = results(crm, object="tickets", groupBy="tags", measures=measure("count", "sum hours"))
    assert rows == [
        {"tags": "a", "count": 2, "sum_hours": Decimal("7.5")},
        {"tags": "b", "count": 1, "sum_hours": Decimal("3.5")},
        {"tags": None, "count": 1, "sum_hours": 0},
    ]
    assert results(crm, object="tickets", groupBy="hours") == [
        {"hours": 1, "count": 1},
        {"hours": Decimal("2.5"), "count": 1},
        {"hours": 4, "count": 1},
        {"hours": None, "count": 1},
    ]


def test_record_reports_filter_sort_and_limit_unchanged_values(crm: RunningService) -> None:
    add(crm, "people", *({"name": {"first": letter, "last": "X"}, "email": f"{letter}@x.org"} for letter in "bca"), {"name": "Zed"})
    found = run(crm, define(crm, object="people", columns=["name", "email"], sort={"field": "email"}, limit=3))
    assert found["results"] == [{"name": {"first": letter, "last": "X"}, "email": f"{letter}@x.org"} for letter in "abc"]
    assert found["truncated"] is True
    assert [row["email"] for row in results(crm, object="people", columns=["email"], sort={"field": "email", "order": "desc"})] == [
        "c@x.org",
        "b@x.org",
        "a@x.org",
        None,
    ]
    assert results(crm, object="people", columns=["id"], filters=[{"attributeSlug": "email", "operator": "isEmpty"}]) != []
    newest = results(crm, object="people", columns=["name"])
    assert newest[0] == {"name": "Zed"}
    everything = run(crm, define(crm, object="people"))
    assert "email" in everything["columns"]
    assert everything["results"][0] == dict.fromkeys(everything["columns"]) | {"name": "Zed"}


def test_a_report_without_its_attribute_stores_a_failed_run(crm: RunningService) -> None:
    load(crm, "objects: [{slug: tickets, pluralName: Tickets, attributes: [{name: Tag, slug: tag, type: text}]}]")
    report_id = define(crm, object="tickets", groupBy="tag")
    tickets = crm.object_id("tickets")
    [tag] = crm.client.get(f"/api/v1/objects/{tickets}/attributes").json()["attributes"]
    crm.client.delete(f"/api/v1/objects/{tickets}/attributes/{tag['id']}")
    broken = run(crm, report_id)
    assert (broken["status"], broken["resultCount"], broken["results"]) == ("failed", 0, [])
    assert "unknown attribute 'tag'" in broken["error"]
    crm.client.delete(f"/api/v1/objects/{tickets}")
    assert "deleted" in run(crm, report_id)["error"]
    assert "object" not in crm.client.get(f"/api/v1/reports/{report_id}").json()


@ANY_ENGINE
@pytest.mark.parametrize(
    ("definition", "says"),
    [
        ({"object": "nothing"}, "slug of an object"),
        ({"columns": ["nme"]}, "unknown attribute 'nme'"),
        ({"columns": []}, "at least one"),
        ({"columns": ["name", "name"]}, "called name"),
        ({"columns": ["name"], "groupBy": "stage"}, "cannot be combined"),
        ({"groupBy": "nope"}, "groupBy"),
        ({"measures": measure("sum")}, "needs an attribute"),
        ({"measures": measure("sum name")}, "numbers and currencies only"),
        ({"measures": measure("max stage")}, "numbers, currencies and dates only"),
        ({"measures": measure("median amount")}, "measures[0].function"),
        ({"measures": measure("count", "count")}, "called count"),
        ({"groupBy": "stage", "sort": {"field": "amount"}}, "sort.field"),
        ({"sort": {"field": "nope"}}, "sort.field"),
        ({"limit": 0}, "limit"),
        ({"limit": 1_000_000}, "limit"),
        ({"filters": [{"attributeSlug": "nope", "operator": "equals", "value": "1"}]}, "nope"),
        ({"filters": [{"attributeSlug": "amount", "operator": "contains", "value": "1"}]}, "does not apply"),
        ({"filters": [{"attributeSlug": "amount", "operator": "isnt", "value": "1"}]}, "unknown operator"),
        ({"name": " "}, "name"),
        ({"group_by": "stage"}, "group_by"),
    ],
)
def test_a_wrong_definition_is_refused_and_nothing_is_loaded(crm: RunningService, definition: dict[str, Any], says: str) -> None:
    good = {"name": "Good", "object": "people"}
    with pytest.raises(Fault) as refused:
        load(crm, json.dumps({"reports": [good, {"name": "Bad", "object": "deals"} | definition]}))
    assert says in refused.value.message
    assert crm.client.get("/api/v1/reports").json() == {"reports": []}


def test_refusals_write_nothing(crm: RunningService) -> None:
    report = define(crm)
    other = define(crm, name="Other")
    made = run(crm, other)["id"]
    names = {"report": report, "made": made}
    check_all(
        crm,
        [
            Scenario("no report", "GET", f"/reports/{NIL}", 404),
            Scenario("run of no report", "POST", f"/reports/{NIL}/run", 404),
            Scenario("runs of no report", "GET", f"/reports/{NIL}/runs", 404),
            Scenario("no run", "GET", "/reports/{report}/runs/" + NIL, 404),
            Scenario("another report's run", "GET", "/reports/{report}/runs/{made}", 404),
            Scenario("too many", "GET", "/reports/{report}/runs?limit=101", 400, field="limit"),
            Scenario("not a number", "GET", "/reports/{report}/runs?limit=x", 400, field="limit"),
            Scenario("no way to create one", "POST", "/reports", 405, body={}),
        ],
        names,
    )


def test_reading_and_running_need_two_scopes_and_running_adds_no_event(crm: RunningService) -> None:
    report_id = define(crm)
    with crm.client_with(crm.key_for(["reports:read"])) as reader:
        assert reader.get(f"/api/v1/reports/{report_id}").status_code == 200
        answer = reader.post(f"/api/v1/reports/{report_id}/run")
        assert (answer.status_code, answer.json()["details"]) == (403, {"requiredScope": "reports:run"})
    assert crm.client.get(f"/api/v1/reports/{report_id}/runs").json() == {"runs": []}
    with crm.client_with(crm.key_for(["reports:run"])) as runner:
        assert runner.post(f"/api/v1/reports/{report_id}/run").status_code == 201
        assert runner.get("/api/v1/reports").status_code == 403
    assert crm.outbox() == []
