"""Reports and workflows in the browser: equivalent forms and YAML, results as table, chart and file, deletion."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

from crmctl.models import jsontext
from crmctl.service.console.cells import first_day
from crmctl.service.console.reports import draw, draw_line
from crmctl.service.console.workflows import actions_of, blocks_for
from crmctl.service.definitions.definitions_file import load_yaml
from crmctl.service.store.tx import Tx
from tests.service.console.conftest import Visitor
from tests.service.console.test_pages import NASTY
from tests.support.consolepages import add_ended_run
from tests.support.service import RunningService
from tests.support.stored_records import add


def definition(service: RunningService, report_id: str) -> Any:
    return service.client.get(f"/api/v1/reports/{report_id}").json()["definition"]


def test_a_report_is_created_in_a_form_changed_as_yaml_run_and_deleted(service: RunningService, visitor: Visitor) -> None:
    deals = service.object_id("deals")
    for stage, amount in (("won", 1200.5), ("won", 800), ("lost", 10)):
        data = {"name": f"{stage} <b>", "stage": stage, "amount": {"amount": amount, "currency": "EUR"}}
        assert service.client.post(f"/api/v1/objects/{deals}/records", json={"data": data}).status_code == 201
    form = {
        "name": NASTY,
        "object": "deals",
        "kind": "groups",
        "groupBy": "stage",
        "function": ["sum", "count", ""],
        "measured": ["amount", "", ""],
        "where": ["name", ""],
        "op": ["isNotEmpty", "contains"],
        "value": ["", ""],
        "sort": "sum_amount",
        "order": "desc",
    }
    made = visitor.send("/console/reports", **form)
    path = made.headers["location"].partition("?")[0]
    report = path.rpartition("/")[2]
    assert "<script>alert" not in visitor.follow(made).text
    asked = {
        "filters": [{"attributeSlug": "name", "operator": "isNotEmpty", "value": "true"}],
        "groupBy": "stage",
        "measures": [{"function": "sum", "attribute": "amount"}, {"function": "count"}],
        "sort": {"field": "sum_amount", "order": "desc"},
    }
    assert definition(service, report) == asked
    assert visitor.send("/console/reports", **form).status_code == 409, "names are unique"
    page = visitor.follow(visitor.send(f"{path}/run"))
    assert "2,000.50" in page.text
    assert re.findall(r'<th scope="col"[^>]*>([^<]*)', page.text) == ["Stage", "Currency", "Sum of Amount", "Number of records"]
    assert "<svg" in page.text
    assert "Sum of Amount by Stage" in page.text
    [file] = re.findall(r'href="([^"]+/csv)"', page.text)
    assert visitor.get(file).content.decode("utf-8-sig").splitlines()[:2] == ["stage,currency,sum_amount,count", "won,EUR,2000.5,2"]
    page = visitor.get(f"{path}/edit?as=yaml").text
    assert "groupBy: stage" in page
    refused = visitor.send(f"{path}/edit", **{"as": "yaml", "yaml": "name: renamed\nobject: deals\ngroupBy: nothing"})
    assert (refused.status_code, "unknown attribute" in refused.text, "groupBy: nothing" in refused.text) == (400, True, True)
    assert [report["name"] for report in service.client.get("/api/v1/reports").json()["reports"]] == [NASTY], (
        "the refused form changes nothing"
    )
    visitor.follow(visitor.send(f"{path}/edit", **{"as": "yaml", "yaml": "name: renamed\nobject: deals\ncolumns: [name]"}))
    assert definition(service, report) == {"columns": ["name"]}
    assert "This also deletes 1 stored run." in visitor.get(f"{path}/delete").text
    assert "is deleted" in visitor.follow(visitor.send(f"{path}/delete")).text
    assert service.client.get("/api/v1/reports").json()["reports"] == []


def test_a_workflow_is_created_changed_and_deleted_without_losing_hidden_parts(service: RunningService, visitor: Visitor) -> None:
    form: dict[str, Any] = {"name": "Greet", "trigger": "record/created", "object": "people", "enabled": "true"}
    assert "at least one action" in visitor.send("/console/workflows", **form).text
    first = {"a1:type": "updateRecord", "a1:object": "", "a1:f:score": "5", "a1:f:notes": "{{ data.a }}: 7"}
    second = {"a2:type": "callUrl", "a2:url": "https://example.com/x", "a2:body": '{"a": [1]}', "a2:headers": "a: b\nc: d: e"}
    made = visitor.send("/console/workflows", **form, **first, **second, action=["1", "2"])
    path = made.headers["location"].partition("?")[0]
    assert visitor.follow(made).text.count("Bearer") == 0
    call = {"type": "callUrl", "url": "https://example.com/x", "headers": {"a": "b", "c": "d: e"}, "body": {"a": [1]}}
    assert actions_in(visitor, path) == [{"type": "updateRecord", "data": {"score": 5, "notes": "{{ data.a }}: 7"}}, call]
    note = {"type": "createActivity", "title": "Hi", "participants": [{"type": "user", "id": "{{ data.who }}"}]}
    text = jsontext.dumps({"name": "Greet", "object": "people", "trigger": "record/created", "actions": [note, call]})
    visitor.follow(visitor.send(f"{path}/edit", **{"as": "yaml", "yaml": text}))
    kept = {f"a{number}:kept": jsontext.dumps(each) for number, each in ((1, note), (2, call))}
    moved = form | {"name": "Greeted", "action": ["2", "1"], "a1:type": "createActivity", "a1:title": "Ho", "a2:type": "callUrl"}
    page = visitor.send(f"{path}/edit", **moved | kept | {"do": "up 1"}).text
    assert page.index('id="action-1"') < page.index('id="action-2"')
    assert actions_in(visitor, path) == [note, call], "moving an action stores nothing"
    visitor.follow(visitor.send(f"{path}/edit", **moved | kept))
    assert actions_in(visitor, path) == [call, note | {"title": "Ho"}], "hidden parts move with their action"
    unknown = visitor.send(f"{path}/edit", **moved | kept | {"a1:type": "createRecord", "a1:object": "nowhere"})
    assert "Action 2: object must be the slug of an object" in unknown.text
    for wrong in (
        {"a2:body": "{"},
        {"a2:headers": "none"},
        {"a2:type": "nothing"},
        {"a2:kept": "["},
        {"trigger": "schedule", "cron": "never"},
    ):
        assert visitor.send(f"{path}/edit", **moved | kept | wrong).status_code == 400, wrong
    assert "is deleted" in visitor.follow(visitor.send(f"{path}/delete")).text
    assert visitor.get(path).status_code == 404


def actions_in(visitor: Visitor, path: str) -> Any:
    """Return the actions in the form's YAML."""
    found = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", visitor.get(f"{path}/edit?as=yaml").text, re.DOTALL)
    assert found
    return load_yaml(html.unescape(found[1]))["actions"]


def test_schedules_show_their_next_run(service: RunningService, visitor: Visitor) -> None:
    text = "name: Nightly\ntrigger: schedule\ncron: '0 3 * * *'\nactions:\n- {type: createActivity, title: Night}"
    path = visitor.send("/console/workflows", **{"as": "yaml", "yaml": text}).headers["location"].partition("?")[0]
    assert re.search(r"Next run</dt><dd><time[^>]*>[0-9]+ [A-Z][a-z]+ [0-9]+, 03:00<", visitor.get(path).text)


def test_failed_reports_are_named_on_the_overview(service: RunningService, visitor: Visitor) -> None:
    made = visitor.send("/console/objects", plural="Passing")
    gone = made.headers["location"].partition("?")[0]
    path = visitor.send("/console/reports", name="Orphan <b>", object="passing", kind="groups", function="count", measured="")
    report = path.headers["location"].partition("?")[0]
    visitor.follow(visitor.send(f"{report}/run"))
    assert "Needs attention" not in visitor.get("/console").text
    visitor.follow(visitor.send(f"{gone}/delete"))
    visitor.follow(visitor.send(f"{report}/run"))
    page = visitor.get("/console").text
    assert "Needs attention" in page
    assert "Orphan &lt;b&gt;" in page
    assert "has been deleted" in page


ACTIONS: list[dict[str, Any]] = [
    {
        "type": "updateRecord",
        "data": {
            **{"notes": "5\r\n6 ", "score": 5, "name": {"first": "{{ x }}", "middle": ""}, "address": "{{ z }}", "gone": {"a": 1}},
            **{"tags": ["a", "{{ y }}"], "company": "{{ y }}", "subscribed": False, "status": None, "birthday": "{{ now }}"},
        },
        "recordId": "{{ y }}",
    },
    {"type": "updateRecord", "data": {"tags": "{{ record.data.tags }}", "subscribed": "{{ x }}"}},
    {"type": "createRecord", "object": "deals", "data": {"amount": {"amount": "{{ x }}", "currency": "{{ y }}"}, "name": {}}},
    {"type": "createActivity", "title": "Hi", "linkedRecords": [], "summary": "", "activityDate": "{{ now }}"},
    {"type": "callUrl", "url": "https://example.com", "headers": {"a": "b"}, "body": None, "repeat": True},
    {"type": "callUrl", "url": "{{ x }}", "body": {"a": ["{{ x }}", 1.50, None]}},
]


def test_actions_survive_their_form_unchanged(service: RunningService) -> None:
    def back(tx: Tx) -> Any:
        return actions_of(tx, blocks_for(tx, ACTIONS, "people"))

    assert service.engine.read(back) == ACTIONS


def test_a_condition_without_a_value_is_refused_not_ignored(service: RunningService, visitor: Visitor) -> None:
    unfinished = {"where": ["email", ""], "op": ["contains", "contains"], "value": ["", ""]}
    for path, form in (
        ("reports", {"name": "R", "object": "people", "kind": "records"}),
        ("workflows", {"name": "W", "object": "people", "trigger": "record/created"}),
    ):
        answer = visitor.send(f"/console/{path}", **form, **unfinished)
        assert (answer.status_code, "has no value" in answer.text) == (400, True)
        assert re.search(r'value="email"[^>]* selected', answer.text), "the form keeps the condition"
        assert service.client.get(f"/api/v1/{path}").json()[path] == []
    service.client.post(f"/api/v1/objects/{service.object_id('people')}/records", json={"data": {"email": "a@example.com"}})
    listed = visitor.get("/console/records/people?where=email&op=contains&value=")
    assert (listed.status_code, "&#39;email&#39; (contains) has no value" in listed.text) == (400, True)
    assert "a@example.com" not in listed.text
    beyond = visitor.get("/console/records/people?where=email&op=contains&value=a&page=9").text
    assert "There are no more records" in beyond, "the page is empty, not the list"


@pytest.mark.parametrize("path", ["/console/reports", "/console/workflows"])
def test_a_wrong_value_is_named_in_the_words_of_the_page(visitor: Visitor, path: str) -> None:
    action = {"action": "1", "a1:type": "createActivity", "a1:title": "x", "trigger": "record/created", "kind": "records"}
    condition = {"where": "score", "op": "greaterThanOrEqual", "value": "many"}
    refused = visitor.send(path, name="Wrong", object="people", **action, **condition)
    message = re.search(r'role="alert"[^>]*>([^<]*)', refused.text)
    assert message
    assert "(is at least)" in message[1]
    assert "greaterThan" not in message[1]


def test_a_report_groups_dates_by_period(service: RunningService, visitor: Visitor) -> None:
    for day, amount in (("2026-01-31", 1), ("2026-02-01", 2), ("2026-02-28", 4)):
        add(service, "deals", name="D", close_date=day, amount={"amount": amount, "currency": "EUR"})
    form = {"name": "Months", "object": "deals", "kind": "groups", "groupBy": "close_date", "groupPeriod": "month"}
    made = visitor.send("/console/reports", **form, function=["sum"], measured=["amount"])
    path = made.headers["location"].partition("?")[0]
    assert "Close date (by month)" in visitor.get(path).text
    assert '<option value="month" selected>' in visitor.get(f"{path}/edit").text
    run = visitor.follow(visitor.send(f"{path}/run")).text
    assert re.findall(r"<td[^>]*>(Jan 2026|Feb 2026|[0-9]+)</td>", run) == ["Jan 2026", "1", "Feb 2026", "6"]
    assert "€6" in run
    refused = visitor.send("/console/reports", **form | {"name": "No", "groupBy": "stage"}, function=["sum"], measured=["amount"])
    assert (refused.status_code, "needs a groupBy that is a date" in refused.text) == (400, True)


def test_a_report_of_figures_without_figures_is_refused(service: RunningService, visitor: Visitor) -> None:
    form: dict[str, Any] = {"name": "R", "object": "deals", "kind": "groups", "groupBy": ""}
    for function, measured, expected in (("", "", "Choose a figure"), ("", "amount", "Choose what figure 1 shows")):
        answer = visitor.send("/console/reports", **form, function=[function, ""], measured=[measured, ""])
        assert (answer.status_code, expected in answer.text) == (400, True)
    assert service.client.get("/api/v1/reports").json()["reports"] == [], "no report without figures is created"


def test_a_run_shows_its_trigger_and_its_error_in_words(service: RunningService, visitor: Visitor) -> None:
    text = "name: Calls\nobject: people\ntrigger: record/created\nactions:\n- {type: createActivity, title: Call}"
    path = visitor.send("/console/workflows", **{"as": "yaml", "yaml": text}).headers["location"].partition("?")[0]
    run = add_ended_run(service, path.rpartition("/")[2], "action 1 (createActivity): title: 'x' is undefined")
    page = visitor.get(f"{path}/runs/{run}").text
    assert "<dt>Trigger</dt><dd>API</dd>" in page
    assert '<p class="problem">Action 1 (createActivity): title: ' in page
    listed = visitor.get(path).text
    assert '<td data-label="Trigger">API</td>' in listed
    assert "<dt>Trigger</dt><dd>Record created</dd>" in listed


def test_a_failed_workflow_needs_attention_despite_waiting_runs(service: RunningService, visitor: Visitor) -> None:
    text = "name: Nightly\ntrigger: schedule\ncron: '0 * * * *'\nactions:\n- {type: createActivity, title: Night}"
    path = visitor.send("/console/workflows", **{"as": "yaml", "yaml": text}).headers["location"].partition("?")[0]
    workflow = path.rpartition("/")[2]
    assert "No run in the last 90 days" in visitor.get(path).text
    add_ended_run(service, workflow, "the call failed")
    for _ in range(2):
        visitor.follow(visitor.send(f"{path}/run"))
    assert "the call failed" in visitor.get("/console").text
    service.clock.advance(7200)
    assert "the run has not started" in visitor.get(path).text, "this service runs no jobs"


def test_a_chart_shows_every_figure() -> None:
    chart = draw("t", [("a", -20, "-20"), ("b", 60, "60"), ("c", None, "")])
    assert chart is not None
    assert [(mark.x, mark.length) for mark in chart.marks] == [(0, 25), (25, 75)]
    assert chart.left_out == 1
    assert draw("t", [("a", 0, "0"), ("b", 0, "0")]) is None
    assert draw("t", [("a", 10**400, "")] * 2) is None


def test_a_line_chart_has_round_steps_and_points_placed_by_time() -> None:
    line = draw_line("t", [("2026-Q4", 67, "67"), ("2026-Q1", -20, "-20"), ("2026-Q2", 0, "0")])
    assert line is not None
    assert [text for _, text in line.ticks] == ["-20", "0", "20", "40", "60", "80"]
    assert [mark.label for mark in line.marks] == ["Q1 2026", "Q2 2026", "Q4 2026"]
    assert [round(mark.x) for mark in line.marks] == [0, 33, 100]
    days = [first_day(text) for text in ("2026", "2026-01", "2026-W02", "2026-02-01", "2026-02-01T23:00:00Z")]
    assert [day - days[0] for day in days] == [0, 0, 4, 31, 31]
    assert draw_line("t", [("2026-01-01", 1, "1")]) is None


def test_an_action_that_sets_nothing_is_refused(visitor: Visitor) -> None:
    action = {"action": "1", "a1:type": "updateRecord", "a1:kept": "{}", "a1:object": ""}
    refused = visitor.send("/console/workflows", name="Nothing", trigger="record/created", object="people", **action)
    assert refused.status_code == 400
    assert "Action 1: give at least one attribute a value" in refused.text


def test_a_line_of_tiny_numbers_is_left_out() -> None:
    assert draw_line("Tiny", [("2026-01-01", 5e-324, "5e-324"), ("2026-02-01", 0, "0")]) is None
    assert draw_line("Small", [("2026-01-01", 2e-300, "2e-300"), ("2026-02-01", 0, "0")]) is not None


def test_an_endless_limit_is_refused(visitor: Visitor) -> None:
    refused = visitor.send("/console/reports", name="All", object="people", kind="list", limit="9" * 5000)
    assert (refused.status_code, "limit" in refused.text) == (400, True)
