"""`crmctl reports` with services that answer differently: names, runs in any order, results of any shape, charts."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from tests.support.cli import Result
from tests.support.fakecrm import Answer, FakeCrm
from tests.support.inprocess import run_here

REPORT = "0b4e1d52-6a37-4a3f-9d5e-1f2a3b4c5d6e"
OTHER = "1c5f2e63-7b48-4b40-8e6f-2a3b4c5d6e7f"
RUN = "2d603f74-8c59-4c51-9f70-3b4c5d6e7f80"
GROUPS = [{"stage": "won", "count": 30, "amount": 1234.5}, {"stage": "lost", "count": 15, "amount": 10}]


def service(results: Any = None, **more: Any) -> FakeCrm:
    """A report with one run; `results` names the place of its results."""
    run = {"id": RUN, "status": "completed", "resultCount": 2, "startedAt": "2026-05-01T12:00:00.000Z"}
    return FakeCrm(
        {
            "GET /reports": lambda asked: {"reports": [{"id": REPORT, "name": "Deals by stage"}, {"id": OTHER, "name": "All people"}]},
            f"GET /reports/{REPORT}": lambda asked: {"report": {"id": REPORT, "name": "Deals by stage", "kind": "grouped"}},
            f"GET /reports/{REPORT}/runs": lambda asked: {"runs": [run] if asked.query.get("offset") == "0" else []},
            f"GET /reports/{REPORT}/runs/{RUN}": lambda asked: {"run": {**run, **(more or {"results": results})}},
        }
    )


def results(fake: FakeCrm, *options: str, env: dict[str, str] | None = None) -> Result:
    with fake:
        return run_here("reports", "results", "Deals by stage", *options, env={**fake.env, **(env or {})})


def test_a_report_by_name_and_by_id() -> None:
    with service() as fake:
        assert len(run_here("reports", "list", env=fake.env).ok().json()) == 2
        named = run_here("reports", "get", "Deals by stage", env=fake.env).ok().json()
        assert run_here("reports", "get", REPORT, env=fake.env).ok().json() == named == {
            "id": REPORT, "name": "Deals by stage", "kind": "grouped",
        }  # fmt: skip
        assert len(fake.of("GET /reports")) == 2, "an id needs no look-up"
        assert run_here("reports", "runs", "Deals by stage", "-o", "ids", env=fake.env).ok().out.split() == [RUN]


def test_a_report_by_an_id_that_is_no_uuid() -> None:
    reports = [{"id": "rep_2", "name": "rep_1"}, {"id": "rep_1", "name": "Deals"}]
    with FakeCrm({"GET /reports": lambda _: {"reports": reports}, "GET /reports/rep_1": lambda _: reports[1]}) as fake:
        assert run_here("reports", "get", "rep_1", "-q", "name", env=fake.env).ok().json() == "Deals"


def test_money_in_results_is_shown_as_money() -> None:
    rows = [{"name": "Ada", "amount": {"amount": 3600, "currency": "EUR"}}, {"name": "Bob", "amount": {"amount": 12, "currency": "USD"}}]
    assert results(service(rows), "-o", "table").ok().out.splitlines() == [
        "name        amount",
        "Ada   3,600.00 EUR",
        "Bob      12.00 USD",
    ]


def test_unknown_names_suggest_the_nearest_and_double_names_list_both_ids() -> None:
    def twice(_: Any) -> Any:
        return [{"id": REPORT, "name": "Twins"}, {"id": OTHER, "name": "Twins"}]

    with service() as fake:
        unknown = run_here("reports", "get", "deals by stages", env=fake.env).exits(3)
        assert "Deals by stage" in unknown.error()["hint"]
        fake.routes["GET /reports"] = twice
        double = run_here("reports", "run", "Twins", env=fake.env).exits(2)
        assert double.error()["details"] == {"ids": [REPORT, OTHER]}
        assert REPORT in double.error()["message"]
        assert OTHER in double.error()["message"]


@pytest.mark.parametrize("wrap", [lambda run: {"run": run}, lambda run: run, lambda run: {"data": {"run": run}}])
def test_run_shows_the_run(wrap: Any) -> None:
    run = {"id": RUN, "status": "completed", "resultCount": 2, "extra": True}
    with service() as fake:
        fake.routes[f"POST /reports/{REPORT}/run"] = lambda asked: Answer(201, wrap(run))
        assert run_here("reports", "run", "Deals by stage", env=fake.env).ok().json() == run
        preview = run_here("reports", "run", REPORT, "--dry-run", env=fake.env).ok().json()
        assert (preview["method"], preview["path"]) == ("POST", f"/api/v1/reports/{REPORT}/run")
        assert len(fake.of(f"POST /reports/{REPORT}/run")) == 1
        run_here("reports", "run", REPORT, env={**fake.env, "CRMCTL_READ_ONLY": "1"}).exits(2)
        assert len(fake.of(f"POST /reports/{REPORT}/run")) == 1


@pytest.mark.parametrize("order", ["rising", "falling", "mixed", "created"])
def test_the_newest_run_is_taken_whatever_the_order_of_the_list(order: str) -> None:
    field = "createdAt" if order == "created" else "startedAt"
    runs = [
        {"id": f"run-{number}", "status": "completed", field: f"2026-05-{number // 10 + 1:02}T12:{number % 10:02}:00Z"}
        for number in range(240)
    ]
    newest = runs[-1]["id"]
    if order == "falling":
        runs.reverse()
    elif order != "rising":
        runs = runs[-30:] + runs[:-30]

    def page(asked: Any) -> Any:
        start, length = int(asked.query["offset"]), int(asked.query["limit"])
        return {"runs": runs[start : start + length]}

    with service() as fake:
        fake.routes[f"GET /reports/{REPORT}/runs"] = page
        fake.routes[f"GET /reports/{REPORT}/runs/{newest}"] = lambda asked: {"id": newest, "results": [1]}
        assert run_here("reports", "results", "Deals by stage", env=fake.env).ok().json() == [1]
        assert len(fake.of(f"GET /reports/{REPORT}/runs")) == (1 if order == "falling" else 3)


def test_a_report_without_runs_and_a_run_without_results() -> None:
    with service() as fake:
        fake.routes[f"GET /reports/{REPORT}/runs"] = lambda asked: []
        none = run_here("reports", "results", REPORT, env=fake.env).exits(3)
        assert none.error()["code"] == "no_runs"
    empty = results(service(None)).ok()
    assert (empty.json(), empty.err.strip()) == ([], "no results found")


def table_rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


TWO = [{"stage": "won", "count": 3}, {"stage": "lost", "count": 2}]


@pytest.mark.parametrize(
    "shape",
    [
        {"results": TWO},
        {"results": {"rows": TWO}},
        {"data": TWO},
        {"data": {"results": {"data": TWO}}},
        {"rows": TWO, "columns": ["stage", "count"]},
        {"results": {"columns": ["stage", "count"], "rows": [["won", 3], ["lost", 2]]}},
        {"columns": [{"key": "stage", "label": "Stage"}, {"key": "count"}], "rows": [["won", 3], ["lost", 2]]},
        {"results": [["stage", "count"], ["won", 3], ["lost", 2]]},
        {"results": {"stage": ["won", "lost"], "count": [3, 2]}},
        {"breakdown": TWO},
    ],
)
def test_rows_of_every_tabular_shape_are_the_same_table_and_csv(shape: dict[str, Any]) -> None:
    shown = results(service(**shape), "-o", "csv").ok()
    assert list(csv.reader(io.StringIO(shown.out))) == [["stage", "count"], ["won", "3"], ["lost", "2"]]
    table = results(service(**shape), "-o", "table").ok()
    assert table_rows(table.out) == [["stage", "count"], ["won", "3"], ["lost", "2"]]
    assert results(service(**shape), "-o", "jsonl", "--fields", "count").ok().lines() == [{"count": 3}, {"count": 2}]
    assert "won" in json.dumps(results(service(**shape)).ok().json())


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ({"won": 3, "lost": 2}, [["name", "value"], ["won", "3"], ["lost", "2"]]),
        ({"won": {"count": 3}, "lost": {"count": 2}}, [["name", "count"], ["won", "3"], ["lost", "2"]]),
        ({"labels": ["won", "lost"], "datasets": [{"label": "n", "data": [3, 2]}]}, [["label", "n"], ["won", "3"], ["lost", "2"]]),
        ({"categories": ["w"], "series": [{"name": "n", "data": [3]}, {"name": "m", "data": [4]}]}, [["label", "n", "m"], ["w", "3", "4"]]),
        ({"groups": [{"key": "won", "measures": {"count": 3}}], "total": 3}, [["key", "count"], ["won", "3"]]),
        (42, [["value"], ["42"]]),
        ("fine", [["value"], ["fine"]]),
        ([1, 2], [["value"], ["1"], ["2"]]),
        ([["a", "b"], ["c", "d"]], [["1", "2"], ["a", "b"], ["c", "d"]]),
    ],
)  # fmt: skip
def test_other_shapes_become_rows_too_and_json_keeps_them_as_they_came(given: Any, rows: list[list[str]]) -> None:
    assert list(csv.reader(io.StringIO(results(service(given), "-o", "csv").ok().out))) == rows
    assert results(service(given)).ok().json() == given


def test_digits_survive() -> None:
    raw = '{"id": "%s", "results": [{"sum": 12345678901234567890.123456789}]}' % RUN  # noqa: UP031 - braces
    from tests.support.httpserver import Reply, ScriptedServer

    with ScriptedServer(*[Reply(body=raw.encode(), content_type="application/json")] * 2) as server:
        env = {"CRMCTL_BASE_URL": server.origin, "CRMCTL_API_KEY": "k"}
        assert "12345678901234567890.123456789" in run_here("reports", "results", REPORT, RUN, env=env).ok().out
        assert "12,345,678,901,234,567,890.123456789" in run_here("reports", "results", REPORT, RUN, "--chart", env=env).ok().out


def test_a_chart_is_as_wide_as_the_terminal_with_the_values_at_the_end() -> None:
    wide = {"COLUMNS": "60", "LANG": "de_DE.UTF-8"}
    lines = results(service(GROUPS), "--chart", env=wide).ok().out.splitlines()
    assert lines[0] == "count"
    won, lost = lines[1:3]
    assert won.startswith("won   █")
    assert won.endswith("█ 30")
    assert won.count("█") == 2 * lost.count("█")
    assert lost.endswith(" 15")
    assert 55 <= len(won) <= 60
    assert lines[3:5] == ["", "amount"]
    assert lines[5].endswith("1,234.5")
    assert lines[6].endswith("▎ 10")
    narrow = results(service(GROUPS), "--chart", env={"COLUMNS": "30", "LANG": "C.UTF-8"}).ok().out.splitlines()
    assert max(map(len, narrow)) <= 30


def test_numbers_below_zero_grow_to_the_left_of_one_axis() -> None:
    rows = [{"month": "May", "profit": -20}, {"month": "June", "profit": 20}, {"month": "July", "profit": 0}]
    lines = results(service(rows), "--chart", env={"COLUMNS": "60"}).ok().out.splitlines()
    may, june, july = lines[1:]
    assert may.index("█") < june.index("█")
    assert may.rindex("█") + 1 == june.index("█")
    assert may.endswith("█ -20")
    assert july.endswith(" 0")
    assert "█" not in july


@pytest.mark.parametrize("given", [[], [{"name": "Ada"}], None, "text", {"a": "b"}])
def test_nothing_to_chart_is_refused(given: Any) -> None:
    refused = results(service(given), "--chart").exits(2)
    assert refused.out == ""
    assert refused.error()["code"] == "nothing_to_chart"


@pytest.mark.parametrize("options", [["-o", "json"], ["--json"], ["-q", "[]"], ["--fields", "count"]])
def test_a_chart_goes_with_no_machine_format(options: list[str]) -> None:
    fake = service(GROUPS)
    assert "--chart" in results(fake, "--chart", *options).exits(2).error()["message"]
    assert fake.asked == []


def test_values_of_a_report_cannot_control_the_terminal() -> None:
    out = results(service([{"stage": "a\x1b[31m\nb", "count": 1}]), "--chart").ok().out
    assert "\x1b" not in out
    assert len(out.splitlines()) == 2


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        ("failed", 7, f"run {RUN} ended as failed: no such column"),
        ("running", 0, f"the status of run {RUN} is running: no such column"),
        ("COMPLETED", 0, ""),
        ("succeeded", 0, ""),
    ],
)
def test_a_run_that_did_not_complete_is_pointed_out(status: str, code: int, told: str) -> None:
    run = {"id": RUN, "status": status, "error": "no such column"}
    with service(status=status, error="no such column", results=[]) as fake:
        fake.routes[f"POST /reports/{REPORT}/run"] = lambda asked: Answer(201, {"run": run})
        ran = run_here("reports", "run", REPORT, "-o", "table", env=fake.env).exits(code)
        assert (RUN in ran.out, told in ran.err, bool(ran.err)) == (True, True, bool(told))
        shown = run_here("reports", "results", REPORT, "-o", "table", env=fake.env).ok()
        assert (f"the status of run {RUN} is {status}: no such column" in shown.err) is bool(told)
