"""`crmctl webhooks`: the event types of the service, and a receiver of genuine, forged, stale, duplicate and hostile requests."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from crmctl.client.webhook_receiver import MAX_BODY
from crmctl.models.signatures import new_secret
from tests.support.cli import expect_exit, run_crmctl, spawn
from tests.support.fakecrm import FakeCrm
from tests.support.listener import PAYLOAD, SECRET, Listener, Senders, signed
from tests.support.patience import PATIENCE


def test_event_types_and_the_portal() -> None:
    types = [{"name": "record.created", "description": "A record is created", "group": "records"}]
    page = {"portalUrl": "https://portal.example/t/abc", "eventTypes": types}
    with FakeCrm({"GET /webhooks": lambda asked: {"data": page}}) as fake:
        assert run_crmctl("webhooks", "events", env=fake.env).ok().json() == types
        assert run_crmctl("webhooks", "events", "-o", "csv", env=fake.env).ok().out.splitlines()[0] == "name,description"
        assert run_crmctl("webhooks", "portal", env=fake.env).ok().json() == {"portalUrl": page["portalUrl"]}
        assert run_crmctl("webhooks", "portal", "-o", "table", env=fake.env).ok().out == "https://portal.example/t/abc\n"
        page["eventTypes"] = ["record.created", "deal.won"]
        assert [item["name"] for item in run_crmctl("webhooks", "events", env=fake.env).ok().json()] == ["record.created", "deal.won"]
        del page["portalUrl"]
        run_crmctl("webhooks", "portal", env=fake.env).exits(7)


def test_a_browser_is_opened_only_on_request_and_at_a_terminal(tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    with FakeCrm({"GET /webhooks": lambda asked: {"portalUrl": "https://portal.example/t", "eventTypes": []}}) as fake:
        env = {**fake.env, "BROWSER": str(browser), "DISPLAY": ":99"}
        piped = run_crmctl("webhooks", "portal", "--open", env=env).ok()
        assert "open the address yourself" in piped.err
        assert expect_exit(spawn("webhooks", "portal", env=env))[0] == 0
        assert not (tmp_path / "opened").exists()
        assert expect_exit(spawn("webhooks", "portal", "--open", env=env))[0] == 0
        assert (tmp_path / "opened").read_text() == "https://portal.example/t"


@pytest.mark.parametrize("family", ["webhook", "svix"])
def test_a_signed_delivery_is_answered_and_printed(family: str) -> None:
    body = json.dumps(PAYLOAD, indent=3).encode()
    headers = {name.replace("webhook-", f"{family}-", 1): value for name, value in signed("evt_1", body, None, at=None).items()}
    with Listener() as listener:
        assert listener.post(body, headers | {"Webhook-Event-Type": "record.updated"}) == 204
        event = listener.line()
        assert list(event) == ["id", "type", "timestamp", "data"]
        assert (event["id"], event["type"], event["data"]) == ("evt_1", "record.updated", PAYLOAD)
        assert event["timestamp"].endswith("Z")
        assert listener.stop() == []


def test_signatures_of_published_libraries_are_accepted() -> None:
    from datetime import UTC, datetime

    from standardwebhooks.webhooks import Webhook as Standard
    from svix.webhooks import Webhook as Svix

    now, body = datetime.now(UTC), json.dumps(PAYLOAD)
    with Listener() as listener:
        for family, webhook in (("webhook", Standard(SECRET)), ("svix", Svix(SECRET))):
            signature = webhook.sign(f"by_{family}", now, body)
            headers = {
                f"{family}-id": f"by_{family}", f"{family}-timestamp": str(int(now.timestamp())), f"{family}-signature": signature,
            }  # fmt: skip
            assert listener.post(body.encode(), headers) == 204
        assert [event["id"] for event in listener.stop()] == ["by_webhook", "by_svix"]


def test_forged_stale_and_unsigned_deliveries_are_turned_away() -> None:
    body = b'{"a": 1}'
    old, early = time.time() - 301, time.time() + 10_000
    with Listener() as listener:
        assert listener.post(body, signed("forged", body, secret=new_secret())) == 401
        assert listener.post(b'{"a": 2}', signed("changed", body)) == 401
        assert listener.post(body, signed("stale", body, at=old)) == 401
        assert listener.post(body, signed("early", body, at=early)) == 401
        assert listener.post(body, {}) == 401
        assert listener.post(body, signed("other", body) | {"webhook-id": "another"}) == 401
        assert listener.send("good") == 204
        assert [event["id"] for event in listener.stop()] == ["good"]
    assert listener.err.count("turned away") == 6
    assert SECRET not in listener.err
    with Listener("--tolerance", "1000") as listener:
        assert listener.post(body, signed("old", body, at=old)) == 204


def test_an_event_that_comes_again_is_printed_once() -> None:
    with Listener() as listener:
        assert [listener.send("evt_1") for _ in range(3)] == [204] * 3
        assert listener.post(b"forged", signed("evt_2", b"{}")) == 401
        assert listener.send("evt_2") == 204, "a forged one does not use up an id"
        assert [event["id"] for event in listener.stop(signal.SIGTERM)] == ["evt_1", "evt_2"]


def test_bodies_are_bounded_and_may_come_in_chunks() -> None:
    with Listener() as listener:
        assert listener.post(bytes(MAX_BODY + 1), signed("big", b"")) == 413
        body = json.dumps(PAYLOAD).encode()
        assert listener.post(iter([body[:10], body[10:]]), signed("chunks", body), encode_chunked=True) == 204  # type: ignore[arg-type]
        connection = http.client.HTTPConnection(*listener.address, timeout=PATIENCE)
        connection.request("GET", "/")
        assert connection.getresponse().status == 405
        connection.close()
        assert [event["id"] for event in listener.stop()] == ["chunks"]


def test_silent_connections_do_not_keep_others_waiting() -> None:
    with Listener() as listener:
        silent = [socket.create_connection(listener.address, timeout=PATIENCE) for _ in range(20)]
        for connection in silent:
            connection.sendall(b"POST / HTTP/1.1\r\nContent-Le")
        assert listener.send("evt_1") == 204
        assert listener.line()["id"] == "evt_1"
        for connection in silent:
            connection.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "CRMCTL_WEBHOOK_SECRET"),
        (["--secret", "whsec_!!!"], "base64"),
        (["--secret", SECRET, "--port", "70000"], "--port"),
        (["--secret", SECRET, "--tolerance", "0"], "--tolerance"),
        (["--secret", SECRET, "--host", "192.0.2.1", "--port", "0"], "cannot listen"),
    ],
)
def test_listen_refuses_impossible_options(options: list[str], said: str) -> None:
    refused = run_crmctl("webhooks", "listen", *options, env={"CRMCTL_WEBHOOK_SECRET": None}).exits(2)
    assert said in json.dumps(refused.error())


def test_a_port_in_use_is_an_error() -> None:
    with Listener() as listener:
        refused = run_crmctl("webhooks", "listen", "--secret", SECRET, "--port", str(listener.address[1])).exits(2)
        assert "--port 0" in refused.error()["hint"]


def test_a_reader_that_goes_away_ends_it_quietly() -> None:
    with Listener() as listener:
        assert listener.process.stdout is not None
        assert listener.send("evt_1") == 204
        listener.line()
        listener.process.stdout.close()
        assert listener.end_without_reader() == ""


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="needs pipes of a known size")
@pytest.mark.parametrize("read", [1, 20_000, 300_000])
def test_acknowledged_events_were_printed_before_the_reader_left(read: int) -> None:
    """Lines are longer than the pipe holds: a line that has been written has been read up to its last part."""
    with Listener() as listener:
        assert listener.process.stdout is not None
        reader = listener.process.stdout.fileno()
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
        senders = Senders(listener, 6, json.dumps({"type": "record.created", "text": "x" * 20_000}).encode())
        seen = b""
        while len(seen) < read:
            seen += os.read(reader, 4096)
        listener.process.stdout.close()
        assert listener.end_without_reader() == ""
        senders.join()
        printed = {json.loads(found)["id"] for found in (line[: line.find(b",")] + b"}" for line in seen.splitlines()) if b'"' in found[6:]}
        assert set(senders.taken) <= printed
        assert senders.statuses <= {204, 503}


def test_acknowledged_events_were_printed_before_the_end() -> None:
    with Listener() as listener:
        senders = Senders(listener, 6, json.dumps(PAYLOAD).encode())
        before = [listener.line()["id"] for _ in range(20)]
        printed = before + [event["id"] for event in listener.stop(signal.SIGTERM)]
        senders.join()
        assert len(printed) == len(set(printed))
        assert set(senders.taken) <= set(printed)
        assert senders.statuses <= {204, 503}


def test_an_event_that_finds_no_room_is_taken_when_it_comes_again() -> None:
    from crmctl.client import webhook_receiver as receiving
    from tests.support.clock import FakeClock

    body, answers = b'{"type": "x"}', [False, True]
    accepted: list[str] = []

    def take(event: receiving.ReceivedEvent) -> bool:
        accepted.append(event.id)
        return answers.pop(0)

    clock = FakeClock(time.time())
    receiver = receiving.Receiver(("127.0.0.1", 0), SECRET, clock, tolerance=300, take=take, refuse=lambda text: None)
    try:
        pairs = tuple(signed("evt_1", body).items())
        assert [receiver.receive(pairs, body) for _ in range(3)] == [False, True, True]
        assert accepted == ["evt_1"] * 2
    finally:
        receiver.start()
        receiver.close()
