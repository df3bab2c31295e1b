"""Workflows through HTTP: their triggers, actions, events, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from crmctl.service.background import LOOPBACK
from crmctl.service.context import new_id
from crmctl.service.definitions.definitions_file import dump_sections, load_document, parse_document
from crmctl.service.faults import Fault
from crmctl.service.http.schemas import SHAPES
from crmctl.service.outbound.guard import TargetGuard
from crmctl.service.workflows.run_executor import switch
from crmctl.values import yaml_text
from tests.contract.scenarios import NIL, Scenario, check_all, check_documented
from tests.support.clock import FakeClock
from tests.support.databases import ANY_ENGINE
from tests.support.service import RunningService
from tests.support.workflows import Machinery

EXAMPLE = """
members:    [{name: Ada, email: ada@example.com, role: admin}]
objects:    [{slug: projects, singularName: Project, pluralName: Projects, attributes: [{name: Stage, slug: stage, type: select,
  config: {options: [new, done]}, isRequired: true}]}]
reports:
  - {name: Deals by stage, object: deals, filters: [{attributeSlug: amount, operator: greaterThan, value: "0"}], groupBy: stage,
     measures: [{function: sum, attribute: amount}, {function: count}]}
  - {name: All people, object: people, columns: [name, email], sort: {field: created_at, order: desc}, limit: 1000}
workflows:
  - name: Greet new people
    object: people
    trigger: record/created
    enabled: true
    conditions: [{attributeSlug: email, operator: isNotEmpty, value: "true"}]
    actions:
      - {type: createActivity, title: "Say hello to {{ record.data.email }}"}
      - {type: updateRecord, data: {status: contacted}}
"""


@pytest.fixture
def work(crm: RunningService) -> Machinery:
    return Machinery(crm, TargetGuard(LOOPBACK))


def test_the_example_of_the_file_format_runs(work: Machinery) -> None:
    document = parse_document(EXAMPLE)
    first = load_document(work.crm.engine, document, clock=work.crm.clock, ids=new_id)
    assert first["workflows"] == {"created": 1, "updated": 0, "unchanged": 0}
    assert load_document(work.crm.engine, document, clock=work.crm.clock, ids=new_id)["workflows"]["unchanged"] == 1
    [workflow] = work.crm.client.get("/api/v1/workflows").json()["workflows"]
    assert set(workflow) == {"id", "name", "description", "trigger", "enabled", "createdAt", "object", "createdBy"}
    assert (workflow["trigger"], workflow["enabled"], workflow["object"]["slug"]) == ("record/created", True, "people")
    greeted, ignored = work.record(email="ada@example.com"), work.record(name="Nobody")
    work.settle()
    [run] = work.runs(workflow["id"])
    assert set(run) == {"id", "status", "title", "triggerEvent", "error", "startedAt", "completedAt", "createdAt"}
    assert (run["status"], run["title"], run["triggerEvent"], run["error"]) == ("completed", "Greet new people", "record/created", None)
    assert work.stored(greeted)["status"] == "contacted"
    assert "status" not in work.stored(ignored)
    [activity] = work.activities()
    assert activity["title"] == "Say hello to ada@example.com"
    assert activity["linkedRecords"] == [{"objectId": greeted["objectId"], "recordId": greeted["id"]}]
    [(kind, payload)] = work.events("workflow.")
    assert kind == "workflow.completed"
    assert (payload["workflowId"], payload["runId"], payload["status"]) == (workflow["id"], run["id"], "completed")
    assert payload["completedAt"] == run["completedAt"]


def test_a_dump_loads_back_unchanged(work: Machinery) -> None:
    load_document(work.crm.engine, parse_document(EXAMPLE), clock=work.crm.clock, ids=new_id)
    clearing = """
workflows:
  - name: Clear
    object: deals
    trigger: record/updated
    conditions: [{attributeSlug: close_date, operator: greaterThan, value: 2026-01-31}]
    actions: [{type: updateRecord, data: {close_date: null}}, {type: updateRecord, data: {close_date: 2026-02-01}}]
"""
    load_document(work.crm.engine, parse_document(clearing), clock=work.crm.clock, ids=new_id)
    work.load({"name": "Nightly", "trigger": "schedule", "cron": "0 8 * * 1", "object": None}, {"name": "Off", "enabled": False})
    text = yaml_text.dumps(work.crm.engine.read(dump_sections))
    assert "close_date: null" in text
    again = load_document(work.crm.engine, parse_document(text), clock=work.crm.clock, ids=new_id)
    assert again["workflows"] == {"created": 0, "updated": 0, "unchanged": 4}
    assert again["reports"]["unchanged"] == 2
    assert yaml_text.dumps(work.crm.engine.read(dump_sections)) == text


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [("record/created", ["created"]), ("record/updated", ["created", "updated"]), ("record/deleted", ["created", "updated", "deleted"])],
)
def test_record_triggers_see_their_event_with_the_data_of_its_moment(work: Machinery, trigger: str, expected: list[str]) -> None:
    template = {"type": "createActivity", "title": "{{ event.type }} {{ record.data.notes }}", "linkedRecords": []}
    [workflow] = work.load({"trigger": trigger, "actions": [template]})
    record = work.record(notes="created")
    path = f"/api/v1/objects/{record['objectId']}/records/{record['id']}"
    work.crm.client.patch(path, json={"data": {"notes": "updated"}})
    work.crm.client.delete(path)
    work.settle()
    notes = {"created": "created", "updated": "updated", "deleted": "updated"}[expected[-1]]
    assert [activity["title"] for activity in work.activities()] == [f"record.{expected[-1]} {notes}"]
    assert work.states(workflow) == ["completed"]


def test_activity_triggers_know_the_activity_and_the_object(work: Machinery) -> None:
    company = work.record("companies", name="Acme")
    action = {"type": "createRecord", "object": "companies", "data": {"name": "{{ activity.title }}"}}
    [linked, every] = work.load(
        {"trigger": "activity/created", "object": "companies", "actions": [action]},
        {
            "trigger": "activity/created",
            "object": None,
            "conditions": [{"attributeSlug": "title", "operator": "startsWith", "value": "met"}],
            "actions": [action],
        },
    )
    link = {"objectId": company["objectId"], "recordId": company["id"]}
    work.crm.client.post("/api/v1/activities", json={"title": "Met Bob", "linkedRecords": [link]})
    work.crm.client.post("/api/v1/activities", json={"title": "Called Bob"})
    work.crm.client.post("/api/v1/activities", json={"title": "MET nobody"})
    work.settle()
    assert (len(work.states(linked)), len(work.states(every))) == (1, 2)
    assert set(work.states(linked) + work.states(every)) == {"completed"}


def test_other_objects_disabled_workflows_and_unmet_conditions_start_no_run(work: Machinery) -> None:
    conditions = [{"attributeSlug": "email", "operator": "endsWith", "value": "@acme.com"}]
    ids = work.load({"object": "companies"}, {"enabled": False}, {"conditions": conditions}, {"trigger": "record/updated"})
    work.record(email="a@other.com")
    work.settle()
    assert [work.states(workflow_id) for workflow_id in ids] == [[], [], [], []]
    assert work.activities() == []
    assert work.events("workflow.") == []


OPERATORS = [
    ("equals", "Ada", {"Ada"}),
    ("notEquals", "Ada", {"ada", None}),
    ("contains", "D", {"Ada", "ada"}),
    ("notContains", "d", {None}),
    ("startsWith", "aD", {"Ada", "ada"}),
    ("endsWith", "DA", {"Ada", "ada"}),
    ("greaterThan", "a", {"Ada", "ada"}),
    ("lessThan", "b", {"Ada", "ada"}),
    ("isEmpty", "true", {None}),
    ("isNotEmpty", "true", {"Ada", "ada"}),
]


def test_conditions_mean_the_same_as_filters(work: Machinery) -> None:
    ids = work.load(
        *(
            {"name": operator, "conditions": [{"attributeSlug": "notes", "operator": operator, "value": value}]}
            for operator, value, _ in OPERATORS
        )
    )
    people = work.crm.object_id("people")
    for notes in ("Ada", "ada", None):
        work.record(notes=notes)
    work.settle()
    for workflow, (operator, value, expected) in zip(ids, OPERATORS, strict=True):
        query = {f"filter[notes][{operator}]": value}
        listed = work.crm.client.get(f"/api/v1/objects/{people}/records", params=query).json()["records"]
        assert {record["data"].get("notes") for record in listed} == expected, operator
        assert len(work.states(workflow)) == len(expected), operator


def test_a_manual_run_is_accepted_and_uses_its_data(work: Machinery) -> None:
    [workflow] = work.load({"name": "Greet", "actions": [{"type": "createActivity", "title": "Hello {{ record.data.email }}"}]})
    answer = work.start(workflow, {"data": {"email": "x@y.z"}})
    assert answer.status_code == 202
    assert answer.json() == {"message": "Workflow run started", "workflowId": workflow, "workflowName": "Greet"}
    [run] = work.runs(workflow)
    assert run["status"] == "pending"
    assert not {"startedAt", "completedAt"} & set(run)
    work.settle()
    [run] = work.runs(workflow)
    assert (run["status"], run["title"], run["triggerEvent"]) == ("completed", "API: Greet", "api")
    assert [activity["title"] for activity in work.activities()] == ["Hello x@y.z"]


def test_a_manual_run_about_a_record_works_on_that_record(work: Machinery) -> None:
    [workflow] = work.load({"trigger": "record/deleted", "actions": [{"type": "updateRecord", "data": {"notes": "{{ data.why }}"}}]})
    person = work.record(email="a@b.c")
    assert work.start(workflow, {"data": {"recordId": person["id"], "why": "asked"}}).status_code == 202
    work.start(workflow, {"data": {"why": "nobody"}})
    work.start(workflow)
    work.settle()
    assert work.stored(person)["notes"] == "asked"
    assert work.states(workflow) == ["completed", "failed", "failed"]
    errors = [run["error"] for run in work.runs(workflow)]
    assert "there is no record to update" in errors[1]
    assert "'data' is undefined" in errors[2]


def test_runs_are_paged_newest_first(work: Machinery) -> None:
    [workflow] = work.load({"name": "Paged"})
    for _ in range(23):
        work.start(workflow)
    path = f"/api/v1/workflows/{workflow}/runs"
    everything = [run["id"] for run in reversed(work.runs(workflow))]
    assert len(everything) == 23
    assert [run["id"] for run in work.crm.client.get(path).json()["runs"]] == everything[:20]
    assert [run["id"] for run in work.crm.client.get(path, params={"limit": 2, "offset": 1}).json()["runs"]] == everything[1:3]


def test_a_schedule_runs_once_per_due_minute_and_catches_up_the_latest(work: Machinery) -> None:
    clock = work.crm.clock
    assert isinstance(clock, FakeClock)  # 2027-01-15T08:00:00Z, a Friday
    action = {"type": "createActivity", "title": "Due {{ schedule.dueAt }}"}
    hourly, weekly = work.load(
        {"trigger": "schedule", "cron": "30 * * * *", "object": None, "actions": [action]},
        {"trigger": "schedule", "cron": "0 8 * * 1", "timezone": "Europe/Berlin", "object": None, "actions": [action]},
    )
    work.settle()
    assert work.runs(hourly) == []
    clock.advance(1800)
    work.settle()
    work.settle()
    assert [activity["title"] for activity in work.activities()] == ["Due 2027-01-15T08:30:00.000000Z"]
    [run] = work.runs(hourly)
    assert (run["triggerEvent"], run["status"]) == ("schedule", "completed")
    clock.advance(3 * 24 * 3600)
    work.settle()
    titles = [activity["title"] for activity in work.activities()]
    assert sorted(titles[1:]) == ["Due 2027-01-18T07:00:00.000000Z", "Due 2027-01-18T08:30:00.000000Z"]
    assert (len(work.runs(hourly)), len(work.runs(weekly))) == (2, 1)


def test_a_schedule_loaded_again_does_not_catch_up(work: Machinery) -> None:
    clock = work.crm.clock
    assert isinstance(clock, FakeClock)
    definition = {"trigger": "schedule", "cron": "* * * * *", "object": None}
    work.load(definition | {"enabled": False})
    clock.advance(3600)
    [workflow] = work.load(definition)
    work.settle()
    assert work.runs(workflow) == []
    clock.advance(60)
    work.settle()
    assert work.states(workflow) == ["completed"]


def test_an_enabled_schedule_starts_with_its_next_due_time(work: Machinery) -> None:
    clock = work.crm.clock
    assert isinstance(clock, FakeClock)
    [workflow] = work.load({"trigger": "schedule", "cron": "* * * * *", "object": None})
    for enabled in (False, True):
        work.crm.engine.write(lambda tx, enabled=enabled: switch(tx, workflow, enabled, now=clock.now()))
        assert work.crm.client.get(f"/api/v1/workflows/{workflow}").json()["enabled"] is enabled
        clock.advance(30 if enabled else 3600)
        work.settle()
        assert work.runs(workflow) == []
    clock.advance(30)
    work.settle()
    assert work.states(workflow) == ["completed"]


def test_answers_have_the_documented_shape(work: Machinery) -> None:
    [workflow] = work.load({"trigger": "schedule", "cron": "* * * * *", "object": None})
    path = f"/api/v1/workflows/{workflow}"
    work.start(workflow)
    check_documented(work.crm.client.get("/api/v1/workflows").json(), SHAPES["WorkflowList"])
    check_documented(work.crm.client.get(path).json(), SHAPES["WorkflowWithDefinition"])
    check_documented(work.crm.client.get(f"{path}/runs").json(), SHAPES["WorkflowRunList"])


def test_a_deleted_attribute_fails_only_its_own_run(work: Machinery) -> None:
    conditions = [{"attributeSlug": "notes", "operator": "equals", "value": "x"}]
    broken, fine = work.load({"conditions": conditions}, {"name": "Fine"})
    people = work.crm.object_id("people")
    attributes = work.crm.client.get(f"/api/v1/objects/{people}/attributes").json()["attributes"]
    notes = next(attribute["id"] for attribute in attributes if attribute["slug"] == "notes")
    work.crm.client.delete(f"/api/v1/objects/{people}/attributes/{notes}")
    work.record(email="a@b.c")
    work.settle()
    assert (work.states(broken), work.states(fine)) == (["failed"], ["completed"])
    assert "unknown attribute 'notes'" in work.runs(broken)[0]["error"]


@ANY_ENGINE
@pytest.mark.parametrize(
    ("definition", "says"),
    [
        ({"object": "nothing"}, "slug of an object"),
        ({"object": None}, "object is required"),
        ({"trigger": "record/seen"}, "trigger"),
        ({"trigger": "schedule"}, "cron is required"),
        ({"trigger": "schedule", "cron": "* * * *"}, "five fields"),
        ({"trigger": "schedule", "cron": "61 * * * *"}, "cron cannot be read"),
        ({"trigger": "schedule", "cron": "0 0 31 2 *"}, "cron"),
        ({"trigger": "schedule", "cron": "0 0 * * *", "timezone": "Mars/Base"}, "timezone"),
        ({"cron": "0 0 * * *"}, "cron"),
        ({"actions": []}, "actions"),
        ({"actions": [{"type": "dance"}]}, "actions[0]"),
        ({"actions": [{"type": "createActivity"}]}, "title is required"),
        ({"actions": [{"type": "createActivity", "title": "{{ x"}]}, "actions[0].title: the template cannot be read"),
        ({"actions": [{"type": "createActivity", "title": "{% for a in b %}{% endfor %}"}]}, "simple expressions"),
        ({"actions": [{"type": "createActivity", "title": "{{ ''.__class__() }}"}]}, "simple expressions"),
        ({"actions": [{"type": "createActivity", "title": "{{ 9 ** 9 }}"}]}, "simple expressions"),
        ({"actions": [{"type": "createActivity", "title": "{{ 'a' | center(100) }}"}]}, "center"),
        ({"actions": [{"type": "updateRecord", "data": {"nope": 1}}]}, "actions[0].data.nope: unknown attribute"),
        ({"actions": [{"type": "updateRecord", "data": {"email": 1}}]}, "actions[0].data.email must be"),
        ({"actions": [{"type": "createRecord", "object": "x", "data": {}}]}, "actions[0].object"),
        ({"actions": [{"type": "callUrl", "url": "ftp://example.com"}]}, "actions[0].url"),
        ({"conditions": [{"attributeSlug": "nope", "operator": "equals", "value": "1"}]}, "unknown attribute 'nope'"),
        ({"conditions": [{"attributeSlug": "created_at", "operator": "isNotEmpty"}]}, "unknown attribute 'created_at'"),
        ({"trigger": "schedule", "cron": "0 0 * * *", "conditions": [{"attributeSlug": "email", "operator": "isEmpty"}]}, "conditions"),
    ],
)
def test_a_wrong_definition_is_refused_and_nothing_is_loaded(work: Machinery, definition: dict[str, Any], says: str) -> None:
    with pytest.raises(Fault) as refused:
        work.load({"name": "Good"}, definition)
    assert says in refused.value.message
    assert work.crm.client.get("/api/v1/workflows").json() == {"workflows": []}


def test_refusals_write_nothing(work: Machinery) -> None:
    on, off = work.load({"name": "On"}, {"name": "Off", "enabled": False})
    check_all(
        work.crm,
        [
            Scenario("disabled", "POST", "/workflows/{off}/run", 409, body={}, says=["'Off' is disabled"]),
            Scenario("no workflow", "GET", f"/workflows/{NIL}", 404),
            Scenario("run of none", "POST", f"/workflows/{NIL}/run", 404),
            Scenario("runs of none", "GET", f"/workflows/{NIL}/runs", 404),
            Scenario("data is no object", "POST", "/workflows/{on}/run", 400, body={"data": []}, field="data"),
            Scenario("another field", "POST", "/workflows/{on}/run", 400, body={"date": {}}, field="date"),
            Scenario("no record", "POST", "/workflows/{on}/run", 400, body={"data": {"recordId": NIL}}, field="data.recordId"),
            Scenario("too many", "GET", "/workflows/{on}/runs?limit=101", 400, field="limit"),
            Scenario("no way to create one", "POST", "/workflows", 405, body={}),
        ],
        {"on": on, "off": off},
    )


def test_reading_and_running_need_two_scopes(work: Machinery) -> None:
    [workflow] = work.load({})
    with work.crm.client_with(work.crm.key_for(["workflows:read"])) as reader:
        assert reader.get(f"/api/v1/workflows/{workflow}").status_code == 200
        answer = reader.post(f"/api/v1/workflows/{workflow}/run")
        assert (answer.status_code, answer.json()["details"]) == (403, {"requiredScope": "workflows:run"})
    assert work.runs(workflow) == []
    with work.crm.client_with(work.crm.key_for(["workflows:run"])) as runner:
        assert runner.post(f"/api/v1/workflows/{workflow}/run").status_code == 202
        assert runner.get("/api/v1/workflows").status_code == 403


def test_headers_of_calls_are_shown_only_to_full_access(work: Machinery) -> None:
    call = {"type": "callUrl", "url": "https://example.com/hook", "headers": {"Authorization": "Bearer s3cret"}}
    [workflow] = work.load({"actions": [{"type": "createActivity", "title": "first"}, call]})
    paths = ("/api/v1/definitions", f"/api/v1/workflows/{workflow}", "/api/v1/workflows", f"/api/v1/workflows/{workflow}/runs")
    work.record(email="a@b.c")
    with work.crm.client_with(work.crm.key_for(["objects:read", "attributes:read", "workflows:read"])) as reader:
        answers = [reader.get(path) for path in paths]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert not any("s3cret" in answer.text for answer in answers)
    definitions, shown = answers[0].json(), answers[1].json()
    assert shown["actions"][1]["headers"] == {"Authorization": None}
    assert definitions["workflows"][0]["actions"] == shown["actions"]
    refused = work.crm.client.post("/api/v1/definitions", json={"workflows": definitions["workflows"]})
    assert (refused.status_code, "headers.Authorization" in refused.json()["message"]) == (400, True)
    assert work.crm.client.get(paths[1]).json()["actions"][1] == call
    assert work.crm.client.get(paths[0]).json()["workflows"][0]["actions"][1] == call
