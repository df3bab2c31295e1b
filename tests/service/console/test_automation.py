"""Reports and workflows in the browser: forms and YAML that mean the same, results as table, chart and file, deletion."""

from __future__ import annotations

import re
from typing import Any

import pytest

from crmctl.service.console.action_form import ActionBlock, actions_of, blocks_for
from crmctl.service.console.charts import draw
from crmctl.service.faults import BadRequest
from tests.service.console.conftest import Visitor
from tests.service.console.test_pages import NASTY
from tests.support.service import RunningService


def definition(service: RunningService, report_id: str) -> Any:
    return service.client.get(f"/api/v1/reports/{report_id}").json()["definition"]


def test_a_report_is_made_with_a_form_changed_as_yaml_run_and_deleted(service: RunningService, visitor: Visitor) -> None:
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
    assert visitor.send("/console/reports", **form).status_code == 400, "a name is taken once"
    ran = visitor.follow(visitor.send(f"{path}/run"))
    assert "2,000.50" in ran.text
    assert re.findall(r'<th scope="col"[^>]*>([^<]*)', ran.text) == ["Stage", "Sum of Amount", "Number of records"]
    assert "<svg" in ran.text
    assert "Sum of Amount by Stage" in ran.text
    [file] = re.findall(r'href="([^"]+/csv)"', ran.text)
    assert visitor.get(file).content.decode("utf-8-sig").splitlines()[:2] == ["stage,sum_amount,count", "won,2000.5,2"]
    page = visitor.get(f"{path}/edit?as=yaml").text
    assert "groupBy: stage" in page
    refused = visitor.send(f"{path}/edit", **{"as": "yaml", "yaml": "name: renamed\nobject: deals\ngroupBy: nothing"})
    assert (refused.status_code, "unknown attribute" in refused.text, "groupBy: nothing" in refused.text) == (400, True, True)
    assert [each["name"] for each in service.client.get("/api/v1/reports").json()["reports"]] == [NASTY], "nothing of it stays"
    visitor.follow(visitor.send(f"{path}/edit", **{"as": "yaml", "yaml": "name: renamed\nobject: deals\ncolumns: [name]"}))
    assert definition(service, report) == {"columns": ["name"]}
    assert "1 stored run goes" in visitor.get(f"{path}/delete").text
    assert "is deleted" in visitor.follow(visitor.send(f"{path}/delete")).text
    assert service.client.get("/api/v1/reports").json()["reports"] == []


def test_a_workflow_is_made_changed_without_losing_what_the_form_does_not_show_and_deleted(
    service: RunningService, visitor: Visitor
) -> None:
    blank = {f"action-{name}": ["", "", ""] for name in ("type", "object", "data", "title", "summary", "url", "body")}
    form: dict[str, Any] = blank | {"name": "Greet", "trigger": "record/created", "object": "people", "enabled": "true"}
    assert "at least one action" in visitor.send("/console/workflows", **form).text
    form |= {
        "action-type": ["updateRecord", "callUrl", ""],
        "action-data": ['score: 5\r\nnotes: "{{ record.data.email }}: 7"', "", ""],
        "action-url": ["", "https://example.com/x", ""],
        "action-body": ["", '{"a": [1]}', ""],
    }
    made = visitor.send("/console/workflows", **form)
    path = made.headers["location"].partition("?")[0]
    workflow = path.rpartition("/")[2]
    visitor.follow(made)
    stored = service.client.get(f"/api/v1/workflows/{workflow}").json()
    assert stored["enabled"] is True
    text = (
        "name: Greet\nobject: people\ntrigger: record/created\nactions:\n- {type: callUrl, url: 'https://example.com/x', headers: {a: b}}"
    )
    visitor.follow(visitor.send(f"{path}/edit", **{"as": "yaml", "yaml": text}))
    form |= {"action-type": ["callUrl", ""], "action-url": ["https://example.com/y", ""], "name": "Greeted"}
    visitor.follow(
        visitor.send(
            f"{path}/edit",
            **form
            | {name: form[name][-2:] for name in form if name.startswith("action-")}
            | {"action-type": ["callUrl", ""], "action-url": ["https://example.com/y", ""], "action-body": ["", ""]},
        )
    )
    page = visitor.get(f"{path}/edit?as=yaml").text
    assert "https://example.com/y" in page
    assert "headers:" in page
    refused = visitor.send(f"{path}/edit", **form | {"trigger": "schedule", "cron": "never"})
    assert refused.status_code == 400
    assert "is deleted" in visitor.follow(visitor.send(f"{path}/delete")).text
    assert visitor.get(path).status_code == 404


def test_schedules_say_when_they_run_next_and_how_the_last_runs_went(service: RunningService, visitor: Visitor) -> None:
    text = "name: Nightly\ntrigger: schedule\ncron: '0 3 * * *'\nactions:\n- {type: createActivity, title: Night}"
    path = visitor.send("/console/workflows", **{"as": "yaml", "yaml": text}).headers["location"].partition("?")[0]
    assert re.search(r"Next run</dt><dd><time[^>]*>[0-9-]+ 03:00:00 UTC", visitor.get(path).text)


def test_what_failed_last_is_named_on_the_overview(service: RunningService, visitor: Visitor) -> None:
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


ACTIONS = [
    {"type": "updateRecord", "data": {"notes": "5", "score": 5, "tags": ["a"], "name": {"first": "{{ x }}"}}, "recordId": "{{ y }}"},
    {"type": "createActivity", "title": "Hi", "linkedRecords": [], "summary": ""},
    {"type": "callUrl", "url": "https://example.com", "headers": {"a": "b"}, "body": None, "repeat": True},
]


def test_actions_come_back_from_their_form_as_they_were() -> None:
    assert actions_of(blocks_for(ACTIONS), ACTIONS) == ACTIONS
    typed = ActionBlock("createRecord", "people", 'notes: "5"\nscore: 5\nemail: a@example.com')
    assert actions_of([typed], []) == [
        {"type": "createRecord", "object": "people", "data": {"notes": "5", "score": 5, "email": "a@example.com"}}
    ]
    for wrong in (ActionBlock("createRecord", "", "no colon"), ActionBlock("callUrl", body="{"), ActionBlock("nothing")):
        with pytest.raises(BadRequest, match="action 1"):
            actions_of([wrong], [])


def test_a_chart_has_round_steps_and_a_place_for_every_figure() -> None:
    chart = draw("t", [("a", -20, "-20"), ("b", 67, "67"), ("c", None, "")], is_time=False)
    assert chart is not None
    assert [text for _, text in chart.ticks] == ["-20", "0", "20", "40", "60", "80"]
    assert (len(chart.marks), chart.left_out) == (2, 1)
    assert all(0 <= mark.x <= 640 and mark.x + mark.length <= 640 for mark in chart.marks)
    line = draw("t", [("2026-02", 2, "2"), ("2026-01", 1, "1")], is_time=True)
    assert line is not None
    assert [mark.label for mark in line.marks] == ["2026-01", "2026-02"]
    assert draw("t", [("a", 0, "0"), ("b", 0, "0")], is_time=False) is None
    assert draw("t", [("a", 10**400, "")] * 2, is_time=False) is None
