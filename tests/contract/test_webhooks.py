"""Webhooks through the whole service: access to the portal, and deliveries to real receivers despite interruptions."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import standardwebhooks
import svix

from crmctl.models.resources import EVENT_TYPES
from crmctl.service.context import new_id
from crmctl.service.store import webhooks
from tests.support.clock import FakeClock
from tests.support.killed_service import STEPS
from tests.support.patience import PATIENCE, wait_until
from tests.support.receiver import Received, Receiver
from tests.support.service import RunningService, make_client, running_service
from tests.support.warm_program import run_module


@pytest.fixture
def live(database: str, tmp_path: Path) -> Iterator[RunningService]:
    """A service that delivers, also to this machine; its clock starts now and is moved by the test."""
    with running_service(tmp_path, database_url=database, clock=FakeClock(int(time.time())), development=True) as service:
        yield service


def add_endpoint(service: RunningService, url: str, event_types: list[str] | None = None) -> str:
    now = service.clock.now()
    made = service.engine.write(lambda tx: webhooks.create_endpoint(tx, url=url, event_types=event_types, ids=new_id, now=now))
    return str(made["id"])


def history(service: RunningService, endpoint: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service.engine.read(lambda tx: webhooks.list_deliveries(tx, endpoint))
    return found


def create_person(service: RunningService, **data: Any) -> Any:
    answer = service.client.post(f"/api/v1/objects/{service.object_id('people')}/records", json={"data": data})
    assert answer.status_code == 201, answer.text
    return answer.json()


def advance(service: RunningService, seconds: float) -> None:
    service.clock.advance(seconds)  # type: ignore[attr-defined]


def test_the_answer_has_the_event_types_and_a_link_to_the_portal(crm: RunningService) -> None:
    answer = crm.client.get("/api/v1/webhooks")
    assert answer.status_code == 200
    assert set(answer.json()) == {"portalUrl", "eventTypes"}
    assert [event_type["name"] for event_type in answer.json()["eventTypes"]] == list(EVENT_TYPES)
    assert all(set(event_type) == {"name", "description"} and event_type["description"] for event_type in answer.json()["eventTypes"])
    assert answer.json()["portalUrl"].startswith(f"{crm.base_url}/portal?link=")
    with crm.client_with(crm.key_for(["records:read"])) as other:
        assert other.get("/api/v1/webhooks").json()["details"] == {"requiredScope": "webhooks:manage"}


def test_the_portal_opens_only_with_its_link(crm: RunningService) -> None:
    link = crm.client.get("/api/v1/webhooks").json()["portalUrl"]
    with make_client(crm.base_url, None) as stranger, make_client(crm.base_url, None) as visitor:
        assert stranger.get("/portal/webhooks").status_code == 403
        for wrong in (link[:-1] + ("0" if link[-1] != "0" else "1"), link.replace("/portal", "/console"), link.replace("link=", "link=9")):
            assert stranger.get(wrong).status_code == 403
        assert "set-cookie" not in stranger.get(link[:-3]).headers
        entered = visitor.get(link)
        assert entered.status_code == 200
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=lax" in cookie.lower()
        assert "Path=/portal" in cookie
        assert visitor.get("/portal/webhooks").status_code == 200
        assert visitor.get("/console/webhooks").status_code == 403
        assert visitor.get("/portal/keys").status_code == 404
        advance(crm, 600)
        assert stranger.get(link).status_code == 403
        assert visitor.get("/portal/webhooks").status_code == 200
    assert "link=" not in repr(crm.log)


def test_a_portal_session_ends_with_its_key(crm: RunningService) -> None:
    key = crm.key_for(["webhooks:manage"], expires_in=3600)
    with crm.client_with(key) as client:
        link = client.get("/api/v1/webhooks").json()["portalUrl"]
    with make_client(crm.base_url, None) as visitor:
        visitor.get(link)
        assert visitor.get("/portal/webhooks").status_code == 200
        advance(crm, 3600)
        assert visitor.get("/portal/webhooks").status_code == 403


def test_every_change_is_delivered_and_verified_by_published_libraries(live: RunningService) -> None:
    with Receiver() as receiver:
        endpoint = add_endpoint(live, receiver.url)
        person = create_person(live, email="ada@example.com")
        path = f"/api/v1/objects/{person['objectId']}/records/{person['id']}"
        live.client.patch(path, json={"data": {"notes": "Ådå €"}})
        activity = live.client.post("/api/v1/activities", json={"title": "Call"}).json()
        live.client.patch(f"/api/v1/activities/{activity['id']}", json={"title": "Met"})
        live.client.delete(f"/api/v1/activities/{activity['id']}")
        live.client.delete(path)
        received = receiver.wait_for(6)
    secret = live.engine.read(lambda tx: webhooks.reveal_secret(tx, endpoint))
    kinds = {}
    for request in received:
        svix.Webhook(secret).verify(request.body, request.headers)
        payload = standardwebhooks.Webhook(secret).verify(request.body, request.headers)
        kinds[request.headers["webhook-event-type"]] = payload
        for tampered in (request.body + b" ", request.body.replace(b'"', b"'", 1)):
            with pytest.raises(standardwebhooks.WebhookVerificationError):
                standardwebhooks.Webhook(secret).verify(tampered, request.headers)
            with pytest.raises(svix.WebhookVerificationError):
                svix.Webhook(secret).verify(tampered, request.headers)
    assert set(kinds) == {name for name in EVENT_TYPES if not name.startswith("workflow")}
    assert set(kinds["record.updated"]) == {"organizationId", "recordId", "objectId", "data"}
    assert kinds["record.updated"]["data"] == {"email": "ada@example.com", "notes": "Ådå €"}
    assert set(kinds["activity.updated"]) == {"organizationId", "activityId", "title", "linkedRecords"}
    assert kinds["activity.updated"]["title"] == "Met"
    assert len({request.headers["webhook-id"] for request in received}) == 6


def test_both_secrets_sign_during_a_rotation(live: RunningService) -> None:
    with Receiver() as receiver:
        endpoint = add_endpoint(live, receiver.url)
        old = live.engine.read(lambda tx: webhooks.reveal_secret(tx, endpoint))
        new = live.engine.write(lambda tx: webhooks.rotate_secret(tx, endpoint, now=live.clock.now()))
        create_person(live)
        [request] = receiver.wait_for(1)
    for secret in (old, new):
        standardwebhooks.Webhook(secret).verify(request.body, request.headers)


def test_every_retry_of_an_event_has_the_same_id(live: RunningService) -> None:
    outcomes: list[int | None] = [500, None, 302, 404, 200]
    with Receiver() as elsewhere, Receiver(lambda request, number: outcomes[number], headers={"location": elsewhere.url}) as receiver:
        endpoint = add_endpoint(live, receiver.url)
        create_person(live, email="ada@example.com")
        for number in range(1, len(outcomes) + 1):
            receiver.wait_for(number)
            wait_until(lambda number=number: len(full_delivery(live, endpoint)["history"]) == number)  # type: ignore[misc]
            advance(live, 3600)
        received = receiver.wait_for(len(outcomes))
        assert elsewhere.received == []
    assert len({(request.headers["webhook-id"], request.body) for request in received}) == 1
    delivery = full_delivery(live, endpoint)
    assert (delivery["state"], delivery["attempts"]) == ("succeeded", 5)
    assert [attempt["status"] for attempt in delivery["history"]] == [500, None, 302, 404, 200]


def full_delivery(service: RunningService, endpoint: str) -> dict[str, Any]:
    """Return the endpoint's only delivery with its history, an empty one before it exists."""
    found = history(service, endpoint)
    if not found:
        return {"history": []}
    [only] = found
    delivery: dict[str, Any] = service.engine.read(lambda tx: webhooks.get_delivery(tx, only["id"]))
    return delivery


def test_a_hanging_receiver_does_not_delay_others(live: RunningService) -> None:
    release = threading.Event()

    def hang(request: Received, number: int) -> int:
        release.wait(PATIENCE)
        return 200

    with Receiver(hang) as slow, Receiver() as quick:
        add_endpoint(live, slow.url)
        add_endpoint(live, quick.url)
        for _ in range(3):
            create_person(live)
        try:
            assert len({request.headers["webhook-id"] for request in quick.wait_for(3)}) == 3
        finally:
            release.set()
        slow.wait_for(3)


def test_addresses_of_this_machine_are_refused_without_development(database: str, tmp_path: Path) -> None:
    with Receiver() as receiver, running_service(tmp_path, database_url=database) as service:
        endpoint = add_endpoint(service, receiver.url)
        create_person(service)
        wait_until(lambda: bool(full_delivery(service, endpoint)["history"]))
        assert "not a public address" in full_delivery(service, endpoint)["history"][0]["error"]
        assert receiver.received == []


@pytest.mark.parametrize("step", STEPS)
def test_a_service_killed_between_two_steps_still_delivers(database: str, tmp_path: Path, step: str) -> None:
    with Receiver() as receiver:
        with running_service(tmp_path, database_url=database, background=False) as service:
            endpoint = add_endpoint(service, receiver.url)
            person = create_person(service, email="ada@example.com")
        assert run_module("tests.support.killed_service", step, database, tmp_path, packages=["service"]) == -signal.SIGKILL
        before = len(receiver.received)
        assert before == (1 if step in ("after the send", "after the settlement") else 0)
        later = FakeClock(int(time.time()) + 31)
        with running_service(tmp_path, database_url=database, clock=later, development=True) as service:
            wait_until(lambda: [delivery["state"] for delivery in history(service, endpoint)] == ["succeeded"])
        received = receiver.received
    assert len(received) == (2 if step == "after the send" else 1)
    assert len({request.headers["webhook-id"] for request in received}) == 1
    assert json.loads(received[0].body)["recordId"] == person["id"]
