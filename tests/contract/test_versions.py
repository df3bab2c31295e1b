"""Versions of records: ETag on answers, If-Match on changes (an addition to the interface)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.service import RunningService


@pytest.fixture
def people(crm: RunningService) -> str:
    return f"/api/v1/objects/{crm.object_id('people')}/records"


def make(crm: RunningService, people: str) -> tuple[str, Any]:
    answer = crm.client.post(people, json={"data": {"email": "ada@example.com", "score": 1.50}})
    return f"{people}/{answer.json()['id']}", answer


def test_a_concurrent_change_is_not_overwritten(crm: RunningService, people: str) -> None:
    path, made = make(crm, people)
    read = crm.client.get(path)
    assert read.headers["etag"] == made.headers["etag"]
    other = crm.client.patch(path, json={"data": {"score": 2}}, headers={"If-Match": read.headers["etag"]})
    assert other.status_code == 200
    assert other.headers["etag"] != read.headers["etag"]
    for method, body in (("PATCH", {"data": {"score": 3}}), ("DELETE", None)):
        refused = crm.client.request(method, path, json=body, headers={"If-Match": read.headers["etag"]})
        assert (refused.status_code, refused.json()["error"]) == (412, "precondition_failed")
    now = crm.client.get(path)
    assert (now.json()["data"]["score"], now.headers["etag"]) == (2, other.headers["etag"])
    assert crm.client.delete(path, headers={"If-Match": f'"else", {now.headers["etag"]}'}).json() == {"deleted": True}


def test_writes_without_if_match_or_with_a_star_are_unconditional(crm: RunningService, people: str) -> None:
    path, _ = make(crm, people)
    assert crm.client.patch(path, json={"data": {"score": 2}}).status_code == 200
    assert crm.client.patch(path, json={"data": {"score": 3}}, headers={"If-Match": "*"}).status_code == 200
    gone = path[:-12] + "000000000000"
    assert crm.client.patch(gone, json={"data": {}}, headers={"If-Match": "*"}).status_code == 404


def test_an_invalid_or_unknown_version_changes_nothing(crm: RunningService, people: str) -> None:
    path, made = make(crm, people)
    tag = made.headers["etag"]
    for if_match, status in ((tag.strip('"'), 400), ("", 400), (f"{tag} x", 400), (f"W/{tag}", 412), ('"*"', 412), ('""', 412)):
        answer = crm.client.patch(path, json={"data": {"score": 9}}, headers={"If-Match": if_match})
        assert answer.status_code == status, if_match
    assert crm.client.get(path).headers["etag"] == tag


def test_if_none_match_saves_reading_a_known_record(crm: RunningService, people: str) -> None:
    record, made = make(crm, people)
    etag = made.headers["etag"]
    for text in (etag, f'"other", W/{etag}', "*"):
        answer = crm.client.get(record, headers={"If-None-Match": text})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)
    assert crm.client.get(record, headers={"If-None-Match": '"other"'}).status_code == 200
    crm.client.patch(record, json={"data": {"notes": "new"}})
    assert crm.client.get(record, headers={"If-None-Match": etag}).status_code == 200


def test_a_write_that_changes_no_value_is_a_new_version(crm: RunningService, people: str) -> None:
    path, made = make(crm, people)
    crm.clock.sleep(1)
    again = crm.client.patch(path, json={"data": {"score": 1.50}})
    assert again.json()["data"] == made.json()["data"]
    assert again.headers["etag"] != made.headers["etag"]
