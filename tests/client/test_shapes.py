"""Every resource in every shape that the specification permits, and shapes that crmctl refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from crmctl.client.answers import (
    Answer,
    read_bulk,
    read_deleted,
    read_holder,
    read_list,
    read_loose,
    read_made,
    read_object,
    read_one,
    read_page,
)
from crmctl.errors import ServiceError
from crmctl.models.resources import (
    Activity,
    Attribute,
    Member,
    Object,
    Record,
    Report,
    ReportRun,
    Resource,
    UploadUrl,
    Webhooks,
    Workflow,
    WorkflowRun,
    WorkflowStart,
)
from tests.support.httpserver import Reply

ID = "6f1c1c3e-8a55-4f59-9d1b-2f6f3c7d9a10"

RESOURCES: list[tuple[str, str, type[Resource], dict[str, Any]]] = [
    ("object", "objects", Object, {"id": ID, "slug": "people", "pluralName": "People"}),
    ("attribute", "attributes", Attribute, {"id": ID, "slug": "tags", "type": "select", "config": {"options": ["a", "b"]}}),
    ("record", "records", Record, {"id": ID, "objectId": ID, "data": {"id": "not mine", "email": "a@b.c", "tags": ["x", "y"]}}),
    (
        "activity",
        "activities",
        Activity,
        {"id": ID, "title": "Call", "linkedRecords": [{"objectId": ID, "recordId": ID}], "participants": []},
    ),
    ("member", "members", Member, {"id": ID, "role": "owner", "user": {"id": ID, "name": "Ada"}}),
    ("report", "reports", Report, {"id": ID, "name": "Deals", "creator": {"id": ID, "name": "Ada"}}),
    ("run", "runs", ReportRun, {"id": ID, "status": "completed", "resultCount": 3}),
    ("workflow", "workflows", Workflow, {"id": ID, "name": "Greet", "object": {"id": ID, "slug": "people"}, "createdBy": {"id": ID}}),
    ("run", "runs", WorkflowRun, {"id": ID, "status": "completed", "triggerEvent": "api", "error": None}),
]

ONE: dict[str, Callable[[str, dict[str, Any]], Any]] = {
    "bare": lambda name, raw: raw,
    "own name": lambda name, raw: {name: raw},
    "data": lambda name, raw: {"data": raw},
    "data and own name": lambda name, raw: {"data": {name: raw}},
    "own name beside other fields": lambda name, raw: {"success": True, name: raw, "meta": {"took": 3}},
    "own name inside a wrapper with an id": lambda name, raw: {"id": "request-7", name: raw},
    "unknown wrapper": lambda name, raw: {"result": raw},
    "unknown fields": lambda name, raw: {**raw, "brandNew": {"a": [1]}},
}

MANY: dict[str, Callable[[str, list[Any]], Any]] = {
    "documented key": lambda key, items: {key: items},
    "top-level array": lambda key, items: items,
    "data": lambda key, items: {"data": items},
    "data and key": lambda key, items: {"data": {key: items}},
    "only array": lambda key, items: {"items": items, "count": len(items)},
    "only array inside data": lambda key, items: {"data": {"items": items}},
    "key beside another array": lambda key, items: {key: items, "warnings": ["slow"]},
}


def answer(document: Any, status: int = 200, *, wrote: bool = False) -> Answer:
    return Answer(status, {"content-type": "application/json"}, json.dumps(document).encode(), wrote=wrote)


@pytest.mark.parametrize(("name", "key", "model", "raw"), RESOURCES, ids=lambda value: getattr(value, "__name__", None))
@pytest.mark.parametrize("shape", ONE)
@pytest.mark.parametrize("status", [200, 201, 202, 299])
def test_one_resource(name: str, key: str, model: type[Resource], raw: dict[str, Any], shape: str, status: int) -> None:
    resource = read_one(answer(ONE[shape](name, raw), status), name, model)
    assert raw.items() <= resource.wire.items()
    assert resource.id == ID  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "key", "model", "raw"), RESOURCES, ids=lambda value: getattr(value, "__name__", None))
@pytest.mark.parametrize("shape", MANY)
@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_list(name: str, key: str, model: type[Resource], raw: dict[str, Any], shape: str, length: int) -> None:
    items = [{**raw, "id": f"{ID[:-1]}{index}"} for index in range(length)]
    assert [resource.wire for resource in read_list(answer(MANY[shape](key, items)), key, model)] == items


def test_a_list_of_nothing_written_as_null_is_empty() -> None:
    assert read_list(answer({"records": None}), "records", Record) == []


@pytest.mark.parametrize(
    "document",
    [
        {"first": [{"id": ID}], "second": [{"id": ID}]},
        {"records": ["text"]},
        [1, 2],
        {},
        "words",
        7,
        None,
        {"data": {"a": [], "b": []}},
        {"records": 5},
    ],
)
def test_a_list_that_cannot_be_understood(document: Any) -> None:
    with pytest.raises(ServiceError) as caught:
        read_list(answer(document), "records", Record)
    assert caught.value.code == "unreadable_answer"
    assert int(caught.value.exit_code) == 7
    assert "status 200, application/json" in caught.value.message


@pytest.mark.parametrize(
    "document", [{}, [], {"data": {"email": "x"}}, {"record": {"name": "no id"}}, {"a": {"id": ID}, "b": {"id": ID}}, "text", None]
)
def test_a_resource_that_cannot_be_understood(document: Any) -> None:
    with pytest.raises(ServiceError) as caught:
        read_one(answer(document, wrote=True), "record", Record)
    assert caught.value.code == "unreadable_answer"
    assert caught.value.outcome_unknown


def test_a_resource_without_an_id_shows_status_type_and_start() -> None:
    with pytest.raises(ServiceError, match=r"an object without a usable id \(status 200, application/json\): \[\{\"slug") as caught:
        read_list(answer([{"slug": "people"}]), "objects", Object)
    assert caught.value.status == 200


@pytest.mark.parametrize("content", [b"<html><title>Sign in</title>", b"", b"{broken", b'{"a": NaN}', b"\xff\xfe"])
def test_an_answer_without_json_shows_status_type_and_start(content: bytes) -> None:
    with pytest.raises(ServiceError) as caught:
        read_list(Answer(203, {"content-type": "text/html"}, content), "objects", Object)
    assert "status 203, text/html" in caught.value.message
    if content.startswith(b"<html>"):
        assert "<html><title>Sign in</title>" in caught.value.message


@pytest.mark.parametrize(
    ("extra", "total", "limit", "offset"),
    [
        ({"pagination": {"total": 7, "limit": 2, "offset": 4}}, 7, 2, 4),
        ({"pagination": {"total": "7", "limit": "2", "offset": "4"}}, 7, 2, 4),
        ({"total": 7}, 7, 100, 10),
        ({"totalCount": 7}, 7, 100, 10),
        ({"meta": {"total": 7}}, 7, 100, 10),
        ({"meta": {"pagination": {"total": 7, "offset": 3}}}, 7, 100, 3),
        ({"meta": {"took": 3}, "total": 7}, 7, 100, 10),
        ({"meta": {"took": 3}, "page": {"limit": 2}, "paging": {"total": 7}}, 7, 100, 10),
        ({"pagination": None}, None, 100, 10),
        ({"pagination": {"total": -1, "limit": True}}, None, 100, 10),
        ({"pagination": {"total": 0}}, None, 100, 10),
        ({"pagination": {"total": 7, "offset": 7}}, None, 100, 7),
        ({}, None, 100, 10),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_paging_numbers(extra: dict[str, Any], total: int | None, limit: int, offset: int, wrapped: bool) -> None:
    document = {"data": {"records": [{"id": ID}]}, **extra} if wrapped else {"records": [{"id": ID}], **extra}
    page = read_page(answer(document), "records", Record, 100, 10)
    assert (len(page.items), page.total, page.limit, page.offset) == (1, total, limit, offset)


ATTRIBUTE = {"id": "a" + ID[1:], "slug": "email", "type": "email"}
OBJECT = {"id": ID, "slug": "people"}


@pytest.mark.parametrize(
    "document",
    [
        {**OBJECT, "attributes": [ATTRIBUTE]},
        {"object": {**OBJECT, "attributes": [ATTRIBUTE]}},
        {"object": OBJECT, "attributes": [ATTRIBUTE]},
        {"success": True, "data": {"object": OBJECT, "attributes": [ATTRIBUTE]}, "meta": {"took": 3}},
        {"data": {**OBJECT, "fields": [ATTRIBUTE]}},
        {"data": {"object": OBJECT, "fields": [ATTRIBUTE]}},
        {"data": OBJECT, "schema": [ATTRIBUTE]},
        {**OBJECT, "properties": [ATTRIBUTE], "tags": ["a"]},
    ],
)
def test_an_object_brings_its_attributes_under_any_name(document: Any) -> None:
    found, attributes = read_object(answer(document))
    assert found.slug == "people"
    assert [each.slug for each in attributes or []] == ["email"]
    assert any(value == [ATTRIBUTE] for value in found.wire.values())
    assert found.wire.keys().isdisjoint({"success", "meta"})


def test_an_object_without_attributes_says_so() -> None:
    assert read_object(answer({"object": OBJECT}))[1] is None
    assert read_object(answer({**OBJECT, "attributes": []}))[1] == []


@pytest.mark.parametrize("wrap", [lambda raw: raw, lambda raw: {"data": raw}, lambda raw: {"result": raw}])
def test_bulk_counts_in_any_wrapper(wrap: Callable[[Any], Any]) -> None:
    raw = {"created": 2, "updated": 1, "failed": [{"index": 1, "error": "no"}], "took": 4}
    result = read_bulk(answer(wrap(raw)))
    assert (result.created, result.updated, [(each.index, each.error) for each in result.failed]) == (2, 1, [(1, "no")])
    assert result.wire == raw


def test_missing_bulk_counts_read_as_nothing_written() -> None:
    result = read_bulk(answer({"created": 3}))
    assert (result.created, result.updated, result.failed) == (3, 0, [])


def test_bulk_failures_with_structured_errors_keep_their_words() -> None:
    result = read_bulk(answer({"failed": [{"index": 0, "error": {"message": "bad email"}}, {"index": 4, "message": "gone"}]}))
    assert [(each.index, each.error) for each in result.failed] == [(0, "bad email"), (4, "gone")]


def test_a_failure_nested_beyond_reason_has_no_words() -> None:
    deep = json.loads('{"why":' * 190 + "1" + "}" * 190)
    assert [(each.index, each.error) for each in read_bulk(answer({"failed": [{"index": 1, "error": deep}]})).failed] == [(1, "")]
    deeper = json.loads("[" * 900 + "]" * 900)
    with pytest.raises(ServiceError) as caught:
        read_bulk(answer({"failed": [{"index": 1, "error": deeper}]}, wrote=True))
    assert (caught.value.code, caught.value.outcome_unknown) == ("unreadable_answer", True)


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"success": False}, "failed_answer"),
        ({"success": False, "message": "it is locked", "data": None}, "failed_answer"),
        ({"ok": False, "error": "locked", "message": "it is locked"}, "locked"),
        ({"error": {"code": "locked", "message": "it is locked"}}, "locked"),
        ({"success": False, "record": {"id": "r"}, "error": "locked"}, "locked"),
    ],
)
@pytest.mark.parametrize(
    "read", [read_deleted, lambda told: read_loose(told, WorkflowStart, "message"), lambda told: read_made(told, "record", Record, {})]
)
def test_a_failure_with_status_200_is_no_success(document: Any, code: str, read: Callable[[Answer], Any]) -> None:
    with pytest.raises(ServiceError, match="answers 200, but reports a failure") as caught:
        read(answer(document, wrote=True))
    assert (caught.value.code, caught.value.outcome_unknown, caught.value.exit_code) == (code, True, 7)
    assert "message" not in document or "it is locked" in caught.value.message


def test_counts_and_runs_with_an_error_are_answers() -> None:
    assert read_deleted(answer({"success": False, "deleted": 2})) == 2
    assert read_bulk(answer({"success": False, "created": 1, "updated": 0, "failed": [{"index": 1, "error": "x"}]})).created == 1
    assert read_one(answer({"id": "r", "status": "failed", "error": "x"}), "run", ReportRun).error == "x"


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'"ok"', b"null"])
def test_a_bulk_answer_without_counts_leaves_the_outcome_unknown(content: bytes) -> None:
    with pytest.raises(ServiceError) as caught:
        read_bulk(Answer(200, {}, content, wrote=True))
    assert caught.value.outcome_unknown


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"deleted": 3}, 3),
        ({"data": {"deleted": 3}}, 3),
        ({"deleted": [ID, ID]}, 2),
        ({"deletedCount": 4}, 4),
        ({"ok": True}, None),
        ([], None),
    ],
)
def test_the_count_of_a_bulk_delete(document: Any, expected: int | None) -> None:
    assert read_deleted(answer(document)) == expected
    assert read_deleted(Answer(204)) is None


def test_a_bulk_delete_answered_by_a_text_gives_no_count_and_by_a_page_none_is_believed() -> None:
    assert read_deleted(Answer(200, {"content-type": "text/plain"}, b"Deleted")) is None
    with pytest.raises(ServiceError):
        read_deleted(Answer(200, {"content-type": "text/html"}, b"<h1>Sign in</h1>", wrote=True))


@pytest.mark.parametrize(
    ("model", "sent"),
    [
        (Object, {"slug": "things", "pluralName": "Things"}),
        (Attribute, {"name": "Kind", "type": "text"}),
        (Record, {"data": {"email": "a@b.c"}}),
        (Activity, {"title": "Call"}),
    ],
)
def test_an_empty_answer_to_a_creation_returns_the_values_sent(model: type[Resource], sent: dict[str, Any]) -> None:
    for content in (b"", b"null", b"{}", b'""\n'):
        assert read_made(Answer(204, content=content, wrote=True), "it", model, sent).wire == sent
    assert read_made(answer({"data": {"id": ID, "slug": "x"}}), "it", model, sent).wire == {"id": ID, "slug": "x"}
    assert read_made(answer({"id": ID}), "it", model, sent).wire == {"id": ID}
    with pytest.raises(ServiceError):
        read_made(answer({"message": "accepted"}), "it", model, sent)


def test_results_beside_a_run_stay_with_it() -> None:
    document = {"success": True, "run": {"id": ID, "status": "completed"}, "results": [{"n": 1}]}
    run = read_one(answer(document), "run", ReportRun, beside=(list, dict))
    assert run.wire == {"id": ID, "status": "completed", "results": [{"n": 1}]}


def test_acknowledgements_and_holders() -> None:
    assert read_loose(Answer(202), WorkflowStart, "workflowId").workflow_id is None
    assert read_loose(answer({"data": {"workflowId": ID}}), WorkflowStart, "workflowId").workflow_id == ID
    assert read_loose(answer({"message": "started"}), WorkflowStart, "workflowId", "message").message == "started"
    for wrap in ("data", "upload"):
        assert (
            read_holder(answer({wrap: {"signedUrl": "https://x/y", "publicUrl": "https://z"}}), UploadUrl, "signedUrl").signed_url
            == "https://x/y"
        )
    assert (
        read_holder(answer({"eventTypes": [{"name": "record.created"}]}), Webhooks, "portalUrl", "eventTypes").event_types[0].name
        == "record.created"
    )


@pytest.mark.parametrize("content", [b"", b"null", b"{}"])
def test_an_update_that_answers_nothing_reads_the_resource(scene: Callable[..., Any], content: bytes) -> None:
    record = {"id": ID, "data": {"n": 1}}
    with scene(Reply(200, body=content), Reply(json=record)) as here:
        assert here.crm.update_record(ID, ID, {"n": 1}).wire == record


def test_an_attribute_is_updated_if_the_answer_holds_only_its_id(scene: Callable[..., Any]) -> None:
    with scene(Reply(json={"id": ID})) as here:
        assert here.crm.update_attribute(ID, ID, {"name": "Phase"}).wire == {"id": ID}


@pytest.mark.parametrize("noun", ["object", "attribute", "record", "activity"])
def test_a_deletion_answered_by_a_web_page_is_not_believed(scene: Callable[..., Any], noun: str) -> None:
    ids = [ID] * (2 if noun in ("attribute", "record") else 1)
    for reply, is_believed in ((Reply(text="OK"), True), (Reply(json=None), True), (Reply(text="<h1>Sign in</h1>"), False)):
        with scene(reply) as here, nullcontext() if is_believed else pytest.raises(ServiceError, match="Sign in") as caught:
            getattr(here.crm, f"delete_{noun}")(*ids)
        assert is_believed or caught.value.outcome_unknown
