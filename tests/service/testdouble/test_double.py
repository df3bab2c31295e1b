"""The installed program as a test double: faults, clock, snapshots, controls, deliveries."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from crmctl.models.scopes import SCOPES
from tests.support.cli import run_crmctl, start_crmctl
from tests.support.double import Double, ephemeral
from tests.support.patience import PATIENCE, wait_until
from tests.support.receiver import Receiver
from tests.support.service import running_service

CONTROLS = ("reset", "snapshots/a", "faults", "clock", "requests", "deliveries")


@pytest.fixture(scope="module")
def running() -> Iterator[Double]:
    with ephemeral() as double:
        yield double


@pytest.fixture
def double(running: Double) -> Double:
    assert running.control("POST", "reset").status_code == 200
    return running


def test_one_line_announces_the_test_double(double: Double) -> None:
    assert set(double.ready) == {"baseUrl", "apiKey", "data"}
    assert double.url.startswith("http://127.0.0.1:")
    keys = run_crmctl("service", "keys", "list", "--data", double.ready["data"]).ok().json()
    assert [set(key["scopes"]) for key in keys] == [set(SCOPES)]
    page = double.client.get("/console")
    assert (page.status_code, "text/html" in page.headers["content-type"]) == (403, True)


def test_it_uses_no_place_of_an_ordinary_service_in_the_environment() -> None:
    ordinary = {
        "PUBLIC_URL": "https://crm.example.com",
        "FILES_S3": "files-",
        "DATA": "kept",
        "DATABASE_URL": "postgresql://db.example.com/crm",
    }
    with ephemeral(env={f"CRMCTL_SERVE_{name}": value for name, value in ordinary.items()}) as double:
        assert double.url.startswith("http://127.0.0.1:")
        upload = double.client.post("/api/v1/files/upload-url", json={"bucket": "b", "path": "a.txt"})
        assert upload.json()["signedUrl"].startswith(double.url)
    assert not Path("kept").exists()


def test_it_ends_when_the_pipe_of_its_stdin_closes(tmp_path: Path) -> None:
    service, owner = os.pipe()
    closed, end = os.pipe()
    os.close(end)
    command = [sys.executable, "-m", "crmctl", "serve", "--ephemeral"]
    with (
        subprocess.Popen(command, stdin=service, stdout=subprocess.PIPE, cwd=tmp_path) as owned,
        subprocess.Popen(command, stdin=closed, stdout=subprocess.PIPE, cwd=tmp_path) as alone,
    ):
        addresses = [json.loads(process.stdout.readline())["baseUrl"] for process in (owned, alone) if process.stdout]
        os.write(owner, b"text")
        assert [httpx.get(f"{address}/healthz", trust_env=False).status_code for address in addresses] == [200, 200]
        os.close(owner)
        assert owned.wait(PATIENCE) == 0
        assert httpx.get(f"{addresses[1]}/healthz", trust_env=False).status_code == 200
        alone.terminate()
    os.close(service)
    os.close(closed)


def test_without_ephemeral_there_are_no_controls(tmp_path: Path) -> None:
    with running_service(tmp_path / "service") as service:
        answers = {service.client.request(method, f"/_test/{path}") for path in CONTROLS for method in ("GET", "POST", "PUT", "DELETE")}
    assert {answer.status_code for answer in answers} == {404}


@pytest.mark.parametrize(
    ("rule", "status", "created"),
    [
        ("POST */records -> status=503", 503, 0),
        ("POST */records -> status=503 after", 503, 1),
        ("POST */records -> status=429 retry-after=2", 429, 0),
        ("POST */records -> drop=before", None, 0),
        ("POST */records -> drop=after", None, 1),
        ("POST */records -> cut=10", None, 1),
        ("POST */records -> delay=1ms", 201, 1),
        ("POST */records -> twice", 201, 2),
        ("POST */records -> delay=1ms status=500", 500, 0),
        ("GET */records -> drop=before", 201, 1),
        ("POST /api/v1/objects/nobody/records -> drop=before", 201, 1),
    ],
)
def test_a_fault_has_its_effect(double: Double, rule: str, status: int | None, created: int) -> None:
    double.fault(rule)
    if status is None:
        with pytest.raises(httpx.RemoteProtocolError):
            double.create(name="Ada")
    else:
        answer = double.create(name="Ada")
        assert answer.status_code == status
        assert answer.headers.get("retry-after") == ("2" if status == 429 else None)
    double.control("DELETE", "faults")
    assert double.count() == created


def test_a_delay_ends_with_its_rule_and_the_request_runs_without_its_client(double: Double) -> None:
    double.fault("POST /api/v1/* -> delay=1000s")
    body = b'{"data": {"name": "Ada"}}'
    head = f"POST {double.people()} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {double.ready['apiKey']}\r\nContent-Length: {len(body)}"
    with socket.create_connection(("127.0.0.1", int(double.url.rpartition(":")[2]))) as client:
        client.sendall(head.encode() + b"\r\n\r\n" + body)
        wait_until(lambda: bool(double.control("GET", "requests").json()))
    double.control("DELETE", "faults")
    wait_until(lambda: double.count() == 1)


@pytest.mark.parametrize(("method", "outcome"), [("POST", "restored"), ("PUT", "saved")])
def test_snapshots_wait_for_no_delay(double: Double, method: str, outcome: str) -> None:
    double.control("PUT", "snapshots/before")
    double.fault("POST /api/v1/* -> delay=1000s")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(double.url + double.people(), timeout=0.5, trust_env=False)
    assert double.control(method, "snapshots/before").json() == {outcome: "before"}
    assert double.count() == 0


def test_a_delay_does_not_hold_up_the_end() -> None:
    with start_crmctl("serve", "--ephemeral", "--fault", "GET /api/* -> delay=1000s") as process:
        ready = json.loads(process.stdout.readline())
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(f"{ready['baseUrl']}/api/v1/objects", timeout=0.5, trust_env=False)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=PATIENCE) == ("", ""), "nothing is cancelled"


def test_stale_answers_show_old_data(double: Double) -> None:
    double.create(name="Ada")
    double.fault("GET /api/v1/objects/*/records* -> stale=1000s")
    grace = double.create(name="Grace").json()["id"]
    path = f"{double.people()}/{grace}"
    assert (double.count(), double.client.get(path).status_code) == (1, 404)
    assert list(Path(double.ready["data"]).glob("stale-*")) == [], "the old data is closed after each answer"
    double.control("DELETE", "faults")
    assert (double.count(), double.client.get(path).status_code) == (2, 200)


def test_conditions_count_matching_requests(double: Double) -> None:
    def statuses(rule: str) -> list[int]:
        double.fault(rule)
        return [double.client.get("/api/v1/objects").status_code for _ in range(5)]

    assert statuses("GET /api/v1/objects [nth=3] -> status=500") == [200, 200, 500, 200, 200]
    assert statuses("* /api/v1/* [times=2] -> status=500") == [500, 500, 200, 200, 200]
    assert statuses("GET /api/v1/objects [nth=2 p=1] -> status=500") == [200, 500, 200, 200, 200]
    assert statuses("GET /api/v1/objects[nth=2] -> status=500") == [200, 500, 200, 200, 200]
    assert statuses("GET /api/v1/[no]bjects -> status=500") == [500] * 5
    assert statuses("GET /api/v1/members -> status=500") == [200] * 5
    double.control("DELETE", "faults")
    for rule in ("GET /api/v1/objects [times=1] -> status=500", "GET /api/v1/objects -> status=502"):
        double.control("POST", "faults", {"rule": rule})
    assert [double.client.get("/api/v1/objects").status_code for _ in range(2)] == [500, 502]
    assert double.control("GET", "faults").json() == [
        {"rule": "GET /api/v1/objects [times=1] -> status=500", "matched": 2, "fired": 1},
        {"rule": "GET /api/v1/objects -> status=502", "matched": 2, "fired": 1},
    ]


BAD_RULES = {
    "POST": "must be METHOD PATH",
    "POST api -> twice": "must be METHOD PATH",
    "POST /api twice": "must be METHOD PATH",
    "PSOT /api -> twice": "method must be 'GET', 'HEAD', 'POST',",
    "GET /api -> drp=after": "unknown effect 'drp'; did you mean drop?",
    "GET /api [nht=3] -> twice": "unknown condition 'nht'; did you mean nth?",
    "GET /api[nht=3] -> twice": "unknown condition 'nht'; did you mean nth?",
    "GET /api ->": "needs one effect of: status, drop, cut, stale, twice, delay",
    "GET /api -> status=500 twice": "needs one effect of:",
    "GET /api -> retry-after=2": "retry-after and after need status=CODE",
    "GET /api -> after drop=after": "retry-after and after need status=CODE",
    "GET /api -> drop=later": "drop must be 'before' or 'after'",
    "GET /api -> status=302": "status must be at least 400",
    "GET /api -> cut=-1": "cut must be at least 0",
    "GET /api -> delay=soon": "delay must be a duration such as 2d, 15m or 500ms, not 'soon'",
    "GET /api -> status": "status needs a value",
    "GET /api -> status=": "status must be an integer",
    "GET /api [p] -> twice": "p needs a value",
    "GET /api -> twice=2": "twice takes no value",
    "GET /api -> twice twice": "twice is given twice",
    "GET /api [p=2] -> twice": "p must be at most 1",
    "GET /api [p=0] -> twice": "p must be above 0",
    "GET /api [nth=0] -> twice": "nth must be at least 1",
    "GET /api [nth=many] -> twice": "nth must be an integer",
}


def test_a_malformed_rule_has_one_error_and_no_effect(double: Double) -> None:
    for rule, expected in BAD_RULES.items():
        refused = double.control("POST", "faults", {"rule": rule})
        assert (refused.status_code, refused.json()["error"]) == (400, "bad_request"), rule
        assert expected in refused.json()["message"], refused.text
    assert double.control("GET", "faults").json() == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--ephemeral", "--fault", "GET /api -> drp=after"), "unknown effect 'drp'; did you mean drop?"),
        (("--ephemeral", "--host", "0.0.0.0"), "--host and --ephemeral exclude each other"),
        (("--ephemeral", "--data", "x"), "--data and --ephemeral exclude each other"),
        (("--ephemeral", "--ready-file", "x"), "--ready-file and --ephemeral exclude each other"),
        (("--ephemeral", "--clock", "soon"), "'soon' is not a date that can be read"),
        (("--ephemeral", "--fixture", "absent"), "the fixture absent is no folder"),
        (("--fault", "GET /api -> twice"), "--fault needs --ephemeral"),
        (("--seed", "1"), "--seed needs --ephemeral"),
        (("--fixture", "."), "--fixture needs --ephemeral"),
        (("--clock", "today"), "--clock needs --ephemeral"),
    ],
)
def test_bad_options_prevent_the_start(options: tuple[str, ...], expected: str) -> None:
    refused = run_crmctl("serve", *options, "-o", "json").exits(2)
    assert expected in refused.error()["message"]
    assert refused.out == ""
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "expected"),
    [
        ("GET", "rest", None, 404, "there is nothing at this path"),
        ("GET", "reset", None, 405, "this path does not take this method"),
        ("PUT", "clock", {"now": "soon"}, 400, "'soon' is not a date"),
        ("PUT", "clock", {"then": "today"}, 400, "now is required"),
        ("PUT", "clock", {"now": "today", "then": "today"}, 400, "then is not a field"),
        ("PUT", "clock", {"now": 1}, 400, "now must be a string"),
        ("PUT", "clock", None, 400, "JSON"),
        ("POST", "snapshots/absent", None, 404, "there is no snapshot 'absent'; saved: "),
        ("GET", "deliveries?count=many", None, 400, "count must be an integer from 0 to 10000"),
    ],
)
def test_controls_refuse_invalid_requests(double: Double, method: str, path: str, body: Any, status: int, expected: str) -> None:
    answer = double.control(method, path, body)
    assert (answer.status_code, expected in answer.json()["message"]) == (status, True), answer.text


def test_requests_are_recorded_with_bodies_but_without_keys(double: Double) -> None:
    double.fault("POST /api/v1/* [nth=2] -> status=500")
    double.create(name="Ada")
    double.create(name="Grace")
    double.client.get("/api/v1/objects", params={"a": "b"})
    requests = double.control("GET", "requests").json()
    shown = [(request["method"], request["status"], request["query"], request["body"], bool(request["fault"])) for request in requests]
    assert shown == [
        ("POST", 201, "", {"data": {"name": "Ada"}}, False),
        ("POST", 500, "", {"data": {"name": "Grace"}}, True),
        ("GET", 400, "a=b", None, False),
    ]
    assert double.ready["apiKey"] not in json.dumps(requests)


def test_requests_of_pages_are_recorded_and_can_fail(double: Double) -> None:
    double.fault("GET /console* -> status=503")
    assert double.client.get("/console/records").status_code == 503
    assert [request["path"] for request in double.control("GET", "requests").json()] == ["/console/records"]


def test_snapshots_and_reset(double: Double) -> None:
    double.create(name="Ada")
    upload = double.client.post("/api/v1/files/upload-url", json={"bucket": "b", "path": "a.txt"})
    double.control("PUT", "snapshots/one")
    double.create(name="Grace")
    double.fault("GET /api/v1/members -> status=500")
    assert double.control("POST", "snapshots/one").json() == {"restored": "one"}
    assert (double.count(), double.client.get("/api/v1/members").status_code, upload.status_code < 500) == (1, 500, True)
    double.control("POST", "reset")
    assert (double.count(), double.client.get("/api/v1/members").status_code) == (0, 200)
    assert len(double.control("GET", "requests").json()) == 2


def test_a_reset_ends_the_rate_window() -> None:
    with ephemeral("--rate-limit", "3") as double:

        def spend() -> list[int]:
            return [double.client.get("/api/v1/objects").status_code for _ in range(4)]

        spend()
        assert spend() == [429] * 4
        double.control("POST", "reset")
        assert spend()[0] == 200


def test_a_reset_waits_for_requests_under_way(double: Double) -> None:
    double.fault("POST /api/v1/* -> delay=300ms")
    sender = threading.Thread(target=lambda: double.create(name="Ada"))
    sender.start()
    wait_until(lambda: bool(double.control("GET", "requests").json()))
    double.control("POST", "reset")
    sender.join()
    assert double.count() == 0


def test_the_clock_moves_records_keys_and_dates(double: Double) -> None:
    assert double.control("PUT", "clock", {"now": "2031-05-01T09:00:00Z"}).json()["now"].startswith("2031-05-01T09:00:0")
    answer = double.create(name="Ada")
    assert answer.json()["createdAt"].startswith("2031-05-01T09:0")
    assert "01 May 2031" in answer.headers["date"]
    double.control("PUT", "clock", {"now": "in 2 days"})
    assert double.create(name="Grace").json()["createdAt"].startswith("2031-05-03")
    double.control("POST", "reset")
    assert not double.create(name="Ada").json()["createdAt"].startswith("2031")


def test_equal_seeds_give_equal_runs() -> None:
    def run(seed: str) -> tuple[Any, ...]:
        with ephemeral("--seed", seed, "--fault", "POST /api/v1/* [p=0.4] -> status=500", "--clock", "2030-01-01T00:00:00Z") as double:

            def work() -> tuple[list[int], Any]:
                statuses = [double.create(name=f"Person {number}").status_code for number in range(30)]
                return statuses, double.client.get(double.people()).json()

            double.control("POST", "reset")
            first = work()
            double.control("POST", "reset")
            assert work() == first
            return (*first, double.objects)

    first, again, other = run("7"), run("7"), run("8")
    assert first == again
    assert {201, 500} == set(first[0])
    assert first[0] != other[0]
    assert first[1]["records"][0]["createdAt"].startswith("2030-01-01T00:00:00.03")


def test_every_event_is_delivered_and_recorded(double: Double) -> None:
    ada = double.create(name="Ada").json()
    double.client.delete(f"{double.people()}/{ada['id']}")
    deliveries = double.control("GET", "deliveries?count=2&timeout=100").json()
    assert [(delivery["type"], delivery["status"], delivery["body"]["recordId"]) for delivery in deliveries] == [
        ("record.created", 200, ada["id"]),
        ("record.deleted", 200, ada["id"]),
    ]
    assert {"webhook-id", "webhook-timestamp", "webhook-signature"} <= set(deliveries[0]["headers"])
    double.control("POST", "reset")
    assert double.control("GET", "deliveries").json() == []


def test_a_loaded_endpoint_gets_events(double: Double) -> None:
    with Receiver() as receiver:
        Path("endpoint.yaml").write_text(f"webhooks: [{{url: '{receiver.url}'}}]\n")
        run_crmctl("service", "load", "endpoint.yaml", "--data", double.ready["data"]).ok()
        double.create(name="Grace")
        # A new endpoint is tried by one event at a time, the oldest first.
        assert json.loads(receiver.wait_for(1)[0].body)["data"] == {"name": "Grace"}


def test_a_restored_state_delivers_nothing_again(double: Double) -> None:
    for name in ("Ada", "Grace"):
        double.create(name=name)
        double.control("PUT", "snapshots/one")
        double.control("POST", "snapshots/one")
    double.create(name="Edsger")
    deliveries = double.control("GET", "deliveries?count=1&timeout=100").json()
    assert [delivery["body"]["data"]["name"] for delivery in deliveries] == ["Edsger"]
