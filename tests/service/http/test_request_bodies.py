"""Request bodies: a repeated name in an object is always refused, whatever the formatting."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crmctl.models import jsontext
from crmctl.service.faults import BadRequest, Body, check_shape
from crmctl.service.http.schemas import DEEPEST, BulkWrite, RecordSearch, parse_json

_NAMES = st.sampled_from(['"a"', '"b"', '":"', '"\\":"', '"c :"'])
_BLANK = st.sampled_from(["", "", "", " ", "\n"])
_LEAVES = st.sampled_from(["1", '""', '"x:y"', '"\\":"', '" :"', "null"])


def _containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    member = st.tuples(_NAMES, _BLANK, inner).map(lambda parts: f"{parts[0]}{parts[1]}:{parts[2]}")
    return st.lists(member, max_size=3).map(lambda parts: "{" + ",".join(parts) + "}") | st.lists(inner, max_size=3).map(
        lambda parts: "[" + ",".join(parts) + "]"
    )


@given(text=st.recursive(_LEAVES, _containers, max_leaves=8))
@example(text='{"a":1,"a" :2}')
@example(text='{"x":{"a":1,"a":"\\":"}}')
@example(text='{"x":{"a":{"b":1},"a":[]}}')
def test_repeated_names_are_refused_and_all_other_json_is_read(text: str) -> None:
    try:
        wanted = jsontext.loads(text, unique_keys=True)
    except ValueError:
        with pytest.raises(BadRequest, match="there twice"):
            parse_json(text.encode())
    else:
        assert parse_json(text.encode()) == wanted


def test_a_byte_order_mark_is_ignored_at_the_start_alone() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}
    for body in (b'\xef\xbb\xbf\xef\xbb\xbf{"a": 1}', '{"a": 1}'.encode("utf-16"), b"\xef\xbb\xbf"):
        with pytest.raises(BadRequest, match="is not JSON"):
            parse_json(body)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_nesting_is_limited(opening: str, closing: str) -> None:
    parse_json((opening * DEEPEST + "1" + closing * DEEPEST).encode())
    with pytest.raises(BadRequest, match="nested deeper"):
        parse_json((opening * (DEEPEST + 1) + "1" + closing * (DEEPEST + 1)).encode())


@pytest.mark.parametrize(
    ("model", "document", "message"),
    [
        (BulkWrite, {"mode": "replace", "records": []}, "mode must be 'create' or 'upsert'"),
        (BulkWrite, {"records": [{}] * 101}, "records must have at most 100 items"),
        (RecordSearch, {"limit": 0}, "limit must be at least 1"),
        (RecordSearch, {"limit": 101}, "limit must be at most 100"),
        (RecordSearch, {"sort": {"order": "ASC"}}, "sort.order must be 'asc' or 'desc'"),
        (RecordSearch, {"\ud800": 1}, "the name of a field must not contain half of a surrogate pair"),
    ],
)
def test_a_wrong_shape_is_named_with_its_rule(model: type[Body], document: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        check_shape(model, document)
    assert refusal.value.message == message
