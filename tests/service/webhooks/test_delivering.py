"""Deliveries to a real receiver: signed, repeated until they succeed, abandoned in time, never two at once."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from crmctl.models.signatures import read_headers, verify
from crmctl.service.background import LOOPBACK
from crmctl.service.context import new_id
from crmctl.service.jobs.worker import forget_old
from crmctl.service.outbound.caller import Caller
from crmctl.service.outbound.guard import TargetGuard
from crmctl.service.store import webhooks
from crmctl.service.store.webhooks import UNPROVEN
from tests.support.deliveries import Bench
from tests.support.patience import PATIENCE
from tests.support.receiver import Receiver


def test_a_delivery_is_signed_and_contains_the_exact_event(bench: Bench) -> None:
    with Receiver() as receiver:
        endpoint = bench.endpoint(receiver.url)
        bench.event(recordId="r", data={"name": "Ådå"})
        bench.deliver()
    [request] = receiver.received
    assert request.body == '{"recordId":"r","data":{"name":"Ådå"}}'.encode()
    assert request.headers["webhook-event-type"] == "record.created"
    verify(bench.secret(endpoint), read_headers(request.headers), request.body, bench.clock.now())
    [delivery] = bench.history(endpoint)
    assert (delivery["state"], delivery["attempts"]) == ("succeeded", 1)


def test_only_subscribed_and_enabled_endpoints_are_called(bench: Bench) -> None:
    with Receiver() as wanted, Receiver() as other, Receiver() as disabled:
        bench.endpoint(wanted.url, ["record.deleted"])
        bench.endpoint(other.url, ["record.created"])
        off = bench.endpoint(disabled.url)
        bench.engine.write(lambda tx: webhooks.update_endpoint(tx, off["id"], {"enabled": False}, now=bench.clock.now()))
        bench.event("record.deleted")
        bench.deliver()
    assert (len(wanted.received), len(other.received), len(disabled.received)) == (1, 0, 0)


def test_failures_are_repeated_with_one_id_and_a_fresh_signature(bench: Bench) -> None:
    with Receiver(lambda request, number: 500 if number < 3 else 200) as receiver:
        endpoint = bench.endpoint(receiver.url)
        bench.event(recordId="r")
        bench.run_until_settled(endpoint)
    assert len(receiver.received) == 4
    assert len({request.headers["webhook-id"] for request in receiver.received}) == 1
    assert len({request.headers["webhook-timestamp"] for request in receiver.received}) == 4
    assert len({request.body for request in receiver.received}) == 1
    [delivery] = bench.history(endpoint)
    assert delivery["state"] == "succeeded"
    found = bench.engine.read(lambda tx: webhooks.get_delivery(tx, delivery["id"]))
    assert [attempt["status"] for attempt in found["history"]] == [500, 500, 500, 200]


def test_a_dead_receiver_is_abandoned_within_72_hours(bench: Bench) -> None:
    with Receiver(lambda request, number: 503) as receiver:
        endpoint = bench.endpoint(receiver.url)
        started = bench.clock.now()
        bench.event()
        bench.run_until_settled(endpoint)
    stamps = [int(request.headers["webhook-timestamp"]) for request in receiver.received]
    assert started + 64 * 3600 < stamps[-1] <= started + 72 * 3600
    [delivery] = bench.history(endpoint)
    assert delivery["state"] == "failed"
    assert bench.deliver() == 0


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_a_failure_and_is_not_followed(bench: Bench, status: int) -> None:
    with Receiver() as elsewhere, Receiver(lambda request, number: status) as receiver:
        receiver.headers["location"] = elsewhere.url
        endpoint = bench.endpoint(receiver.url)
        bench.event()
        bench.deliver()
        assert elsewhere.received == []
    assert bench.history(endpoint)[0]["state"] == "pending"


def test_a_broken_connection_is_a_failure(bench: Bench) -> None:
    with Receiver(lambda request, number: None) as receiver:
        endpoint = bench.endpoint(receiver.url)
        bench.event()
        bench.deliver()
    [delivery] = bench.history(endpoint)
    found = bench.engine.read(lambda tx: webhooks.get_delivery(tx, delivery["id"]))
    assert (found["state"], found["history"][0]["status"]) == ("pending", None)
    assert "RemoteProtocolError" in found["history"][0]["error"]


def test_a_hanging_receiver_times_out_and_delays_no_other(tmp_path: Path, database: str) -> None:
    bench = Bench(tmp_path, database, Caller(TargetGuard(LOOPBACK), 2.0))
    release = threading.Event()

    def hang(request: Any, number: int) -> int:
        release.wait(PATIENCE)
        return 200

    with Receiver(hang) as slow, Receiver() as quick:
        hung, fine = bench.endpoint(slow.url), bench.endpoint(quick.url)
        bench.event()
        bench.deliver()
        release.set()
        assert bench.history(fine)[0]["state"] == "succeeded"
        assert bench.history(hung)[0]["state"] == "pending"
    bench.engine.close()


def test_a_private_address_is_refused_with_a_reason(tmp_path: Path, database: str) -> None:
    bench = Bench(tmp_path, database, Caller(TargetGuard()))
    with Receiver() as receiver:
        endpoint = bench.endpoint(receiver.url)
        bench.event()
        bench.deliver()
        assert receiver.received == []
    [delivery] = bench.history(endpoint)
    found = bench.engine.read(lambda tx: webhooks.get_delivery(tx, delivery["id"]))
    assert "not a public address" in found["history"][0]["error"]
    bench.engine.close()


def test_a_claimed_delivery_cannot_be_claimed_again_until_its_lease_ends(bench: Bench) -> None:
    bench.endpoint("http://127.0.0.1:9/hook")
    bench.event()

    def claim() -> list[webhooks.Due]:
        return bench.engine.write(lambda tx: webhooks.claim(tx, UNPROVEN, 8, now=bench.clock.now()))

    first = claim()
    assert len(first) == 1
    assert claim() == []
    bench.clock.advance(29)
    assert claim() == []
    bench.clock.advance(1)
    second = claim()
    assert [due.event_id for due in second] == [first[0].event_id]
    assert second[0].attempt == 2


def test_repeated_dispatching_hands_an_event_over_once(bench: Bench) -> None:
    endpoint = bench.endpoint("http://127.0.0.1:9/hook")
    bench.event()
    bench.dispatch()
    assert len(bench.history(endpoint)) == 1


def test_a_replay_sends_the_same_event_again(bench: Bench) -> None:
    with Receiver() as receiver:
        endpoint = bench.endpoint(receiver.url)
        bench.event(recordId="r")
        bench.deliver()
        [delivery] = bench.history(endpoint)
        bench.engine.write(lambda tx: webhooks.replay(tx, delivery["id"], ids=new_id, now=bench.clock.now()))
        bench.deliver()
    assert len(receiver.received) == 2
    assert len({(request.headers["webhook-id"], request.body) for request in receiver.received}) == 1


def test_a_range_of_failures_is_replayed_once_each(bench: Bench) -> None:
    with Receiver(lambda request, number: 500) as receiver:
        endpoint = bench.endpoint(receiver.url)
        for number in range(3):
            bench.event(number=number)
        bench.run_until_settled(endpoint)
        receiver.answer = lambda request, number: 200
        before = len(receiver.received)
        start = bench.clock.now()
        again = bench.engine.write(
            lambda tx: webhooks.replay_range(tx, endpoint["id"], 0, start + 1, only_failed=True, ids=new_id, now=bench.clock.now())
        )
        bench.deliver()
        none = bench.engine.write(
            lambda tx: webhooks.replay_range(tx, endpoint["id"], 0, start + 1, only_failed=True, ids=new_id, now=bench.clock.now())
        )
    assert (again, none, len(receiver.received) - before) == (3, 0, 3)


def replay_failed(bench: Bench, endpoint: dict[str, Any]) -> int:
    until = bench.clock.now() + 1
    return bench.engine.write(
        lambda tx: webhooks.replay_range(tx, endpoint["id"], 0, until, only_failed=True, ids=new_id, now=bench.clock.now())
    )


def test_replaying_a_pending_delivery_sends_it_once_and_at_once(bench: Bench) -> None:
    status = [503]
    with Receiver(lambda request, number: status[0]) as receiver:
        endpoint = bench.endpoint(receiver.url)
        for number in range(3):
            bench.event(number=number)
        bench.deliver()
        [*_, first] = bench.history(endpoint)
        status[0] = 200
        receiver.received.clear()
        again = bench.engine.write(lambda tx: webhooks.replay(tx, first["id"], ids=new_id, now=bench.clock.now()))
        assert again == (first["id"], False)
        bench.deliver()
        assert len(receiver.received) == 1
        assert (replay_failed(bench, endpoint), replay_failed(bench, endpoint)) == (2, 2)
        bench.deliver()
        assert replay_failed(bench, endpoint) == 0
        bench.run_until_settled(endpoint)
    assert json.loads(receiver.received[0].body) == {"number": 0}
    assert sorted(json.loads(request.body)["number"] for request in receiver.received) == [0, 1, 2]
    assert [delivery["state"] for delivery in bench.history(endpoint)] == ["succeeded"] * 3


def test_replaying_twice_sends_once(bench: Bench) -> None:
    with Receiver() as receiver:
        endpoint = bench.endpoint(receiver.url)
        bench.event()
        bench.deliver()
        [delivery] = bench.history(endpoint)
        pressed = [bench.engine.write(lambda tx: webhooks.replay(tx, delivery["id"], ids=new_id, now=bench.clock.now())) for _ in range(2)]
        bench.deliver()
    assert [is_new for _, is_new in pressed] == [True, False]
    assert len(receiver.received) == 2
    assert len(bench.history(endpoint)) == 2


def test_replaying_a_delivery_under_way_changes_nothing(bench: Bench) -> None:
    endpoint = bench.endpoint("http://127.0.0.1:9/hook")
    bench.event()
    [due] = bench.engine.write(lambda tx: webhooks.claim(tx, UNPROVEN, 8, now=bench.clock.now()))
    again = bench.engine.write(lambda tx: webhooks.replay(tx, due.delivery, ids=new_id, now=bench.clock.now()))
    assert again == (due.delivery, False)
    assert bench.deliver() == 0
    assert len(bench.history(endpoint)) == 1


def test_a_rotated_secret_and_the_old_ones_sign_for_a_day(bench: Bench) -> None:
    with Receiver() as receiver:
        endpoint = bench.endpoint(receiver.url)
        old = bench.secret(endpoint)
        middle, new = (bench.engine.write(lambda tx: webhooks.rotate_secret(tx, endpoint["id"], now=bench.clock.now())) for _ in range(2))
        bench.event()
        bench.deliver()
        bench.clock.advance(24 * 3600 - 1)
        bench.event()
        bench.deliver()
        bench.clock.advance(2)
        bench.event()
        bench.deliver()
    first, last_of_all, later = receiver.received
    assert len({old, middle, new}) == 3
    assert [len(request.headers["webhook-signature"].split()) for request in receiver.received] == [3, 3, 1]
    for secret, request in ((old, first), (middle, first), (new, first), (old, last_of_all), (new, later)):
        verify(secret, read_headers(request.headers), request.body, float(request.headers["webhook-timestamp"]))


def test_a_test_event_reaches_a_disabled_endpoint(bench: Bench) -> None:
    with Receiver() as receiver:
        endpoint = bench.endpoint(receiver.url)
        bench.engine.write(lambda tx: webhooks.update_endpoint(tx, endpoint["id"], {"enabled": False}, now=bench.clock.now()))
        bench.engine.write(lambda tx: webhooks.send_test(tx, endpoint["id"], ids=new_id, now=bench.clock.now()))
        bench.deliver()
    assert receiver.received[0].headers["webhook-event-type"] == "webhook.test"


def test_a_delivery_past_its_window_fails_and_is_not_sent(bench: Bench) -> None:
    with Receiver() as receiver:
        endpoint = bench.endpoint(receiver.url)
        bench.event()
        bench.clock.advance(72 * 3600 + 1)
        bench.deliver()
        forget_old(bench.context)
        assert receiver.received == []
    assert bench.history(endpoint)[0]["state"] == "failed"


def test_history_is_kept_for_thirty_days_and_pending_deliveries_until_settled(bench: Bench) -> None:
    with Receiver() as receiver:
        endpoint = bench.endpoint(receiver.url)
        bench.event()
        bench.deliver()
        bench.clock.advance(30 * 24 * 3600 - 1)
        forget_old(bench.context)
        assert len(bench.history(endpoint)) == 1
        bench.event()
        bench.clock.advance(2)
        forget_old(bench.context)
        assert [delivery["state"] for delivery in bench.history(endpoint)] == ["pending"]
        bench.deliver()
    assert len(receiver.received) == 2
