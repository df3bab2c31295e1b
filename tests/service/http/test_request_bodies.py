"""Request bodies: a repeated name in an object is always refused, whatever the formatting."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crmctl.models import jsontext
from crmctl.service.faults import BadRequest
from crmctl.service.http.bodies import DEEPEST, parse_json

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


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_nesting_is_limited(opening: str, closing: str) -> None:
    parse_json((opening * DEEPEST + "1" + closing * DEEPEST).encode())
    with pytest.raises(BadRequest, match="nested deeper"):
        parse_json((opening * (DEEPEST + 1) + "1" + closing * (DEEPEST + 1)).encode())
