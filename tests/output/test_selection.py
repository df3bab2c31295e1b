"""--fields and --query in every format."""

from __future__ import annotations

from typing import Any

import pytest

from crmctl.cli.verbs import NOUNS
from crmctl.errors import UsageError
from crmctl.models.jsontext import dumps, loads
from crmctl.output.emitter import compile_query
from tests.output.samples import NIL, Run, record, view

ID = f"{NIL}000000000001"
MEMBER = {"id": "m1", "role": "owner", "user": {"id": "u1", "name": "Ada", "email": "a@b.c"}}


@pytest.mark.parametrize(
    ("format", "out"),
    [
        ("jsonl", f'{{"data":{{"email":"ada@acme.test","name":{{"first":"Ada"}}}},"id":"{ID}"}}\n'),
        ("csv", f"email,name.first,id\nada@acme.test,Ada,{ID}\n"),
        ("yaml", f"- data:\n    email: ada@acme.test\n    name:\n      first: Ada\n  id: {ID}\n"),
        ("table", f"email          name.first  id\nada@acme.test  Ada         {ID}\n"),
        ("ids", f"{ID}\n"),
    ],
)
def test_fields_keep_the_shape_and_the_wanted_order(format: str, out: str) -> None:
    run = Run(format, fields=["email", "name.first", "id"])
    run.emitter.emit_items([record(1)], view())
    assert run.out == out


def test_fields_of_other_nouns_may_go_deeper() -> None:
    run = Run("jsonl", fields=["user.email", "role", "user.name"])
    run.emitter.emit_item(MEMBER, NOUNS["members"].view)
    assert run.out == '{"user":{"email":"a@b.c","name":"Ada"},"role":"owner"}\n'


@pytest.mark.parametrize("format", ["table", "json", "jsonl", "csv", "tsv", "yaml", "ids"])
@pytest.mark.parametrize("items", [[], [record(1)]])
def test_an_unknown_field_is_refused_before_any_output(format: str, items: list[Any]) -> None:
    run = Run(format, fields=["email", "emial"])
    for call in (lambda: run.emitter.emit_items(items, view()), lambda: run.emitter.check_fields(view())):
        with pytest.raises(UsageError, match="unknown field for records: emial") as caught:
            call()
        assert (caught.value.hint or "").startswith("did you mean email? valid fields: id, text, email, number,")
        assert "createdAt" in (caught.value.hint or "")
    assert run.out == ""


def test_a_field_the_service_added_can_be_chosen() -> None:
    run = Run("jsonl", fields=["slug", "colour"])
    run.emitter.emit_items([{"slug": "people", "colour": "red"}], NOUNS["objects"].view)
    assert run.out == '{"slug":"people","colour":"red"}\n'


def test_a_missing_field_stays_away_or_is_an_empty_cell() -> None:
    for kind, out in (("jsonl", '{"id":"1"}\n'), ("csv", "id,description\n1,\n")):
        run = Run(kind, fields=["id", "description"])
        run.emitter.emit_items([{"id": "1", "slug": "x"}], NOUNS["objects"].view)
        assert run.out == out


@pytest.mark.parametrize(
    ("format", "query", "out"),
    [
        ("json", "[].data.email", '[\n  "ada@acme.test",\n  "ada@acme.test"\n]\n'),
        ("jsonl", "[].data.email", '"ada@acme.test"\n"ada@acme.test"\n'),
        ("table", "[].data.email", "ada@acme.test\nada@acme.test\n"),
        ("csv", "[].data.email", "value\nada@acme.test\nada@acme.test\n"),
        ("ids", "[].id", f"{ID}\n{NIL}000000000002\n"),
        ("ids", "[0]", f"{ID}\n"),
        ("table", "[].{mail: data.email, n: data.number}", "mail            n\nada@acme.test  -5\nada@acme.test  -5\n"),
        ("table", "[].[data.email, data.number]", "1               2\nada@acme.test  -5\nada@acme.test  -5\n"),
        ("csv", "[].[data.email, data.number]", "1,2\nada@acme.test,-5\nada@acme.test,-5\n"),
        ("csv", "[0].{mail: data.email}", "mail\nada@acme.test\n"),
        ("yaml", "length(@)", "2\n"),
        ("json", "length(@)", "2\n"),
        ("table", "length(@)", "2\n"),
        ("json", "nothing", "null\n"),
        ("table", "nothing", ""),
        ("json", "[?data.number > `0`]", "[]\n"),
    ],
)
def test_a_query_sees_the_whole_list_and_is_printed_in_the_format(format: str, query: str, out: str) -> None:
    run = Run(format, query=query)
    run.emitter.emit_pages([[record(1)], [record(2)]], view())
    assert run.out == out


def test_a_query_of_one_resource_and_of_a_result() -> None:
    run = Run("json", query="id")
    run.emitter.emit_item(record(1), view())
    run.emitter.emit_result({"id": 5})
    assert run.out == f'"{ID}"\n5\n'


@pytest.mark.parametrize("query", ["[", "foo(", "abs(@)", "sort(@)"])
def test_a_wrong_query_is_a_usage_error(query: str) -> None:
    with pytest.raises(UsageError, match="--query") as caught:
        Run("json", query=query).emitter.emit_items([record(1), record(2)], view())
    assert caught.value.hint


def test_fields_come_before_the_query() -> None:
    run = Run("json", fields=["email"], query="[0]")
    run.emitter.emit_items([record(1)], view())
    assert loads(run.out) == {"data": {"email": "ada@acme.test"}}


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("abs([0])", "abs() takes number, not object"),
        ("sum([].data.email)", "sum() takes array-number, not string"),
        ("join(',', [0].data)", "join() takes array-string, not object"),
        ("data[?x", "it cannot be read from character 8 on"),
        ("[0] ]", "from character 5 on"),
        ("a.#", "from character 3 on"),
        ("nosuch(@)", "Unknown function: nosuch()"),
        ("abs(@, @)", "Expected 1 argument for function abs(), received 2"),
        ("x" * 5000 + "#", "from character 5001 on"),
    ],
)
def test_a_wrong_query_is_named_with_its_place_and_never_with_a_whole_record(expression: str, said: str) -> None:
    row = record(1) | {"notes": "a long note " * 5000}
    with pytest.raises(UsageError) as caught:
        Run("json", query=expression).emitter.emit_items([row], view())
    assert said in caught.value.message
    assert expression[:100] in caught.value.message
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("query", "result"),
    [
        ("sum(a[].x)", "12345678901234569.19"),
        ("sum(b)", "0.3"),
        ("avg(a[].x)", "3086419725308642.2975"),
        ("max(a[].x)", "12345678901234567.89"),
        ("sort_by(a, &x)[].x", "[0.1,0.2,1,12345678901234567.89]"),
        ("a[?x > `5`].x", "[12345678901234567.89]"),
        ("to_string(a[0].x)", '"12345678901234567.89"'),
        ("to_number('12345678901234567.89')", "12345678901234567.89"),
        ("[type(a[0].x), to_number('x'), sum(c), avg(c)]", '["number",null,0,null]'),
    ],
)
def test_numbers_are_computed_to_the_last_digit(query: str, result: str) -> None:
    document = loads('{"a": [{"x": 12345678901234567.89}, {"x": 1}, {"x": 0.1}, {"x": 0.2}], "b": [0.1, 0.2], "c": []}')
    assert dumps(compile_query(query)(document)) == result
