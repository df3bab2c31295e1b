"""Unusual clients on real sockets: sizes, slowness, HEAD, pipelines, broken HTTP, internal failures."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crmctl.service.store import members
from tests.support.service import RunningService, running_service
from tests.support.wire import Wire

BODY_LIMIT = 50_000


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    with running_service(tmp_path, body_limit=BODY_LIMIT, background=False) as running:
        yield running


@pytest.fixture
def wire(service: RunningService) -> Iterator[Wire]:
    with Wire(service.base_url, service.key) as connection:
        yield connection


def test_a_declared_body_over_the_limit_is_refused_unread(wire: Wire) -> None:
    wire.send(f"POST /api/v1/objects HTTP/1.1\r\n{wire.headers}Content-Length: {BODY_LIMIT + 1}\r\nExpect: 100-continue\r\n\r\n")
    status, headers, body = wire.answer()
    assert status == 413
    assert json.loads(body) | {"error": "payload_too_large", "details": {"limit": BODY_LIMIT}} == json.loads(body)
    assert "x-ratelimit-limit" in headers


def test_an_undeclared_body_over_the_limit_is_refused_too(service: RunningService) -> None:
    answer = service.client.post("/api/v1/objects", content=(b" " * 10_000 for _ in range(20)))
    assert answer.status_code == 413
    assert service.client.post("/api/v1/objects", content=b" " * BODY_LIMIT).status_code == 400


def test_expect_100_continue_is_answered_before_the_body_comes(wire: Wire) -> None:
    body = b'{"pluralName": "Plans"}'
    wire.send(f"POST /api/v1/objects HTTP/1.1\r\n{wire.headers}Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n")
    assert wire.answer()[0] == 100
    wire.send(body)
    assert wire.answer()[0] == 201


def test_a_client_that_disconnects_is_logged_and_forgotten(service: RunningService) -> None:
    with Wire(service.base_url, service.key) as wire:
        wire.send(f"POST /api/v1/objects HTTP/1.1\r\n{wire.headers}Content-Length: 100\r\n\r\n{{")
        assert service.client.get("/api/v1/objects").status_code == 200
    service.stop()
    assert {entry["status"] for entry in service.log} <= {200, 408, 499}
    assert len(service.log) == 2


def test_head_is_get_without_the_body(wire: Wire) -> None:
    wire.send(f"HEAD /api/v1/objects HTTP/1.1\r\n{wire.headers}\r\n")
    status, headers, _ = wire.answer(has_body=False)
    wire.send(f"GET /api/v1/objects HTTP/1.1\r\n{wire.headers}\r\n")
    assert (status, int(headers["content-length"])) == (200, len(wire.answer()[2]))


def test_one_connection_serves_many_requests_even_pipelined(wire: Wire) -> None:
    request = f"GET /api/v1/members HTTP/1.1\r\n{wire.headers}\r\n"
    wire.send(request * 5)
    assert [wire.answer()[0] for _ in range(5)] == [200] * 5
    wire.send(f"POST /api/v1/objects HTTP/1.1\r\n{wire.headers}Content-Length: 3\r\n\r\nnot{request}")
    assert [wire.answer()[0] for _ in range(2)] == [400, 200]


def test_invalid_http_gets_the_usual_error(wire: Wire) -> None:
    wire.send("NONSENSE\r\n\r\n")
    status, headers, body = wire.answer()
    assert (status, json.loads(body)["error"]) == (400, "bad_request")
    assert headers["content-type"] == "application/json"
    assert {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"} <= set(headers)


def test_an_internal_error_reveals_nothing(
    service: RunningService, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(tx: Any) -> Any:
        raise RuntimeError("the secret of the vault")

    monkeypatch.setattr(members, "list_members", fail)
    answer = service.client.get("/api/v1/members")
    assert answer.status_code == 500
    assert answer.json() == {"error": "internal_error", "message": "the service failed to answer this request"}
    assert "x-ratelimit-remaining" in answer.headers
    assert "the secret of the vault" in capfd.readouterr().err
    assert service.client.get("/api/v1/objects").status_code == 200


def test_the_allow_header_names_every_method_of_the_path(service: RunningService) -> None:
    people = service.object_id("people")
    for path, methods in (
        ("/api/v1/objects", "GET, HEAD, POST"),
        (f"/api/v1/objects/{people}/records/bulk", "DELETE, POST"),
        (f"/api/v1/objects/{people}/records/{people}", "DELETE, GET, HEAD, PATCH"),
        ("/healthz", "GET, HEAD"),
    ):
        answer = service.client.options(path)
        assert (answer.status_code, answer.json()["error"], answer.headers["allow"]) == (405, "method_not_allowed", methods)


def test_a_compressed_body_is_refused(service: RunningService) -> None:
    content = gzip.compress(b'{"pluralName": "Plans"}')
    answer = service.client.post("/api/v1/objects", content=content, headers={"Content-Encoding": "gzip"})
    assert (answer.status_code, answer.json()["error"]) == (415, "unsupported_media_type")
    assert "Content-Encoding" in answer.json()["message"]


def test_an_absolute_address_as_request_target_is_accepted(service: RunningService, wire: Wire) -> None:
    for target in (f"{service.base_url}/api/v1/objects?", "HTTP://elsewhere/api/v1/objects"):
        wire.send(f"GET {target} HTTP/1.1\r\n{wire.headers}\r\n")
        status, _, body = wire.answer()
        assert (status, list(json.loads(body))) == (200, ["objects"])
    assert {entry["path"] for entry in service.log} == {"/api/v1/objects"}


def test_the_openapi_document_lists_every_status(service: RunningService) -> None:
    paths = service.client.get("/openapi.json").json()["paths"]
    for path, operations in paths.items():
        for method, operation in operations.items():
            assert {"400", "401", "405", "429", "431"} <= set(operation["responses"]), (method, path)
    record = paths["/api/v1/objects/{objectId}/records/{recordId}"]
    assert {"304", "404"} <= set(record["get"]["responses"])
    assert {"412", "413", "415"} <= set(record["patch"]["responses"])


def test_probes_need_no_key(service: RunningService) -> None:
    with service.client_with(None) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/readyz").json() == {"status": "ready"}
        assert client.get("/nothing").json()["error"] == "not_found"
        assert client.get("/api/v1/members").status_code == 401
        text = client.get("/metrics").text
    assert 'crm_requests_total{method="GET",route="/healthz",status="200"} 1.0' in text
    assert 'crm_requests_total{method="any",route="none",status="401"} 1.0' in text
