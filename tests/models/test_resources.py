"""Tolerant reading of resources: a misfit in an optional field counts as absent, in a required field it is an error."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from crmctl.errors import ServiceError
from crmctl.models.resources import Activity, Attribute, BulkResult, Item, Pagination, Record, Workflow


@pytest.mark.parametrize(
    ("value", "read"),
    [(5, 5), ("5", 5), (5.0, 5), (Decimal(5), 5), (5.5, None), ("x", None), ([], None), ({}, None), (None, None), (float("nan"), None)],
)
def test_integers(value: Any, read: int | None) -> None:
    assert Pagination.parse({"total": value}).total == read


@pytest.mark.parametrize(
    ("value", "read"), [(True, True), (0, False), ("true", True), ("False", False), ("no", False), ("maybe", None), ([], None), (2, None)]
)
def test_truths(value: Any, read: bool | None) -> None:
    assert Attribute.parse({"id": "a", "slug": "s", "isList": value}).is_list is read


@pytest.mark.parametrize("value", [5, [], {}, True])
def test_an_optional_text_of_another_type_counts_as_absent(value: Any) -> None:
    assert Record.parse({"id": "a", "createdAt": value}).created_at is None


@pytest.mark.parametrize("raw", [{}, {"id": 5}, {"id": None}])
def test_a_required_field_must_be_usable(raw: dict[str, Any]) -> None:
    with pytest.raises(ServiceError, match="a record without a usable id"):
        Record.parse(raw)
    with pytest.raises(ServiceError, match="an item without a usable id"):
        Item.parse(raw)


def test_names_on_the_wire_and_of_fields_are_read() -> None:
    assert Record.parse({"id": "a", "created_at": "t"}).created_at == Record.parse({"id": "a", "createdAt": "t"}).created_at == "t"


def test_a_resource_keeps_its_wire_form_and_copies_its_data() -> None:
    raw = {"id": "a", "data": {"n": 1}, "more": [1]}
    record = Record.parse(raw)
    record.data["n"] = 2
    assert record.wire == raw == {"id": "a", "data": {"n": 1}, "more": [1]}
    assert Record(id="a").data is not Record(id="b").data
    assert record == Record.parse(raw).with_changes(data={"n": 2})
    assert "id='a'" in repr(record)


def test_inner_resources_are_read_whole_or_not_at_all() -> None:
    linked = [{"objectId": "o", "recordId": "r"}]
    activity = Activity.parse({"id": "a", "linkedRecords": linked, "participants": [{"id": 5}], "createdBy": "Ada"})
    assert [(one.object_id, one.record_id) for one in activity.linked_records or ()] == [("o", "r")]
    assert (activity.participants, activity.created_by) == (None, None)
    assert (
        Workflow.parse({"id": "w", "object": {"slug": "people"}}).object == Workflow.parse({"id": "x", "object": {"slug": "people"}}).object
    )
    assert BulkResult.parse({"created": "2"}).failed == []
