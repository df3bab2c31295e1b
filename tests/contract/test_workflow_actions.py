"""Actions of workflows: templates, failures, and workflows that trigger each other."""

from __future__ import annotations

import json
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from crmctl.service.background import LOOPBACK
from crmctl.service.outbound.caller import Caller
from crmctl.service.outbound.guard import TargetGuard
from tests.contract.scenarios import NIL
from tests.support.authority import Authority
from tests.support.clock import FakeClock
from tests.support.patience import PATIENCE, wait_until
from tests.support.receiver import ByteReceiver, Receiver, drip
from tests.support.service import RunningService
from tests.support.workflows import Machinery


@pytest.fixture
def work(crm: RunningService) -> Machinery:
    return Machinery(crm, TargetGuard(LOOPBACK))


def test_values_keep_their_types_and_actions_see_earlier_results(work: Machinery) -> None:
    [workflow] = work.load(
        {
            "object": "deals",
            "actions": [
                {"type": "createRecord", "object": "deals", "data": {"name": "copy", "amount": "{{ record.data.amount * 2 }}"}},
                {"type": "updateRecord", "recordId": "{{ steps[0].recordId }}", "data": {"name": "copy of {{ record.data.name }}"}},
            ],
        }
    )
    raw = '{"data":{"name":"big","amount":12345678901234567890.25}}'
    deals = work.crm.object_id("deals")
    assert work.crm.client.post(f"/api/v1/objects/{deals}/records", content=raw).status_code == 201
    work.settle()
    assert work.states(workflow) == ["completed", "skipped"]
    found = json.loads(work.crm.client.get(f"/api/v1/objects/{deals}/records").text, parse_float=Decimal)["records"]
    assert [record["data"] for record in found] == [
        {"name": "copy of big", "amount": Decimal("24691357802469135780.5")},
        {"name": "big", "amount": Decimal("12345678901234567890.25")},
    ]


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ({"type": "createActivity", "title": "Call {{ record.data.phone }}"}, "action 1 (createActivity): title: 'phone' is undefined"),
        (
            {"type": "callUrl", "url": "https://example.com", "headers": {"x": "{{ nope }}"}},
            "action 1 (callUrl): headers.x: 'nope' is undefined",
        ),
        ({"type": "updateRecord", "data": {"email": "{{ record.data.notes }}"}}, "email must be an email address"),
        ({"type": "updateRecord", "recordId": NIL, "data": {}}, "there is no record"),
        ({"type": "createActivity", "title": "{{ record.data.notes | replace('n', record.data.notes) }}" * 50}, "longer than"),
        ({"type": "callUrl", "url": "http://127.0.0.1:9/"}, "the call failed: ConnectError"),
        ({"type": "callUrl", "url": "http://10.0.0.1/"}, "not a public address"),
        ({"type": "callUrl", "url": "http://168.63.129.16/"}, "not a public address"),
        ({"type": "callUrl", "url": "{{ record.data.notes }}"}, "the URL must start with"),
        ({"type": "callUrl", "url": "http://127.0.0.1:9/{{ ' ' }}x"}, "must not hold blanks"),
    ],
)
def test_a_failed_action_ends_the_run_with_its_error_and_one_event(work: Machinery, action: dict[str, Any], says: str) -> None:
    after = {"type": "createActivity", "title": "never"}
    [workflow] = work.load({"actions": [action, after]})
    before = work.record(email="a@b.c", notes="n" * 300)
    work.settle()
    [run] = work.runs(workflow)
    assert run["status"] == "failed"
    assert run["error"].startswith("action 1 (")
    assert says in run["error"]
    assert work.activities() == []
    assert work.stored(before) == before["data"]
    [(kind, payload)] = work.events("workflow.")
    assert (kind, payload["error"]) == ("workflow.failed", run["error"])


def test_a_failed_run_keeps_its_earlier_actions(work: Machinery) -> None:
    [workflow] = work.load(
        {"actions": [{"type": "createActivity", "title": "first"}, {"type": "updateRecord", "data": {"notes": "{{ nothing }}"}}]}
    )
    work.record(email="a@b.c")
    work.settle()
    assert work.states(workflow) == ["failed"]
    assert "action 2 (updateRecord)" in work.runs(workflow)[0]["error"]
    assert [activity["title"] for activity in work.activities()] == ["first"]


def test_a_url_is_called_once_with_the_data_and_an_idempotency_key(work: Machinery) -> None:
    with Receiver() as receiver:
        [workflow] = work.load(
            {
                "actions": [
                    {"type": "callUrl", "url": receiver.url, "headers": {"X-Who": "{{ record.data.email }}"}},
                    {"type": "callUrl", "url": receiver.url, "body": {"email": "{{ record.data.email }}", "n": 1}},
                ]
            }
        )
        work.record(email="a@b.c")
        work.settle()
    assert work.states(workflow) == ["completed"]
    first, second = receiver.received
    assert first.headers["x-who"] == "a@b.c"
    sent = json.loads(first.body)
    assert sent["record"]["data"] == {"email": "a@b.c"}
    assert sent["workflow"]["id"] == workflow
    assert json.loads(second.body) == {"email": "a@b.c", "n": 1}
    run_id = work.runs(workflow)[0]["id"]
    assert [request.headers["idempotency-key"] for request in (first, second)] == [f"{run_id}-0", f"{run_id}-1"]


def test_an_answer_that_is_not_2xx_fails_the_run(work: Machinery) -> None:
    with Receiver(lambda request, number: 302) as receiver:
        receiver.headers["location"] = receiver.url
        [workflow] = work.load({"actions": [{"type": "callUrl", "url": receiver.url}]})
        work.record()
        work.settle()
    assert len(receiver.received) == 1
    assert "answered with status 302" in work.runs(workflow)[0]["error"]


def trusting_caller(authority: Authority) -> Caller:
    """Return a caller that resolves every name to this machine and trusts only the test's authority."""
    return Caller(TargetGuard(LOOPBACK, resolver=lambda host, port: ["127.0.0.1"]), 5, authority.trusted)


def test_a_tls_call_connects_to_the_vetted_address_under_its_name(work: Machinery, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    work.caller = trusting_caller(authority)
    with Receiver(tls=authority.server("hooks.example.com")) as receiver:
        [workflow] = work.load({"actions": [{"type": "callUrl", "url": f"https://hooks.example.com:{receiver.port}/call"}]})
        work.record()
        work.settle()
    assert work.states(workflow) == ["completed"]
    assert (receiver.names, receiver.received[0].headers["host"]) == (["hooks.example.com"], f"hooks.example.com:{receiver.port}")


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("other.example.com", {}, "Hostname mismatch"),
        ("hooks.example.com", {"is_expired": True}, "certificate has expired"),
        ("hooks.example.com", {"is_self_signed": True}, "self-signed certificate"),
    ],
)
def test_an_invalid_certificate_fails_the_run_with_a_reason(
    work: Machinery, tmp_path: Path, name: str, options: dict[str, bool], says: str
) -> None:
    authority = Authority(tmp_path)
    work.caller = trusting_caller(authority)
    with Receiver(tls=authority.server(name, **options)) as receiver:
        [workflow] = work.load({"actions": [{"type": "callUrl", "url": f"https://hooks.example.com:{receiver.port}/call"}]})
        work.record()
        work.settle()
    assert receiver.received == []
    [run] = work.runs(workflow)
    assert run["status"] == "failed"
    assert "the call failed: ConnectError: the certificate is refused" in run["error"]
    assert says in run["error"]


def test_a_dripping_answer_ends_with_the_deadline(work: Machinery) -> None:
    work.caller = Caller(work.guard, 0.3)
    with ByteReceiver(drip(b"HTTP/1.1 200 OK\r\nx: ", b"a")) as receiver:
        [workflow] = work.load({"actions": [{"type": "callUrl", "url": receiver.url}]})
        work.record()
        work.settle()
    assert "Timeout: not done within 0.3 seconds" in work.runs(workflow)[0]["error"]


def test_workflows_with_hanging_calls_do_not_delay_others(work: Machinery) -> None:
    """Three workflows have more runs than places, all in calls without an answer; the fourth workflow must still finish."""
    answered, leaving = threading.Event(), threading.Event()
    work.caller = Caller(work.guard, 60)
    with Receiver(lambda request, number: 200 if answered.wait(PATIENCE) else 503) as receiver:
        calling = {"actions": [{"type": "callUrl", "url": receiver.url}]}
        *hanging, quick = work.load(calling, calling, calling, {"actions": [{"type": "createActivity", "title": "done"}]})
        for workflow in (*hanging * 20, *[quick] * 20):
            work.start(workflow)
        job = work.job()

        def run() -> None:
            while not leaving.is_set():
                if not job.run_once():
                    leaving.wait(0.02)
            job.close()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            receiver.wait_for(12)
            wait_until(lambda: work.states(quick) == ["completed"] * 20)
            assert len(receiver.received) == 12
        finally:
            answered.set()
            leaving.set()
            thread.join(PATIENCE)


def test_all_processes_share_the_places_of_a_workflow(work: Machinery) -> None:
    [workflow] = work.load({})
    for _ in range(10):
        work.start(workflow)
    claimed = [work.claim_all() for _ in range(2)]
    assert [len(runs) for runs in claimed] == [4, 0]
    assert isinstance(work.crm.clock, FakeClock)
    work.crm.clock.advance(30)
    assert {run.id for run in work.claim_all()} == {run.id for run in claimed[0]}


def test_a_workflow_does_not_trigger_itself(work: Machinery) -> None:
    [workflow] = work.load({"trigger": "record/updated", "actions": [{"type": "updateRecord", "data": {"notes": "seen"}}]})
    person = work.record()
    for _ in range(2):
        work.crm.client.patch(f"/api/v1/objects/{person['objectId']}/records/{person['id']}", json={"data": {"email": "a@b.c"}})
        work.settle()
    assert work.states(workflow) == ["completed", "skipped"] * 2
    assert "caused by this workflow itself" in work.runs(workflow)[1]["error"]
    assert [kind for kind, _ in work.events("workflow.")] == ["workflow.completed"] * 2


def test_two_workflows_do_not_trigger_each_other_for_ever(work: Machinery) -> None:
    ping, pong = work.load(
        {"trigger": "record/updated", "actions": [{"type": "updateRecord", "data": {"notes": "ping"}}]},
        {"trigger": "record/updated", "actions": [{"type": "updateRecord", "data": {"notes": "pong"}}]},
    )
    person = work.record()
    work.crm.client.patch(f"/api/v1/objects/{person['objectId']}/records/{person['id']}", json={"data": {"email": "a@b.c"}})
    work.settle()
    # Each runs for the change from outside and for the other's change; changes that follow, and its own change, are skipped.
    assert sorted(work.states(ping)) == sorted(work.states(pong)) == ["completed"] * 2 + ["skipped"] * 3


def test_a_long_chain_of_workflows_fails(work: Machinery) -> None:
    ids = work.load(
        *(
            {
                "name": f"Step {number}",
                "trigger": "record/updated",
                "conditions": [{"attributeSlug": "notes", "operator": "equals", "value": str(number)}],
                "actions": [{"type": "updateRecord", "data": {"notes": str(number + 1)}}],
            }
            for number in range(8)
        )
    )
    person = work.record()
    work.crm.client.patch(f"/api/v1/objects/{person['objectId']}/records/{person['id']}", json={"data": {"notes": "0"}})
    work.settle()
    assert [work.states(workflow_id) for workflow_id in ids] == [["completed"]] * 5 + [["failed"], [], []]
    assert "looks like a loop" in work.runs(ids[5])[0]["error"]
    assert work.stored(person)["notes"] == "5"
