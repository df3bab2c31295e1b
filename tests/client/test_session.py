"""Requests over real sockets: addresses, the key, retries, errors and messages."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pytest

from crmctl.client.rate_limit.limiter import Budget
from crmctl.client.session import Redactor, Session
from crmctl.client.transport import HttpTransport
from crmctl.config.credentials import Credential
from crmctl.errors import (
    CrmctlError,
    DeniedError,
    ForbiddenError,
    NetworkError,
    NotFoundError,
    RateLimitedError,
    RejectedError,
    ServiceError,
    UsageError,
)
from tests.client.conftest import KEY, Scene
from tests.support.clock import FakeClock
from tests.support.httpserver import Drop, Hang, Reply, ScriptedServer
from tests.support.zones import in_zone

ID = "6f1c1c3e-8a55-4f59-9d1b-2f6f3c7d9a10"
EMPTY = Reply(json={"objects": []})
Play = Callable[..., AbstractContextManager[Scene]]


def test_every_request_carries_the_key_and_who_asks(scene: Play) -> None:
    with scene(EMPTY) as here:
        here.crm.list_objects()
        headers = here.server.requests[0].headers
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["user-agent"].startswith("crmctl/")
    assert headers["accept"] == "application/json"


@pytest.mark.parametrize("prefix", ["", "/", "/sub", "/sub/", "/api/v1", "/sub/api/v1/"])
@pytest.mark.parametrize("path", ["objects", "/objects", "/api/v1/objects"])
def test_one_address_however_it_is_written(scene: Play, prefix: str, path: str) -> None:
    with scene(EMPTY, prefix=prefix) as here:
        here.session.request("GET", path)
        assert here.server.requests[0].path == ("/sub" if "sub" in prefix else "") + "/api/v1/objects"


def test_absolute_addresses_only_of_the_service_itself(scene: Play) -> None:
    with scene(EMPTY, prefix="/sub") as here:
        here.session.request("GET", f"{here.server.origin}/sub/api/v1/objects?x=1")
        assert here.server.requests[0].target == "/sub/api/v1/objects?x=1"
        with pytest.raises(UsageError):
            here.session.request("GET", "https://elsewhere.example/api/v1/objects")


def test_a_name_that_does_not_exist_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    clock, base_url = FakeClock(0.0), "https://crm.invalid"
    session = Session(base_url, Credential(KEY, "a test", base_url), HttpTransport(environ={}), clock=clock)
    session._is_reached = True  # even of a service that has answered before
    with pytest.raises(NetworkError, match=r"crm\.invalid"):
        session.request("GET", "/objects")
    assert (session.take_requests(), clock.now()) == (1, 0.0)
    session.close()


def test_query_values_arrive_to_the_byte(scene: Play) -> None:
    query = [("filter[email][contains]", "a+b & c=d%20/ü'\"[x]"), ("limit", "5")]
    with scene(EMPTY) as here:
        here.session.request("GET", "/objects", query=query)
        assert here.server.requests[0].query == query


def test_bodies_are_json_and_absent_where_there_is_nothing(scene: Play) -> None:
    with scene(Reply(json={"id": ID}), Reply(202, json={})) as here:
        here.crm.create_record(ID, {"name": "Zoë", "amount": 1.50})
        here.crm.run_workflow(ID)
        first, second = here.server.requests
    assert first.json == {"data": {"name": "Zoë", "amount": 1.50}}
    assert first.headers["content-type"] == "application/json"
    assert second.body == b""
    assert "content-type" not in second.headers


def test_a_key_of_another_origin_is_not_sent() -> None:
    with ScriptedServer() as server, pytest.raises(DeniedError) as caught:
        Session(server.origin, Credential(KEY, "test", "https://crm.example"), HttpTransport())
    assert KEY not in caught.value.message


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
def test_repeatable_requests_are_repeated(scene: Play, method: str, status: int) -> None:
    with scene(Reply(status), Reply(status), EMPTY) as here:
        here.session.request(method, "/objects", body=None if method != "PATCH" else {})
        assert here.clock.slept == [0.25, 0.5]


@pytest.mark.parametrize("step", [Drop(), Drop(reset=True), Reply(json={"objects": []}, cut=60)])
def test_a_get_with_a_lost_answer_is_retried(scene: Play, step: Reply) -> None:
    with scene(step, EMPTY) as here:
        assert here.crm.list_objects() == []


@pytest.mark.parametrize("status", [408, 500])
def test_these_are_not_repeated(scene: Play, status: int) -> None:
    with scene(Reply(status)) as here, pytest.raises((ServiceError, RejectedError)):
        here.crm.list_objects()


@pytest.mark.parametrize("step", [Drop(), Drop(reset=True), Reply(502), Reply(503), Reply(500), Reply(201, json={"id": ID}, cut=50)])
def test_a_post_of_unknown_outcome_is_never_repeated(scene: Play, step: Reply) -> None:
    with scene(step) as here:
        with pytest.raises((NetworkError, ServiceError)) as caught:
            here.crm.create_record(ID, {})
        assert caught.value.outcome_unknown
        assert here.clock.slept == []
        error = caught.value.to_document()["error"]
        assert error["retryable"] is False  # a script that trusted True would write twice
        assert "look before you repeat" in error["hint"]


def test_a_post_is_repeated_after_a_rate_limit_and_a_search_always(scene: Play) -> None:
    with scene(
        Reply(429, headers={"Retry-After": "7"}), Reply(201, json={"id": ID}), Drop(), Reply(503), Reply(json={"records": []})
    ) as here:
        here.crm.create_record(ID, {})
        assert here.clock.slept == [7.25]
        assert here.crm.search_records(ID).items == []
        assert [request.path.rpartition("/")[2] for request in here.server.requests] == ["records", "records", "search", "search", "search"]


def test_a_search_that_fails_has_changed_nothing(scene: Play) -> None:
    with scene(Reply(500)) as here:
        with pytest.raises(ServiceError) as caught:
            here.crm.search_records(ID)
        assert not caught.value.outcome_unknown


def test_a_bulk_delete_is_not_repeated_in_doubt(scene: Play) -> None:
    with scene(Drop(), Reply(429), Reply(json={"deleted": 1})) as here:
        with pytest.raises(NetworkError) as caught:
            here.crm.bulk_delete(ID, [ID])
        assert caught.value.outcome_unknown
        assert here.crm.bulk_delete(ID, [ID]) == 1
        assert (here.server.requests[0].method, here.server.requests[0].json) == ("DELETE", {"ids": [ID]})


@pytest.mark.parametrize("doubt", [Drop(), Drop(reset=True), Reply(504), Reply(502)])
def test_a_delete_in_doubt_that_finds_nothing_has_deleted(scene: Play, doubt: Reply) -> None:
    with scene(doubt, Reply(404, json={"error": "not_found", "message": "no"})) as here:
        here.crm.delete_record(ID, ID)


def test_a_delete_that_was_only_held_up_and_finds_nothing_is_not_found(scene: Play) -> None:
    with scene(Reply(429), Reply(404, json={"error": "not_found", "message": "no such record"})) as here, pytest.raises(NotFoundError):
        here.crm.delete_record(ID, ID)


def test_a_connection_that_was_never_made_lets_a_post_try_again(scene: Play) -> None:
    with scene() as here:
        with ScriptedServer(Reply(json={}, headers={"Connection": "close"})) as gone:
            origin = gone.origin
            reached, unreached = (
                Session(origin, Credential(KEY, "test", origin), HttpTransport(), clock=here.clock, random=lambda: 0.5) for _ in range(2)
            )
            reached.request("GET", "/objects")
        # The session never reached this service and does not retry: a user is waiting for the answer.
        for session, waits in ((unreached, 0), (reached, 4)):
            with pytest.raises(NetworkError) as caught:
                session.request("POST", "/objects", body={})
            session.close()
            assert not caught.value.outcome_unknown
            assert len(here.clock.slept) == waits
            assert "refused" in caught.value.message


def test_max_wait_bounds_a_rate_limit(scene: Play) -> None:
    with scene(Reply(429, headers={"Retry-After": "90"}, json={"error": "rate_limited", "message": "slow down"}), max_wait=60) as here:
        with pytest.raises(RateLimitedError) as caught:
            here.crm.list_objects()
        assert here.clock.slept == []
    error = caught.value
    assert (int(error.exit_code), error.code, error.status, error.retry_after, error.retryable) == (5, "rate_limited", 429, 90, True)
    assert "slow down" in error.message


@pytest.mark.parametrize(("wait", "says"), [("90", "back 08:01:30"), ("57600", "back 2027-01-16 00:00:00"), ("9" * 20, "back 2058-09-23")])
def test_a_moment_on_another_day_has_its_date(scene: Play, wait: str, says: str) -> None:
    slow = Reply(429, headers={"Retry-After": wait}, json={"message": "slow"})
    with in_zone("UTC"), scene(slow, max_wait=60) as here, pytest.raises(RateLimitedError, match=says):
        here.crm.list_objects()


class _Slow(Budget):
    """A transport whose requests take 40 seconds."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    def answered(self, slot: int, status: int, headers: Mapping[str, str]) -> None:
        self.clock.advance(40)


def test_max_wait_bounds_the_whole_time_and_not_the_pauses_alone(scene: Play) -> None:
    clock = FakeClock()
    with scene(Reply(503), Reply(503), max_wait=60, clock=clock, budget=_Slow(clock)) as here, pytest.raises(ServiceError):
        here.crm.list_objects()


def test_a_long_wait_is_explained(scene: Play) -> None:
    with scene(Reply(429, headers={"Retry-After": "40"}), EMPTY) as here:
        here.crm.list_objects()
        assert len(here.notes) == 1
        assert here.notes[0].startswith("rate limit: waiting 40 s until ")


def test_silence_is_a_timeout_of_unknown_outcome_for_a_write(scene: Play) -> None:
    with scene(Hang(), timeout=0.2) as here, pytest.raises(NetworkError) as caught:
        here.crm.create_record(ID, {})
    assert (caught.value.code, caught.value.outcome_unknown, int(caught.value.exit_code)) == ("timeout", True, 6)
    assert caught.value.hint == "the service may have done it all the same: look before you repeat it; --timeout SECONDS allows more"


ERRORS: list[tuple[Reply, type[CrmctlError], int, str | None, str]] = [
    (Reply(400, json={"error": "bad_request", "message": "slug taken"}), RejectedError, 9, "bad_request", "slug taken"),
    (Reply(401, json={"error": "unauthorized", "message": "bad key"}), DeniedError, 4, "unauthorized", "bad key"),
    (Reply(401), DeniedError, 4, "unauthorized", "API key"),
    (Reply(403, json={"error": "forbidden", "message": "standard object"}), ForbiddenError, 4, "forbidden", "standard object"),
    (Reply(404, text="nope"), NotFoundError, 3, "not_found", "nope"),
    (Reply(404, text="<html>", content_type="text/html"), NotFoundError, 3, "not_found", "nothing"),
    (Reply(409, json={"error": {"code": "conflict", "message": "exists"}}), RejectedError, 9, "conflict", "exists"),
    (Reply(404, json={"errors": {"id": ["no such record"]}}), NotFoundError, 3, "not_found", "id: no such record"),
    (Reply(413, text="too big"), RejectedError, 9, "rejected", "too big"),
    (Reply(422, json={"detail": [{"loc": ["body"], "msg": "field required"}]}), RejectedError, 9, "rejected", "field required"),
    (Reply(400, json={"detail": "no"}), RejectedError, 9, "rejected", "no"),
    (Reply(400, json={"error": "Something is wrong here"}), RejectedError, 9, "rejected", "Something is wrong here"),
    (Reply(400, json={"errors": ["a", {"message": "b"}]}), RejectedError, 9, "rejected", "a; b"),
    (Reply(422, json={"message": "Invalid.", "details": {"email": ["taken"]}}), RejectedError, 9, "rejected", "Invalid: email: taken"),
    (
        Reply(422, json={"message": "Invalid", "errors": [{"field": "a", "message": "x y"}]}),
        RejectedError,
        9,
        "rejected",
        "Invalid: a: x y",
    ),
    (Reply(422, json={"detail": [{"loc": ["body", "data", "a"], "msg": "x"}]}), RejectedError, 9, "rejected", "a: x"),
    (Reply(409, json={"error": "e", "message": "a is taken", "details": {"a": "is taken"}}), RejectedError, 9, "e", "a is taken"),
    (Reply(400, json={"error": "e", "message": "no", "details": {"traceId": "a1", "limit": 3}}), RejectedError, 9, "e", "no"),
    (
        Reply(422, json={"errors": [{"field": f, "message": "is bad"} for f in "abcdefg"]}),
        RejectedError,
        9,
        "rejected",
        "e: is bad; and 2 more",
    ),
    (Reply(404, text="<h1>Not Found</h1>", headers={"content-type": "text/html"}), NotFoundError, 3, "not_found", "<h1>Not Found</h1>"),
    (Reply(400, json=["odd"]), RejectedError, 9, "rejected", "400"),
    (
        Reply(400, json={"error": "Bad Request", "message": ["a is b", "c is d"]}),
        RejectedError,
        9,
        "rejected",
        "Bad Request: a is b; c is d",
    ),
    (Reply(400, json={"error": "invalid", "message": ["a is b"]}), RejectedError, 9, "invalid", "a is b"),
    (Reply(403, json={"error": "no", "details": "words of detail"}), ForbiddenError, 4, "no", "words of detail"),
    (Reply(403, text="<h1>Blocked</h1>", content_type="text/html"), ForbiddenError, 4, "forbidden", "text/html: <h1>Blocked</h1>"),
    (Reply(401, text="<h1>Sign in</h1>", content_type="text/html"), DeniedError, 4, "unauthorized", "text/html: <h1>Sign in</h1>"),
    (Reply(400, text='{"message":%s}' % ("[" * 900 + "]" * 900)), RejectedError, 9, "rejected", "status 400"),
    (Reply(403, text='{"details":%s}' % ('{"a":' * 900 + "1" + "}" * 900)), ForbiddenError, 4, "forbidden", "the key may not do this"),
    (Reply(418), RejectedError, 9, "rejected", "418"),
    (Reply(500, json={"error": "internal", "message": "boom"}), ServiceError, 7, "internal", "boom"),
    (Reply(500, text="<h1>Oops</h1>", content_type="text/html"), ServiceError, 7, "service_error", "Oops"),
    (Reply(501), ServiceError, 7, "service_error", "501"),
    (Reply(200, text="[" * 100_000), ServiceError, 7, "unreadable_answer", "cannot be read"),
    (Reply(200, text='{"objects": [1e99999999999999999999]}'), ServiceError, 7, "unreadable_answer", "cannot be read"),
]


@pytest.mark.parametrize(("reply", "kind", "exit_code", "code", "words"), ERRORS)
def test_errors_in_any_shape(scene: Play, reply: Reply, kind: type[CrmctlError], exit_code: int, code: str, words: str) -> None:
    with scene(reply) as here, pytest.raises(CrmctlError) as caught:
        here.crm.list_objects()
    error = caught.value
    assert (type(error), int(error.exit_code), error.code, error.status) == (kind, exit_code, code, reply.status)
    assert words in error.message
    assert "\n" not in error.message


@pytest.mark.parametrize("details", [{"field": "email"}, None])
@pytest.mark.parametrize("wrap", [lambda error: {**error, "error": error["code"]}, lambda error: {"error": error}])
def test_details_of_the_service_are_kept(scene: Play, wrap: Callable[[Any], Any], details: Any) -> None:
    error = {"code": "conflict", "message": "m", "details": details}
    with scene(Reply(409, json=wrap(error))) as here, pytest.raises(RejectedError) as caught:
        here.crm.list_objects()
    assert (caught.value.code, caught.value.details) == ("conflict", details)


@pytest.mark.parametrize(
    "body",
    [
        {"error": "insufficient_scope", "message": "missing", "details": {"requiredScope": "objects:read"}},
        {"error": "insufficient_scope", "message": "This key needs the 'objects:read' scope"},
        {"error": {"code": "insufficient_scope", "message": "x", "details": {"requiredScope": "objects:read"}}},
    ],
)
def test_a_missing_scope_is_named(scene: Play, body: Any) -> None:
    with scene(Reply(403, json=body)) as here, pytest.raises(DeniedError) as caught:
        here.crm.list_objects()
    assert caught.value.required_scope == "objects:read"
    assert "objects:read" in caught.value.message
    assert "objects:read" in (caught.value.hint or "")
    assert caught.value.code == "insufficient_scope"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_key_does_not_follow_a_redirect_to_another_origin(scene: Play, status: int) -> None:
    with ScriptedServer() as other, scene(Reply(status, headers={"Location": f"{other.origin}/login?next=x"})) as here:
        with pytest.raises(ServiceError) as caught:
            here.crm.list_objects()
        assert f"{other.origin}/login" in caught.value.message
        assert other.requests == []


def test_a_get_follows_within_the_origin_and_a_post_does_not(scene: Play) -> None:
    with scene(Reply(308, headers={"Location": "/api/v1/objects/"}), EMPTY, Reply(307, headers={"Location": "/x"})) as here:
        assert here.crm.list_objects() == []
        assert [request.path for request in here.server.requests] == ["/api/v1/objects", "/api/v1/objects/"]
        with pytest.raises(ServiceError) as caught:
            here.crm.create_object({})
        assert (caught.value.code, caught.value.outcome_unknown) == ("redirected", False)
        assert caught.value.message == "the service answers 307 and points to /x; crmctl follows no redirect of a POST"


@pytest.mark.parametrize("location", ["http://[::1/x", "http://127.0.0.1:99999999/x", "javascript:alert(1)"])
def test_a_redirect_to_no_address_is_an_error_of_the_service(scene: Play, location: str) -> None:
    with scene(Reply(302, headers={"Location": location})) as here, pytest.raises(ServiceError, match=r"answers 302 and points to"):
        here.crm.list_objects()


@pytest.mark.parametrize("status", [302, 304])
def test_a_redirect_without_an_address_says_so(scene: Play, status: int) -> None:
    with scene(Reply(status)) as here, pytest.raises(ServiceError, match=f"answers {status} and names no other address"):
        here.crm.list_objects()


def test_a_ring_of_redirects_ends(scene: Play) -> None:
    ring = [Reply(302, headers={"Location": f"/{number}"}) for number in range(6)]
    with scene(*ring) as here, pytest.raises(ServiceError, match="follows at most 5 redirects"):
        here.crm.list_objects()


def test_the_key_appears_in_no_message(scene: Play) -> None:
    from urllib.parse import quote

    echo = Reply(
        400, json={"error": "bad", "message": f"key {KEY} is bad", "details": {"seen": [KEY, quote(KEY, safe="")]}}, headers={"X-Echo": KEY}
    )
    with scene(echo) as here:
        with pytest.raises(RejectedError) as caught:
            here.session.request("POST", "/objects", query=[("k", KEY)], body={"pasted": KEY})
        said = "\n".join([*here.log, *here.notes, str(caught.value), str(caught.value.to_document())])
    assert "redacted" in said
    assert "secret" not in said
    assert any(line.startswith("> POST /api/v1/objects") for line in here.log)


def test_a_short_key_is_hidden_as_a_word_only() -> None:
    assert Redactor("k").without_key("the key k looks bad; k=k") == "the key [redacted] looks bad; [redacted]=[redacted]"
    assert Redactor("crs_long").without_key("xcrs_longx") == "x[redacted]x"
    assert Redactor(None).without_key("a") == "a"


def test_signed_links_are_not_logged(scene: Play) -> None:
    signed = "https://bucket.example/a/b?X-Signature=abc&Expires=1"
    with scene(
        Reply(json={"signedUrl": signed, "publicUrl": "https://cdn.example/a/b"}), Reply(json={"portalUrl": "https://p.example/t/abc#abc"})
    ) as here:
        assert here.crm.upload_url("a/b", "files").signed_url == signed
        assert here.crm.webhooks().portal_url == "https://p.example/t/abc#abc"
        said = "\n".join(here.log)
    assert "abc" not in said
    assert "https://bucket.example/" in said


def test_an_upload_goes_without_the_key(scene: Play) -> None:
    with (
        ScriptedServer(Reply(200), Reply(403, text="expired"), Reply(302, headers={"Location": "http://127.0.0.1:1/"})) as bucket,
        scene() as here,
    ):
        upload = (f"{bucket.origin}/a?sig=1", [b"abc", b"de"], 5, "text/csv")
        here.crm.session.upload(*upload)
        request = bucket.requests[0]
        assert (request.method, request.target, request.body) == ("PUT", "/a?sig=1", b"abcde")
        assert (request.headers["content-type"], request.headers["content-length"]) == ("text/csv", "5")
        assert "authorization" not in request.headers
        assert [here.crm.session.upload(*upload).status for _ in range(2)] == [403, 302], "a redirect is not followed"
        assert "sig=1" not in "\n".join(here.log)


@pytest.mark.parametrize("segment", ["", ".", "..", "bulk", "search"])
def test_an_id_that_would_address_something_else_is_refused(scene: Play, segment: str) -> None:
    with scene() as here, pytest.raises(NotFoundError):
        here.crm.delete_record(ID, segment)


def test_ids_are_encoded(scene: Play) -> None:
    with scene(Reply(404)) as here:
        with pytest.raises(NotFoundError):
            here.crm.get_record(ID, "../a b?c#d")
        assert here.server.requests[0].target.endswith("/records/..%2Fa%20b%3Fc%23d")


def test_the_raw_exchange_returns_any_status(scene: Play) -> None:
    with scene(Reply(404, json={"error": "not_found"})) as here:
        answer = here.session.request("GET", "/nothing", any_status=True)
        assert (answer.status, answer.json()) == (404, {"error": "not_found"})


def test_a_watch_hears_of_every_attempt_before_it_leaves(scene: Play) -> None:
    heard: list[str] = []

    class Journal:
        idempotency_key = "batch 1"

        def sending(self) -> None:
            heard.append(f"sending {len(here.server.requests)}")

        def refused(self) -> None:
            heard.append("refused")

    with scene(Reply(429), Reply(json={"created": 1})) as here:
        here.crm.bulk_write(ID, [b'{"data":{}}'], watch=Journal())
    assert heard == ["sending 0", "refused", "sending 1"]
    assert [request.headers["idempotency-key"] for request in here.server.requests] == ["batch 1", "batch 1"]
