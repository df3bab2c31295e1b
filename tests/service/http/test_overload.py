"""Overload on both engines: requests wait only for what they need, and an abandoned request changes nothing."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from crmctl.service.http import endpoint, schemas
from crmctl.service.store import records
from crmctl.service.store.condition_sql import MAX_CONDITIONS
from crmctl.service.store.engine import Engine, Tx, open_engine
from tests.support.campaigns import rest_in_campaigns
from tests.support.databases import ANY_ENGINE, ENGINES, fresh_database
from tests.support.patience import PATIENCE, wait_until
from tests.support.service import RunningService, make_client, running_service
from tests.support.wire import Wire

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n WHERE i < 0"
RATE_HEADERS = {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"}


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with fresh_database(request, tmp_path) as url:
        yield url


@pytest.fixture
def service(database: str, tmp_path: Path) -> Iterator[RunningService]:
    with running_service(tmp_path / "data", database_url=database, request_timeout=1.0, background=False) as running:
        yield running


@contextlib.contextmanager
def people_locked(engine: Engine) -> Iterator[None]:
    """Lock, until the block ends, a row that every write of records needs."""
    locked, release = threading.Event(), threading.Event()

    def hold(tx: Tx) -> None:
        tx.execute("UPDATE record_total SET total = total")
        locked.set()
        assert release.wait(PATIENCE)

    holder = threading.Thread(target=engine.write, args=[hold])
    holder.start()
    try:
        assert locked.wait(PATIENCE)
        yield
    finally:
        release.set()
        holder.join(PATIENCE)


def assert_refused(answers: list[httpx.Response]) -> None:
    for answer in answers:
        assert (answer.status_code, answer.json()["error"]) == (503, "unavailable"), answer.text
        assert "nothing was done" in answer.json()["message"]
        assert answer.headers["retry-after"] == "1"
        assert set(answer.headers) >= RATE_HEADERS


def assert_others_are_answered(service: RunningService) -> None:
    with make_client(service.base_url, service.key) as client:
        for path in ("/healthz", "/readyz", "/api/v1/members", "/api/v1/objects"):
            assert client.get(path).status_code == 200, path


def send_together(
    times: int, send: Callable[[httpx.Client], httpx.Response], service: RunningService, between: Callable[[], None]
) -> list[Any]:
    """Return the answers to many concurrent requests; `between` runs while they are under way."""
    limits = httpx.Limits(max_connections=None)
    with (
        httpx.Client(base_url=service.base_url, headers=service.client.headers, timeout=PATIENCE, limits=limits, trust_env=False) as client,
        ThreadPoolExecutor(times) as pool,
    ):
        sent = [pool.submit(send, client) for _ in range(times)]
        between()
        return [future.result() for future in sent]


def test_writers_that_wait_too_long_for_a_lock_write_nothing(service: RunningService, database: str) -> None:
    people = service.object_id("people")
    with contextlib.closing(open_engine(database)) as other, people_locked(other):
        answers = send_together(
            30,
            lambda client: client.post(f"/api/v1/objects/{people}/records", json={"data": {"notes": "late"}}),
            service,
            lambda: assert_others_are_answered(service),
        )
    assert_refused(answers)
    assert service.client.get(f"/api/v1/objects/{people}/records").json()["pagination"]["total"] == 0
    assert service.client.post(f"/api/v1/objects/{people}/records", json={"data": {"notes": "now"}}).status_code == 201


def test_endless_searches_are_stopped_and_block_no_other_request(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    people = service.object_id("people")
    running, ended = threading.Semaphore(0), []

    def endless(tx: Tx, *_: Any, **__: Any) -> Any:
        running.release()
        try:
            return tx.all(ENDLESS)
        except BaseException as error:
            ended.append(type(error).__name__)
            raise

    monkeypatch.setattr(records, "write_list", endless)

    def between() -> None:
        assert running.acquire(timeout=PATIENCE)
        assert_others_are_answered(service)

    assert_refused(send_together(20, lambda client: client.post(f"/api/v1/objects/{people}/records/search", json={}), service, between))
    assert set(ended) <= {"OperationalError", "QueryCanceled", "Busy"}
    assert 1 <= len(ended) < 20


def test_one_key_cannot_use_all_places_for_searches(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    people = service.object_id("people")
    whole, begun = records.write_list, threading.Semaphore(0)

    def endless_with_conditions(tx: Tx, object_id: str, conditions: Any, *paging: Any, **named: Any) -> Any:
        if not conditions:
            return whole(tx, object_id, conditions, *paging, **named)
        begun.release()
        return tx.all(ENDLESS)

    monkeypatch.setattr(records, "write_list", endless_with_conditions)
    search = f"/api/v1/objects/{people}/records/search"

    def between() -> None:
        assert begun.acquire(timeout=PATIENCE)
        with service.client_with(service.key_for()) as other_client:
            assert other_client.post(search, json={}).status_code == 200

    filters = [{"attributeSlug": "name", "operator": "isNotEmpty"}]
    assert_refused(send_together(8, lambda client: client.post(search, json={"filters": filters}), service, between))


@ANY_ENGINE
@pytest.mark.parametrize("count", [MAX_CONDITIONS + 1, 999, 1500])
def test_too_many_conditions_are_refused_with_the_limit(service: RunningService, count: int) -> None:
    path = f"/api/v1/objects/{service.object_id('people')}/records"
    filters = [{"attributeSlug": "email", "operator": "contains", "value": "x"}] * count
    for answer in (
        service.client.post(f"{path}/search", json={"filters": filters}),
        service.client.get(path, params=[("filter[id][contains]", "x")] * min(count, 900)),
    ):
        assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
        assert "filters" in answer.json()["message"]
        assert str(MAX_CONDITIONS) in answer.json()["message"]


def test_the_maximum_of_conditions_of_any_kind_is_answered(service: RunningService) -> None:
    made = service.client.post("/api/v1/objects", json={"pluralName": "Things"}).json()
    attributes = f"/api/v1/objects/{made['id']}/attributes"
    options = [f"option {number}" for number in range(1000)]
    for name, kind, extra in (
        ("one", "select", {"config": {"options": options}}),
        ("many", "select", {"config": {"options": options}, "isList": True}),
        ("text", "text", {"isList": True}),
        ("amount", "number", {}),
    ):
        assert service.client.post(attributes, json={"name": name, "slug": name, "type": kind, **extra}).status_code == 201
    search = f"/api/v1/objects/{made['id']}/records/search"
    for slug, operator, value, status in (
        ("one", "equals", "option 1", 200),
        ("one", "contains", "option", 400),
        ("many", "notEquals", "option 2", 200),
        ("many", "contains", "option 99", 200),
        ("text", "notContains", "x", 200),
        ("text", "startsWith", "x", 200),
        ("amount", "greaterThan", "1", 200),
        ("amount", "isEmpty", "true", 200),
    ):
        filters = [{"attributeSlug": slug, "operator": operator, "value": value}] * MAX_CONDITIONS
        answer = service.client.post(search, json={"filters": filters})
        assert answer.status_code == status, (slug, operator, answer.text[:300])


@ANY_ENGINE
def test_a_body_with_too_many_values_is_refused_before_parsing(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"/api/v1/objects/{service.object_id('people')}/records"
    monkeypatch.setattr(schemas.jsontext, "loads", None)
    for body in (
        b"[" + b"1," * schemas.MOST_VALUES + b"1]",
        b'{"data":' + b"[" * 60 + b'"a",' * (schemas.MOST_VALUES + 1),
        b'"",' * 400_000,
    ):
        answer = service.client.post(path, content=body)
        assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
        assert "200,000 values" in answer.json()["message"]


@ANY_ENGINE
def test_signs_in_texts_do_not_count_as_values(service: RunningService) -> None:
    path = f"/api/v1/objects/{service.object_id('people')}/records/bulk"
    text = ',[{\\"' * 10_000
    items = ",".join(f'{{"data":{{"notes":"{text}"}}}}' for _ in range(20))
    answer = service.client.post(path, content=f'{{"records":[{items}]}}')
    assert (answer.status_code, answer.json()) == (200, {"created": 20, "updated": 0, "failed": []})


@ANY_ENGINE
def test_a_repeated_name_among_many_is_found_quickly(service: RunningService) -> None:
    members = ",".join(f'"{number}":0' for number in range(90_000))
    answer = service.client.post("/api/v1/objects", content=f'{{{members},"89999":1}}')
    assert (answer.status_code, "'89999'" in answer.json()["message"]) == (400, True)


@ANY_ENGINE
def test_a_body_nested_too_deeply_is_refused(service: RunningService) -> None:
    for depth in (65, 5000, 100_000):
        answer = service.client.post("/api/v1/objects", content=b"[" * depth + b"]" * depth)
        assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")


def test_answers_that_clients_do_not_take_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of large records has up to 100 MB, and a client may take it slowly."""
    monkeypatch.setattr(endpoint, "MOST_ANSWER_BYTES", 1_000_000)
    with running_service(tmp_path / "data", background=False) as service:
        people = f"/api/v1/objects/{service.object_id('people')}"
        for number in range(9):
            service.client.post(f"{people}/attributes", json={"name": f"Text {number}", "type": "text"})
        large = {"data": {f"text_{number}": "x" * 99_000 for number in range(9)}}
        assert service.client.post(f"{people}/records/bulk", json={"records": [large] * 9}).json()["created"] == 9
        with Wire(service.base_url, service.key) as slow, service.client_with(service.key_for(["records:read"])) as stranger:
            slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            slow.send(f"GET {people}/records HTTP/1.1\r\n{slow.headers}\r\n")
            assert slow.answer(has_body=False)[0] == 200
            assert_refused([service.client.get("/api/v1/members")])
            assert service.client.post(f"{people}/records", json={"data": {}}).status_code == 201
            assert stranger.get(f"{people}/records?limit=1").status_code == 200
        wait_until(lambda: service.client.get("/api/v1/members").status_code == 200)


@pytest.mark.parametrize("count", rest_in_campaigns([300, 1200]))
def test_slow_clients_do_not_delay_others(service: RunningService, count: int) -> None:
    people = service.object_id("people")
    half_head = "GET /healthz HTTP/1.1\r\n"
    half_body = (
        f"POST /api/v1/objects/{people}/records HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {service.key}\r\n"
        'Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"data":'
    )
    with contextlib.ExitStack() as opened:
        for number in range(count):
            opened.enter_context(Wire(service.base_url)).send(half_body if number % 4 == 0 else half_head)
        assert_others_are_answered(service)
        made = service.client.post(f"/api/v1/objects/{people}/records", json={"data": {"name": "Ada"}})
        assert made.status_code == 201, made.text
    assert service.client.get(f"/api/v1/objects/{people}/records").json()["pagination"]["total"] == 1
