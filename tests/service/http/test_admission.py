"""Keys, scopes and the rate limit of HTTP requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from crmctl.models.scopes import SCOPES
from crmctl.service.store import keys
from tests.support.clock import FakeClock
from tests.support.service import RunningService, make_client, running_service

NIL = "00000000-0000-4000-8000-000000000000"
LIMIT = 20


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    with running_service(tmp_path, rate_limit=LIMIT, clock=FakeClock(1_800_000_030.0), background=False) as running:
        yield running


def figures(answer: httpx.Response) -> tuple[int, int, int]:
    return tuple(int(answer.headers[f"x-ratelimit-{name}"]) for name in ("limit", "remaining", "reset"))  # type: ignore[return-value]


@pytest.mark.parametrize("header", [None, "", "Bearer", "Basic YTpi", "crs_naked", "Bearer crs_wrong", "Bearer \xe9"])
def test_every_endpoint_refuses_requests_without_a_valid_key(service: RunningService, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    with make_client(service.base_url, None) as stranger:
        for method, path in (
            ("GET", "/api/v1/objects"),
            ("POST", "/api/v1/objects"),
            ("GET", "/api/v1/nothing"),
            ("PUT", "/api/v1/members"),
        ):
            answer = stranger.request(method, path, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"] == "unauthorized"
            assert answer.headers["www-authenticate"] == "Bearer"
            assert figures(answer) == (LIMIT, LIMIT, 1_800_000_090)
    assert service.client.get("/api/v1/objects").headers["x-ratelimit-remaining"] == str(LIMIT - 1)


def test_the_scheme_is_case_insensitive(service: RunningService) -> None:
    with make_client(service.base_url, None) as client:
        assert client.get("/api/v1/members", headers={"Authorization": f"bearer  {service.key}"}).status_code == 200


def test_two_keys_are_refused_in_either_order(service: RunningService) -> None:
    for secrets in ((service.key, "crs_wrong"), ("crs_wrong", service.key), (service.key, service.key)):
        headers = [("Authorization", f"Bearer {secret}") for secret in secrets]
        assert httpx.get(f"{service.base_url}/api/v1/members", headers=headers, trust_env=False).status_code == 401


def test_a_key_is_refused_once_it_expires(service: RunningService) -> None:
    with service.client_with(service.key_for(expires_in=10)) as client:
        assert client.get("/api/v1/objects").status_code == 200
        service.clock.sleep(9.9)
        assert client.get("/api/v1/objects").status_code == 200
        service.clock.sleep(0.1)
        refused = client.get("/api/v1/objects")
    assert refused.status_code == 401
    assert "expired" in refused.json()["message"]


def test_a_revoked_key_is_refused_at_once(service: RunningService) -> None:
    secret = service.key_for()
    [key] = [key for key in service.engine.read(keys.list_keys) if key.name == "test"]
    with service.client_with(secret) as client:
        assert client.get("/api/v1/objects").status_code == 200
        service.engine.write(lambda tx: keys.revoke_key(tx, key.id, now=service.clock.now()))
        assert client.get("/api/v1/objects").status_code == 401


OBJECT = f"/api/v1/objects/{NIL}"
NEEDS = [
    ("GET", "/api/v1/objects", "objects:read"),
    ("GET", OBJECT, "objects:read"),
    ("POST", "/api/v1/objects", "objects:write"),
    ("PATCH", OBJECT, "objects:write"),
    ("DELETE", OBJECT, "objects:write"),
    ("GET", f"{OBJECT}/attributes", "attributes:read"),
    ("GET", f"{OBJECT}/attributes/{NIL}", "attributes:read"),
    ("POST", f"{OBJECT}/attributes", "attributes:write"),
    ("PATCH", f"{OBJECT}/attributes/{NIL}", "attributes:write"),
    ("DELETE", f"{OBJECT}/attributes/{NIL}", "attributes:write"),
    ("GET", f"{OBJECT}/records", "records:read"),
    ("POST", f"{OBJECT}/records/search", "records:read"),
    ("GET", f"{OBJECT}/records/{NIL}", "records:read"),
    ("POST", f"{OBJECT}/records", "records:write"),
    ("PATCH", f"{OBJECT}/records/{NIL}", "records:write"),
    ("DELETE", f"{OBJECT}/records/{NIL}", "records:write"),
    ("POST", f"{OBJECT}/records/bulk", "records:write"),
    ("DELETE", f"{OBJECT}/records/bulk", "records:write"),
    ("GET", "/api/v1/members", "members:read"),
]


def test_every_endpoint_names_its_required_scope(tmp_path: Path) -> None:
    with running_service(tmp_path, background=False) as service:
        everything_but = {scope: service.key_for(set(SCOPES) - {scope}) for _, _, scope in NEEDS}
        just = {scope: service.key_for({scope}) for _, _, scope in NEEDS}
        for method, path, scope in NEEDS:
            with service.client_with(everything_but[scope]) as client:
                # The service does not even read the body: a client without permission learns nothing about it.
                refused = client.request(method, path, content=b"{")
            assert refused.status_code == 403, (method, path)
            assert refused.json() == {
                "error": "insufficient_scope",
                "message": f"this API key lacks the scope {scope}",
                "details": {"requiredScope": scope},
            }
            with service.client_with(just[scope]) as client:
                assert client.request(method, path, content=b"{").status_code != 403, (method, path)
        assert service.outbox() == []


def test_every_answer_counts_and_shows_the_rate_limit(service: RunningService) -> None:
    paths = ["/api/v1/objects", "/api/v1/nothing", OBJECT, "/api/v1/objects?limit=1", "/api/v1/objects"]
    seen = [service.client.get(path) for path in paths]
    assert [answer.status_code for answer in seen] == [200, 404, 404, 400, 200]
    seen.append(service.client.put("/api/v1/objects"))
    seen.append(service.client.head("/api/v1/objects"))
    assert [figures(answer) for answer in seen] == [(LIMIT, LIMIT - taken, 1_800_000_060) for taken in range(1, 8)]


def test_requests_over_the_limit_get_429_until_the_window_ends(service: RunningService) -> None:
    for _ in range(LIMIT):
        assert service.client.get("/api/v1/members").status_code == 200
    for wait, moved in ((30, 0.0), (25, 5.5), (1, 24.4)):
        service.clock.sleep(moved)
        refused = service.client.post("/api/v1/objects", json={"pluralName": "X"})
        assert refused.status_code == 429
        assert refused.json()["error"] == "rate_limited"
        assert refused.headers["retry-after"] == str(wait)
        assert figures(refused) == (LIMIT, 0, 1_800_000_060)
    with service.client_with(service.key_for()) as other:
        assert figures(other.get("/api/v1/members"))[1] == LIMIT - 1
    service.clock.sleep(0.1)
    assert figures(service.client.get("/api/v1/members")) == (LIMIT, LIMIT - 1, 1_800_000_120)
    assert "X" not in [crm_object["pluralName"] for crm_object in service.client.get("/api/v1/objects").json()["objects"]]


def test_waiting_for_retry_after_is_always_enough(service: RunningService) -> None:
    for _ in range(LIMIT + 1):
        answer = service.client.get("/api/v1/members")
    assert answer.status_code == 429
    service.clock.sleep(float(answer.headers["retry-after"]))
    assert service.client.get("/api/v1/members").status_code == 200


def test_no_limit_is_shown_as_a_large_one(tmp_path: Path) -> None:
    with running_service(tmp_path, rate_limit=0, background=False) as service:
        limit, remaining, reset = figures(service.client.get("/api/v1/members"))
        assert limit == 2147483647
        assert remaining == 2147483647
        assert reset > service.clock.now()


def test_the_key_is_in_no_log_and_no_answer(service: RunningService) -> None:
    texts = [service.client.get(path).text for path in ("/api/v1/objects", "/metrics", "/openapi.json", f"/api/v1/{service.key}x")]
    assert service.key not in "".join(texts[:3])
    entries = list(service.log)
    assert [entry["keyId"] is None for entry in entries] == [False, True, True, False]
    assert set(entries[0]) == {"time", "method", "path", "status", "ms", "keyId", "requestId", "address"}
    assert service.key not in json.dumps(entries[:3])
