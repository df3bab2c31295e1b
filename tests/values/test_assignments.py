"""The assignments of --set: whole values, parts of values, and refusals."""

from __future__ import annotations

import pytest

from crmctl.errors import RejectedError, UsageError
from crmctl.values.composites import Form, parse_assignments
from tests.support.bulkfiles import attribute

ATTRIBUTES = [
    attribute("name", "name"),
    attribute("amount", "currency"),
    attribute("tags", "list"),
    attribute("email", "email"),
    attribute("notes"),
    attribute("address", "address"),
    attribute("dotted.slug"),
    attribute("people", "name", isList=True),
]


def test_assignments_make_the_data_of_a_record():
    assignments = ["name.first=Ada", "name.last=", "amount=12.5", "tags:=[1]", "email=", "notes=a=b", "address.city=Paris", "dotted.slug=x"]
    assert parse_assignments(assignments, ATTRIBUTES).fields == {
        "name": {"first": "Ada", "last": None},
        "amount": 12.5,
        "tags": [1],
        "email": None,
        "notes": "a=b",
        "address": {"city": "Paris"},
        "dotted.slug": "x",
    }
    assert parse_assignments(["tags=a;b"], ATTRIBUTES).fields == {"tags": ["a", "b"]}
    assert parse_assignments(["amount.amount=1.5", "amount.currency=EUR"], ATTRIBUTES).fields == {
        "amount": {"amount": 1.5, "currency": "EUR"}
    }


@pytest.mark.parametrize(
    ("assignments", "error", "text"),
    [
        (["nope=1"], UsageError, "there is no attribute nope"),
        (["emial=1"], UsageError, "there is no attribute emial"),
        (["email"], UsageError, "slug=value"),
        (["=x"], UsageError, "slug=value"),
        (["tags:=[1"], UsageError, "takes JSON"),
        (["email.x=1"], UsageError, "no parts"),
        (["notes=a", "notes=b"], UsageError, "twice"),
        (["name=Ada", "name.first=Ada"], UsageError, "twice"),
        (["name.first=Ada", "name=Ada"], UsageError, "twice"),
        (["address.zip=1", "address.postalCode=2"], UsageError, "twice"),
        (["address.foo=x"], UsageError, "address has no part 'foo'"),
        (["address.=x"], UsageError, "names no part"),
        (["address.city.x=y"], UsageError, "no part 'city.x'"),
        (["people.first=x"], UsageError, "list of values"),
        (["email=x"], RejectedError, "email: not an email"),
    ],
)
def test_a_wrong_assignment_says_why(assignments, error, text):
    with pytest.raises(error, match=text) as caught:
        parse_assignments(assignments, ATTRIBUTES)
    if "no attribute" in text:
        assert "the attributes are: address, amount" in caught.value.hint


def test_a_part_that_existing_records_show_is_known():
    given = parse_assignments(["address.foo=x"], ATTRIBUTES, form_of=lambda _: Form(keys=("Foo", "city")))
    assert given.parts == {"address": {"foo": "x"}}
    with pytest.raises(UsageError) as caught:
        parse_assignments(["address.bar=x"], ATTRIBUTES, form_of=lambda _: Form(keys=("Foo", "city")))
    assert "address.city" in caught.value.hint
    assert "address.Foo" in caught.value.hint
